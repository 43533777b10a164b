"""Matrices as bundles store them: their names, and their tiles for a machine.

A bundle holds the form that suits every processor: a matrix of floats, or codes with their scales
and least values (`kvcast.spec.stored_matrices`). Knows no bundle and no program.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.native.building import Experts, Matrix
from kvcast.runtimes.native.library import Format, Machine
from kvcast.spec.stored_matrices import BLOCK

CODES, SCALES, LEAST = ".codes", ".scales", ".least"
"""Suffixes of the names of a quantised matrix's parts."""

BIAS = ".bias"
OPERATORS = "1"
"""The version of operators.hpp."""

MATRIX, EXPERTS = f".matrix_{OPERATORS}", f".experts_{OPERATORS}"
"""Suffix in compiled programs: the words of a matrix, or of one for each expert."""

Tensors = Mapping[str, NDArray[Any]]


def packed_matrix(machine: Machine, tensors: Tensors, name: str, bias: str | None = None) -> Matrix:
    """Pack a matrix with its bias; ValueError or KeyError for tensors that do not fit."""
    format_, codes, scales, inputs = _stored(tensors, name)
    added = None if bias is None else tensors[bias]
    if added is not None and (added.dtype != np.float32 or added.shape != (len(codes),)):
        raise ValueError(f"{bias} does not fit {name}")
    return Matrix(format_, len(codes), inputs, machine.pack(format_, codes, scales, added, inputs))


def packed_experts(machine: Machine, tensors: Tensors, name: str) -> Experts:
    """Pack a matrix for each expert; ValueError or KeyError for tensors that do not fit."""
    parts = {
        name + part: tensors[name + part]
        for part in ("", CODES, SCALES, LEAST)
        if name + part in tensors
    }
    return Experts.of(
        [
            packed_matrix(machine, dict(zip(parts, of_one, strict=True)), name)
            for of_one in zip(*parts.values(), strict=True)
        ]
    )


def _stored(
    tensors: Tensors, name: str
) -> tuple[Format, NDArray[Any], NDArray[np.float32] | None, int]:
    """Return a matrix's format, codes, scales and inputs; ValueError if they do not fit."""
    if name in tensors:
        codes = _checked(tensors, name, np.float32, (None, None))
        return Format.F32, codes, None, codes.shape[1]
    scales = tensors[name + SCALES]
    if name + LEAST in tensors:
        codes = _checked(tensors, name + CODES, np.uint8, (None, None))
        inputs = 2 * codes.shape[1]
        shape = (len(codes), -(-inputs // BLOCK))
        parts = [_checked(tensors, name + part, np.float16, shape) for part in (SCALES, LEAST)]
        return Format.INT4_MIN, codes, np.stack(parts).astype(np.float32), inputs
    codes = _checked(tensors, name + CODES, np.int8, (None, None))
    outputs, inputs = codes.shape
    if scales.ndim == 1:
        scales = _checked(tensors, name + SCALES, np.float32, (outputs,))
        return Format.INT8, codes, scales, inputs
    scales = _checked(tensors, name + SCALES, np.float16, (outputs, -(-inputs // BLOCK)))
    return Format.INT8_BLOCK, codes, scales.astype(np.float32), inputs


def _checked(
    tensors: Tensors, name: str, dtype: Any, shape: tuple[int | None, ...]
) -> NDArray[Any]:
    """Return a tensor of these sizes; None allows any. The library reads it unchecked."""
    tensor = tensors[name]
    fits = tensor.ndim == len(shape) and all(
        size > 0 if wanted is None else size == wanted
        for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype != dtype:
        raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, which does not fit")
    return tensor
