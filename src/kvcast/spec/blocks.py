"""Matrices as codes in blocks of 32 inputs: checkpoints bring them, and kvcast's kernels read them.

Knows no file format and no runtime.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class CodedMatrix:
    """A matrix [outputs, inputs]; a number is code * scale, plus the least value of its block.

    Attributes:
        codes: int8, or 0 .. 15 as uint8 where there are least values, [outputs, inputs].
        scales: float16 [outputs, inputs / 32].
        least: float16, likewise: the value of code 0; None for int8.

    """

    codes: NDArray[Any]
    scales: NDArray[np.float16]
    least: NDArray[np.float16] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Outputs and inputs."""
        return self.codes.shape

    def numbers(self) -> NDArray[np.float32]:
        """Return the numbers of the codes."""
        inside = self.codes.reshape(*self.scales.shape, BLOCK).astype(np.float32)
        numbers = inside * self.scales[..., None].astype(np.float32)
        if self.least is not None:
            numbers += self.least[..., None].astype(np.float32)
        return numbers.reshape(self.shape)

    def moved(self, move: Callable[[NDArray[Any]], NDArray[Any]]) -> "CodedMatrix":
        """Return it with its outputs in the order that `move` gives to rows."""
        least = None if self.least is None else move(self.least)
        return CodedMatrix(codes=move(self.codes), scales=move(self.scales), least=least)


BlocksOf = Callable[[str], CodedMatrix | None]
"""The blocks of a checkpoint's matrix, by its canonical name; None where it has none."""


def no_blocks(_: str) -> None:
    """Tell that a checkpoint has numbers alone."""


def of_eight_bits(blocks_of: BlocksOf) -> BlocksOf:
    """Return `blocks_of` without the codes of 4 bits."""

    def blocks(name: str) -> CodedMatrix | None:
        own = blocks_of(name)
        return own if own is None or own.least is None else None

    return blocks


def joined(parts: Sequence[CodedMatrix]) -> CodedMatrix:
    """Return matrices with the same inputs as one, the outputs of the first before those of others.

    Where they are not of one kind all become int8, those that were not by rounding: finer than the
    4 bits, or about as fine as the 5 and 6, that they had.
    """
    least = [part.least for part in parts]
    given = [part_least for part_least in least if part_least is not None]
    if 0 < len(given) < len(parts):
        parts = [part if part.least is None else rounded(part.numbers()) for part in parts]
        given = []
    return CodedMatrix(
        codes=np.concatenate([part.codes for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        least=np.concatenate(given) if given else None,
    )


def rounded(matrix: NDArray[np.float32]) -> CodedMatrix:
    """Return the int8 blocks nearest to a matrix, whose inputs are a multiple of 32."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK)
    most = np.finfo(np.float16).max
    with np.errstate(all="ignore"):  # a damaged file's numbers may be anything
        scales = (np.abs(blocks).max(axis=-1) / np.float32(127)).clip(0, most).astype(np.float16)
        divisors = scales.astype(np.float32)[..., None]
        codes = np.divide(blocks, divisors, out=np.zeros_like(blocks), where=divisors > 0)
        codes = np.rint(np.nan_to_num(codes)).clip(-127, 127)
    return CodedMatrix(codes=codes.astype(np.int8).reshape(matrix.shape), scales=scales)
