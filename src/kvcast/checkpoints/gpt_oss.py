"""Experts as GPT-OSS's files hold them, as [experts, outputs, inputs] with gates above up.

Files have rows of gate and up in turns. Floats are [experts, inputs, outputs]; codes of 4 bits with
a scale for 32 of them (MXFP4, of the Open Compute Project) are [experts, outputs, ...], and become
ggml's blocks, so that kernels keep them. Knows no other names.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf_file import GgufTensor
from kvcast.spec.stored_matrices import Encoding

CODES = "mxfp4"
"""The quant_method of configurations whose experts have these codes."""

_EXPERTS = ".mlp.experts."
_BLOCKS, _SCALES = "_blocks", "_scales"
_IN_TURNS = ".gate_up_proj"
_BLOCK = 32


def experts_by_rows(own: Mapping[str, StoredTensor], _: object) -> dict[str, StoredTensor]:
    """Return tensors by name, those of experts in kvcast's order; codes lose their suffixes."""
    tensors = {}
    for name, tensor in own.items():
        scales = own.get(name.removesuffix(_BLOCKS) + _SCALES)
        if _EXPERTS not in name:
            tensors[name] = tensor
        elif name.endswith(_BLOCKS) and scales is not None:
            whole = name.removesuffix(_BLOCKS)
            tensors[whole] = _of_codes(tensor, scales, whole)
        elif not name.endswith(_SCALES):
            tensors[name] = _of_floats(tensor, name)
    return tensors


def _of_floats(tensor: StoredTensor, name: str) -> StoredTensor:
    shape, is_matrix = tensor.shape, len(tensor.shape) == 3

    def read() -> NDArray[np.generic]:
        numbers = tensor.read()
        return _apart(numbers.swapaxes(1, 2) if is_matrix else numbers, name)

    turned = (shape[0], *shape[:0:-1]) if is_matrix else shape
    return replace(tensor, shape=turned, read=read, rows=None, blocks=None)


def _of_codes(blocks: StoredTensor, scales: StoredTensor, name: str) -> StoredTensor:
    if blocks.shape != (*scales.shape, _BLOCK // 2) or len(scales.shape) != 3:
        return blocks  # of a shape that no configuration asks for
    experts, outputs, groups = scales.shape
    shape = (experts, outputs, groups * _BLOCK)

    def matrix() -> StoredTensor:
        codes = blocks.read()
        numbers = np.stack([codes & 15, codes >> 4], -1).reshape(*scales.shape, _BLOCK)
        first, second = np.split(numbers, 2, -1)
        raw = np.concatenate([scales.read()[..., None], first | (second << 4)], -1)
        rows = np.ascontiguousarray(_apart(raw, name)).reshape(-1)
        stacked = (experts * outputs, shape[2])
        return GgufTensor(label=name, type=Encoding.MXFP4, shape=stacked, raw=rows).stored()

    return StoredTensor(
        shape=shape,
        read=lambda: matrix().read().reshape(shape),
        blocks=lambda: matrix().blocks(),  # type: ignore[misc]
        rows=lambda: matrix().rows(),  # type: ignore[misc]
        kinds=frozenset({Encoding.MXFP4.name}),
        nbytes=blocks.nbytes + scales.nbytes,
    )


def _apart(rows: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    """Put gates above up, along the second axis."""
    if _IN_TURNS not in name:
        return rows
    return np.concatenate([rows[:, 0::2], rows[:, 1::2]], 1)
