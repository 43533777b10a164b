"""int4 codes of a decoder-only model that suit the inputs of its matrices.

A number's error reaches the outputs times the number's input, so it counts by that input's mean
square, as in llama.cpp's importance matrices (`tools/imatrix`). A block's scale and least value
then fit the numbers with great inputs best. Inputs are measured on a text that the model writes.

SmolLM2-135M, rotated so that its numbers fit no 4-bit grid: this regains 79 to 80%, with two
seeds, of the log likelihood that int4 costs on five texts; random tokens 72 to 74%. Making up for
each error in the numbers that are not rounded yet (GPTQ, arXiv:2210.17323) regains 60 to 66% alone,
and with these weights 74 to 77%, so it is left out. No command prints these shares;
tests/text/test_smollm2_calibrated.py holds two of the texts to half. Knows no runtime.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kvcast.models.executor import TorchModel
from kvcast.runtimes.lowering.block_search import searched
from kvcast.runtimes.lowering.calibration import decode_from_the_start, write_text
from kvcast.runtimes.native.quantize import roles_of
from kvcast.spec.runtimes import OnPhase
from kvcast.spec.stored_matrices import BLOCK, BlocksOf, CodedMatrix

_TOKENS = 4096
_SEED = 0
# Of the mean square of all inputs, added to each: one may have been small in this text alone.
_DAMPING = 0.01


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """Codes, and how they were found.

    Attributes:
        blocks_of: the codes of a matrix, a checkpoint's own or calibrated ones. The latter are
            searched for in each call.
        record: how many matrices were calibrated, how many have the checkpoint's own codes, and
            with how many tokens and which seed; for a bundle's manifest.

    """

    blocks_of: BlocksOf
    record: dict[str, Any]


@torch.no_grad()
def calibrate(programs: TorchModel, blocks_of: BlocksOf, on_phase: OnPhase) -> Calibrated:
    """Measure the inputs of layers' matrices; the table and the head are left as they are.

    Args:
        programs: fp32, of no mixture of experts; not changed.
        blocks_of: the codes that the checkpoint has for a matrix, which are kept.
        on_phase: called as each phase begins.

    Raises KvcastError if the model's logits are not all finite.

    """
    decode = programs["decode"]
    roles = roles_of(decode.program)
    whole: dict[str, Any] = {
        name: decode.matrix(name) for name in sorted(roles.products - roles.heads)
    }
    divisible = {name: matrix for name, matrix in whole.items() if matrix.in_features % BLOCK == 0}
    matrices = {name: matrix for name, matrix in divisible.items() if blocks_of(name) is None}
    record = {"calibrated": len(matrices), "kept": len(divisible) - len(matrices)}
    if not matrices:
        on_phase("calibrating nothing")
        return Calibrated(blocks_of=blocks_of, record=record)
    on_phase("calibrating: the model writes a text")
    tokens_rs = write_text(programs, _TOKENS, _SEED)
    on_phase("calibrating: measuring inputs")
    with _squares(matrices) as squares:
        decode_from_the_start(programs, tokens_rs)

    def calibrated_blocks_of(name: str) -> CodedMatrix | None:
        if name not in matrices:
            return blocks_of(name)
        return searched(matrices[name].weight.numpy(), _weights(squares[name]).numpy())

    return Calibrated(
        blocks_of=calibrated_blocks_of,
        record={**record, "tokens": tokens_rs.numel(), "seed": _SEED},
    )


def _weights(squares_i: Tensor) -> Tensor:
    """Return how much errors count: all the same where inputs were always zero."""
    return squares_i + (_DAMPING * squares_i.mean()).clamp(min=torch.finfo(torch.float32).tiny)


@contextmanager
def _squares(matrices: Mapping[str, nn.Linear]) -> Iterator[dict[str, Tensor]]:
    """Yield the mean squares of each matrix's inputs, [inputs], summed over the model's calls."""
    squares: dict[str, Tensor] = {}

    def measure(name: str, hidden: Tensor) -> None:
        mean = hidden.flatten(0, -2).square().mean(dim=0)
        squares[name] = squares[name] + mean if name in squares else mean

    hooks = [
        matrix.register_forward_pre_hook(lambda _, given, name=name: measure(name, *given))
        for name, matrix in matrices.items()
    ]
    try:
        yield squares
    finally:
        for hook in hooks:
            hook.remove()
