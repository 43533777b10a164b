"""MLX 0.32: affine codes, with a scale and a least value for each group; MXFP4, NVFP4 and MXFP8."""

from collections.abc import Mapping
from dataclasses import replace

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float4 import of_mxfp4, of_nvfp4
from kvcast.checkpoints.prequantized.float8 import of_fp8
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, stream
from kvcast.checkpoints.prequantized.parts import Parts, Stored, bases, group_size
from kvcast.spec.stored_matrices import BLOCK

_BITS: Mapping[str, tuple[int, ...]] = {
    **{"affine": (4, 2, 3, 5, 6, 8), "mxfp4": (4,), "nvfp4": (4,), "mxfp8": (8,)},
}
"""Of each mode, the usual number first."""
_RUNS = {"mxfp4": BLOCK, "nvfp4": 16, "mxfp8": BLOCK}


def read_mlx(fields: Fields, stored: Stored) -> Stored:
    for base in bases(stored, ".scales"):
        own = fields.values.get(base)  # of one layer, in place of all that is said of the others
        of_layer = Fields(values=own, label=fields.label) if isinstance(own, dict) else fields
        stored[f"{base}.weight"] = _matrix(Parts(stored, base, fields.label), of_layer)
    return stored


def _matrix(parts: Parts, fields: Fields) -> StoredTensor:
    mode = str(fields.values.get("mode", "affine"))
    bits = fields.whole("bits", _BITS.get(mode, (4,))[0])
    if bits not in _BITS.get(mode, ()):
        raise parts.error(f"MLX's mode {mode[:20]!r} of {bits} bits is not supported")
    packed = parts.matrix("weight", "U32")
    if mode == "affine":
        return _affine(parts, fields, packed, bits)
    if (size := fields.whole("group_size", _RUNS[mode])) != _RUNS[mode]:
        raise parts.error(f"groups of {size} are not supported in mode {mode}")
    scales = parts.matrix("scales", "U8")
    if scales.shape != (packed.shape[0], packed.shape[1] * WORD // bits // size):
        raise parts.error(
            f"scales has shape {list(scales.shape)} for a weight of shape {list(packed.shape)}"
        )
    match mode:
        case "mxfp4":
            return of_mxfp4(packed, scales, parts.label)
        case "nvfp4":
            return of_nvfp4(packed, scales.read(), parts.label)
    codes = replace(
        packed,
        shape=(packed.shape[0], packed.shape[1] * 4),
        read=lambda: packed.read().view("u1"),
        kinds=frozenset({"F8_E4M3"}),
    )
    return of_fp8(codes, scales, (1, BLOCK), parts.label)


def _affine(parts: Parts, fields: Fields, packed: StoredTensor, bits: int) -> StoredTensor:
    if packed.shape[1] * WORD % bits:
        raise parts.error(f"weight of shape {list(packed.shape)} holds no codes of {bits} bits")
    outputs, inputs = packed.shape[0], packed.shape[1] * WORD // bits
    size = group_size(fields, fields.values.get("group_size", 64), inputs)
    groups = (outputs, -(-inputs // size))
    return IntegerCodes(
        label=parts.label,
        shape=(outputs, inputs),
        codes=lambda: stream(packed.read(), bits, inputs),
        range=(0, (1 << bits) - 1),
        scales=parts.floats("scales", groups),
        group=size,
        packed=packed,
        least=parts.floats("biases", groups),
    ).stored()
