"""bitsandbytes 0.50: nf4 and fp4, double-quantized or not, and int8."""

import json
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.integer_codes import (
    nibbles,
    of_int8,
    require_finite,
    rows_of,
)
from kvcast.checkpoints.prequantized.parts import Parts, Stored, bases
from kvcast.spec.stored_matrices import BLOCK, Encoding, FileRows

_STATE = "quant_state.bitsandbytes__"
_NESTED = "nested_blocksize"
_STEP = 0.007874015718698502
"""Of a row's largest magnitude, as the library multiplies it."""


_NF4 = np.array(
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
        *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
        *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
        *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    np.float32,
)
"""The library's create_normal_map."""


def read_bitsandbytes(fields: Fields, stored: Stored) -> Stored:
    for name in [name for name in stored if f".{_STATE}" in name]:
        base, _, kind = name.partition(f".{_STATE}")
        parts = Parts(stored, base, fields.label)
        stored[base] = parts.whole(_of_table(parts, f"{_STATE}{kind}"))
    for base in bases(stored, ".SCB"):
        parts = Parts(stored, base, fields.label)
        codes = parts.matrix("weight", "I8")
        scales = parts.floats("SCB", codes.shape[:1])[:, None] * np.float32(_STEP)
        stored.pop(f"{base}.weight_format", None)
        stored[f"{base}.weight"] = parts.whole(of_int8(parts.label, codes, scales))
    return stored


def _of_table(parts: Parts, state_name: str) -> StoredTensor:
    """Codes of one of 16 numbers, the high half of a byte first, in blocks across rows."""
    state = _state(parts, state_name)
    packed = parts.stored.pop(parts.base, None)
    if packed is None:
        raise parts.error("it has no codes: fetch the folder again")
    parts.taken += packed.nbytes
    shape, size = _shape(state), state.whole("blocksize")
    count = math.prod(shape)
    if "U8" not in packed.kinds or packed.nbytes != -(-count // 2):
        raise parts.error(f"{packed.nbytes} bytes do not hold {count} codes of 4 bits")
    table = parts.floats("quant_map", (16,)).astype(np.float32)
    scales = _scales(parts, state, -(-count // size))
    require_finite(table, parts.label)
    require_finite(scales, parts.label)

    def codes() -> NDArray[np.uint8]:
        pairs = packed.read().reshape(-1)
        return np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(-1)[:count]

    def read() -> NDArray[np.float32]:
        numbers = table[codes()]
        numbers *= scales.repeat(min(size, count))[:count]
        return numbers.reshape(shape)

    def rows() -> FileRows:
        groups = np.ascontiguousarray(scales.repeat(size // BLOCK)[: count // BLOCK, None], "<f4")
        raw = np.hstack([groups.view(np.uint8), nibbles(codes().reshape(-1, BLOCK))]).reshape(-1)
        return rows_of(packed, raw, shape, Encoding.NF4)

    stored = StoredTensor(shape=shape, read=read, kinds=frozenset({"codes"}), nbytes=packed.nbytes)
    if shape[1] % BLOCK or size % BLOCK or not np.array_equal(table, _NF4):
        return stored
    return replace(stored, rows=rows, kinds=frozenset({Encoding.NF4.name}))


def _state(parts: Parts, name: str) -> Fields:
    try:
        values = json.loads(parts.take(name, "U8").read().tobytes())
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise parts.error(f"{name} is no JSON object")
    return Fields(values=values, label=parts.label)


def _shape(state: Fields) -> tuple[int, ...]:
    match state.values.get("shape"):
        case [int() as outputs, int() as inputs] if outputs > 0 and inputs > 0:
            return outputs, inputs
    raise state.error("its state has no shape of a matrix")


def _scales(parts: Parts, state: Fields, blocks: int) -> NDArray[np.float32]:
    """Return the largest magnitude of each block."""
    if _NESTED not in state.values:
        return parts.floats("absmax", (blocks,)).astype(np.float32)
    size, offset = state.whole(_NESTED), state.values.get("nested_offset")
    codes = parts.take("absmax", "U8")
    if codes.shape != (blocks,) or not isinstance(offset, float):
        raise parts.error(f"absmax of shape {list(codes.shape)} is not of {blocks} blocks")
    table = parts.floats("nested_quant_map", (256,))
    nested = parts.floats("nested_absmax", (-(-blocks // size),))
    of_codes = nested.repeat(min(size, blocks))[:blocks]
    scales: NDArray[np.float32] = table[codes.read()] * of_codes + np.float32(offset)
    return scales
