"""Reads ggml's blocks as codes, scales and least values, exactly where their layout allows it.

The layouts, from ggml's ggml-common.h; a half is a float16, a nibble 4 bits:

    Q8_0, 32 numbers:  half scale, 32 int8 codes
    Q4_0, 32 numbers:  half scale, 16 bytes: low nibbles are numbers 0 .. 15, high ones 16 .. 31;
                       code 8 stands for 0
    Q4_1, 32 numbers:  half scale, half least value, then as Q4_0
    Q4_K, 256 numbers: half scale, half least value, 8 scales and 8 least values in 6 bits each, in
                       12 bytes, that those are multiplied by; 128 bytes: each 32 hold two blocks

Knows nothing of files and of the use of matrices.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.stored_matrices import BLOCK, CodedMatrix, rounded

Bytes = NDArray[np.uint8]
_HALF = 2
_ZERO = np.float32(8)  # the code of 0 in Q4_0
_SCALES = 12  # bytes of a Q4_K's scales


def read_blocks(
    kind: str, raw: Bytes, shape: tuple[int, ...], numbers: Callable[[], NDArray[Any]]
) -> CodedMatrix:
    """Return a matrix of this GGML type as blocks.

    Q8_0, Q4_0 and Q4_1 are exact. The scales and least values of Q4_K are products that become
    halves. Other types become int8, from the `numbers` that they stand for.
    """
    if kind not in _READERS:
        return rounded(np.asarray(numbers(), np.float32))
    outputs, inputs = shape
    with np.errstate(all="ignore"):  # a damaged scale may be anything
        codes, scales, least = _READERS[kind](raw.reshape(outputs, -1))
    return CodedMatrix(
        codes=codes.reshape(shape),
        scales=scales.reshape(outputs, inputs // BLOCK),
        least=None if least is None else least.reshape(outputs, inputs // BLOCK),
    )


_Parts = tuple[NDArray[Any], NDArray[np.float16], NDArray[np.float16] | None]


def _q8_0(raw: Bytes) -> _Parts:
    blocks = raw.reshape(-1, _HALF + BLOCK)
    return blocks[:, _HALF:].view(np.int8), _half(blocks, 0), None


def _q4_0(raw: Bytes) -> _Parts:
    blocks = raw.reshape(-1, _HALF + BLOCK // 2)
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, _HALF:]), scales, (-_ZERO * scales).astype(np.float16)


def _q4_1(raw: Bytes) -> _Parts:
    blocks = raw.reshape(-1, 2 * _HALF + BLOCK // 2)
    return _nibbles(blocks[:, 2 * _HALF :]), _half(blocks, 0), _half(blocks, _HALF)


def _q4_k(raw: Bytes) -> _Parts:
    from gguf.quants import Q4_K

    blocks = raw.reshape(-1, 2 * _HALF + _SCALES + 128)
    codes = blocks[:, 2 * _HALF + _SCALES :].reshape(len(blocks), 4, 32)
    parts, lowest = Q4_K.get_scale_min(blocks[:, 2 * _HALF : 2 * _HALF + _SCALES])
    scales = _half(blocks, 0).astype(np.float32)[:, None] * parts
    least = -_half(blocks, _HALF).astype(np.float32)[:, None] * lowest
    nibbles = np.stack([codes & 15, codes >> 4], axis=2)
    return nibbles, scales.astype(np.float16), least.astype(np.float16)


def _half(blocks: Bytes, first: int) -> NDArray[np.float16]:
    """Return a half of each block."""
    return np.ascontiguousarray(blocks[:, first : first + _HALF]).view("<f2")[:, 0]


def _nibbles(codes: Bytes) -> Bytes:
    return np.concatenate([codes & 15, codes >> 4], axis=1)


_READERS: Mapping[str, Callable[[Bytes], _Parts]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
}
