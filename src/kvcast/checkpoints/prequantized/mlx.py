"""MLX 0.32's affine codes: a scale and a least value for each group."""

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, stream
from kvcast.checkpoints.prequantized.parts import Parts, Stored, bases, group_size


def read_mlx(fields: Fields, stored: Stored) -> Stored:
    bits, mode = fields.whole("bits"), fields.values.get("mode", "affine")
    if bits not in (2, 3, 4, 5, 6, 8) or mode != "affine":
        raise fields.error(f"MLX's mode {str(mode)[:20]!r} of {bits} bits is not supported")
    for base in bases(stored, ".scales"):
        parts = Parts(stored, base, fields.label)
        packed = parts.matrix("weight", "U32")
        if packed.shape[1] * WORD % bits:
            raise parts.error(f"weight of shape {list(packed.shape)} holds no codes of {bits} bits")
        outputs, inputs = packed.shape[0], packed.shape[1] * WORD // bits
        size = group_size(fields, fields.values.get("group_size", 64), inputs)
        groups = (outputs, -(-inputs // size))
        stored[f"{base}.weight"] = IntegerCodes(
            label=parts.label,
            shape=(outputs, inputs),
            codes=lambda packed=packed, count=inputs: stream(packed.read(), bits, count),  # type: ignore[misc]
            range=(0, (1 << bits) - 1),
            scales=parts.floats("scales", groups),
            group=size,
            packed=packed,
            least=parts.floats("biases", groups),
        ).stored()
    return stored
