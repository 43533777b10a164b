"""torchao 0.18 as transformers saves it: a byte for each code, of int8, int4 or float8.

And `Int4Tensor`: packed int4, two codes per byte, as FBGEMM's `int4_row_quantize_zp` quantizes and
`pack_int4` packs them.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float8 import of_fp8
from kvcast.checkpoints.prequantized.integer_codes import IntegerCodes
from kvcast.checkpoints.prequantized.parts import MATRIX, Parts, Stored, bases, drop
from kvcast.spec.stored_matrices import unpack_nibbles

_CODES, _ZEROS = "_weight_qdata", "_weight_zero_point"
_FLOATS = ("F32", "F16", "BF16")
_OF_ACTIVATIONS = ("._weight_act_quant_scale", "._weight_act_quant_zero_point")
_INTEGER = re.compile(r"int([1-8])")


def read_torchao(fields: Fields, stored: Stored) -> Stored:
    """Read tensors of Int8Tensor, IntxUnpackedToInt8Tensor, Float8Tensor and Int4Tensor.

    Those of other classes have codes of other types, or no scales by this name.
    """
    bits = _bits(fields)
    for base in bases(stored, f".{_CODES}"):
        parts = Parts(stored, base, fields.label)
        if parts.has("_weight_act_pre_scale"):
            raise parts.error("scales of activations are not supported: save it without them")
        if parts.has("_weight_scale_and_zero"):
            raise parts.error(
                "int4 in tiles is not supported: save it with int4_packing_format 'plain'"
            )
        has_floats = any(parts.is_of(_ZEROS, kind) for kind in _FLOATS)
        matrix = _pairs(parts) if has_floats else _matrix(parts, bits)
        stored[f"{base}.weight"] = parts.whole(matrix)
    drop(stored, _OF_ACTIVATIONS)
    return stored


def _bits(fields: Fields) -> int:
    """Return those of all codes; 8 where layers may differ."""
    place: Any = fields.values.get("quant_type")
    for name in ("default", "_data", "weight_dtype", "_data"):
        place = place.get(name) if isinstance(place, dict) else None
    named = _INTEGER.fullmatch(str(place))
    return int(named[1]) if named else 8


def _pairs(parts: Parts) -> StoredTensor:
    """Read signed codes, of a byte the low one first; the zero point is the value of code 0."""
    packed = parts.matrix(_CODES, "I8", "U8")
    outputs, inputs = packed.shape[0], packed.shape[1] * 2
    scale = parts.matrix("_weight_scale", *_FLOATS)
    groups = scale.shape[0]
    if scale.shape[1] != outputs or not groups or inputs % groups:
        raise parts.error(
            f"_weight_scale has shape {list(scale.shape)} for {outputs} x {inputs} codes in pairs"
        )
    zeros = parts.floats(_ZEROS, scale.shape).T
    return IntegerCodes(
        label=parts.label,
        shape=(outputs, inputs),
        codes=lambda: (unpack_nibbles(packed.read().view(np.uint8)) ^ 8).astype(np.int8) - 8,
        range=(-8, 7),
        scales=scale.read().T,
        group=inputs // groups,
        packed=packed,
        least=zeros if zeros.any() else None,
    ).stored()


def _matrix(parts: Parts, bits: int) -> StoredTensor:
    codes = parts.matrix(_CODES, "I8", "F8_E4M3")
    scale = parts.take("_weight_scale", *_FLOATS)
    outputs, inputs = codes.shape
    if "F8_E4M3" in codes.kinds:
        block = (1, inputs) if scale.shape == (outputs, 1) else None
        return of_fp8(codes, scale, block, parts.label)
    rows, groups = scale.shape if len(scale.shape) == MATRIX else (0, 0)
    if rows not in (1, outputs) or not groups or inputs % groups:
        raise parts.error(
            f"_weight_scale has shape {list(scale.shape)} for codes of shape {list(codes.shape)}"
        )
    zeros: NDArray[Any] | int = 0
    if parts.has(_ZEROS):
        zero_point = parts.take(_ZEROS, "I8")
        if zero_point.shape != scale.shape:
            raise parts.error("_weight_zero_point and _weight_scale contradict one another")
        zeros = np.broadcast_to(zero_point.read(), (outputs, groups))
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def read() -> NDArray[np.int8]:
        numbers: NDArray[np.int8] = codes.read()
        if numbers.size and (numbers.min() < least or numbers.max() > most):
            raise parts.error(f"it is damaged: a code has more than {bits} bits")
        return numbers

    return IntegerCodes(
        label=parts.label,
        shape=(outputs, inputs),
        codes=read,
        range=(least, most),
        scales=np.broadcast_to(scale.read(), (outputs, groups)),
        zeros=zeros,
        group=inputs // groups,
        packed=codes,
    ).stored()
