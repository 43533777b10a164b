"""HQQ 0.2.8, as `HQQLinear.state_dict` encodes it for safetensors, and transformers before 5."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, require_finite
from kvcast.checkpoints.prequantized.parts import MATRIX, Parts, Stored, bases

_CODES = "W_q"
_PACKINGS: Mapping[str, int] = {
    "8bit_u8": 8,
    "4bit_u8": 4,
    "3bit_32": 3,
    "2bit_u8": 2,
    "1bit_u8": 1,
}
"""Bits of a code; of 3, a word has ten, and others fill bytes."""
_UNUSED = (
    *("nbits", "unpack_view_dtype", "quant_scale", "quant_zero", "compute_dtype", "offload_meta"),
    *("view_as_float", "encoded_state_dict", "stores_quant_config", "channel_wise", "optimize"),
    "round_zero",
)
_LARGEST_ZERO = 1 << 15
"""Of zero points that are counted in codes."""


def read_hqq(fields: Fields, stored: Stored) -> Stored:
    """Read (code - zero) * scale, in groups of a matrix that is reshaped.

    To [-1, size] with one scale for a row (axis 1), or to [size, -1] with one for a column (axis
    0). Zero points are floats; where all of a matrix are whole, its codes are kept.
    """
    for base in bases(stored, f".{_CODES}"):
        parts = Parts(stored, base, fields.label)
        stored[f"{base}.weight"] = parts.whole(_matrix(parts))
    return stored


def _matrix(parts: Parts) -> StoredTensor:
    packed = parts.matrix(_CODES, "U8", "I32", "F16", "BF16", "F32")
    bits = _PACKINGS.get(parts.take("packing", "U8").read().tobytes().decode("latin-1"), 0)
    if not bits:
        raise parts.error("codes of this packing are not supported")
    sizes = [int(size) for size in parts.take("shape", "I64").read().reshape(-1)]
    if len(sizes) != MATRIX or min(sizes) < 1:
        raise parts.error("shape is not that of a matrix")
    outputs, inputs = sizes
    axis, size = _number(parts, "axis"), _number(parts, "group_size")
    if axis not in (0, 1) or size < 1 or outputs * inputs % size:
        raise parts.error(f"groups of {size} by axis {axis} do not divide {outputs} x {inputs}")
    groups = outputs * inputs // size
    rows, columns = (groups, size) if axis else (size, groups)
    of_groups = (groups, 1) if axis else (1, groups)
    each = WORD // bits if bits == 3 else 8 // bits
    width = WORD // 8 if bits == 3 else 1  # bytes
    if packed.shape[0] != -(-rows // each) or packed.nbytes != packed.shape[0] * columns * width:
        raise parts.error(
            f"W_q of shape {list(packed.shape)} does not hold {outputs} x {inputs} codes of "
            f"{bits} bits"
        )
    scales, zeros = (parts.floats(name, of_groups) for name in ("scale", "zero"))
    require_finite(scales, parts.label)
    require_finite(zeros, parts.label)
    parts.leave_out(*_UNUSED)

    def codes() -> NDArray[np.uint8]:
        """Return those of all rows; the first of a byte or word are of the first rows."""
        stacked = _raw(packed).view("<u4" if bits == 3 else "u1").reshape(-1, columns)
        shifts = np.arange(each, dtype=stacked.dtype)[::-1] * stacked.dtype.type(bits)
        apart = stacked[None] >> shifts[:, None, None] & stacked.dtype.type((1 << bits) - 1)
        flat: NDArray[np.uint8] = apart.reshape(-1, columns)[:rows].astype(np.uint8, copy=False)
        return flat

    if axis and inputs % size == 0 and _are_whole(zeros):
        return IntegerCodes(
            label=parts.label,
            shape=(outputs, inputs),
            codes=lambda: codes().reshape(outputs, inputs),
            range=(0, (1 << bits) - 1),
            scales=scales.reshape(outputs, -1),
            zeros=zeros.astype(np.int64).reshape(outputs, -1),
            group=size,
            packed=packed,
        ).stored()

    def read() -> NDArray[np.float32]:
        numbers: NDArray[np.float32] = codes().astype(np.float32)
        numbers -= zeros
        numbers *= scales
        return numbers.reshape(outputs, inputs)

    return StoredTensor(
        shape=(outputs, inputs), read=read, kinds=frozenset({"codes"}), nbytes=packed.nbytes
    )


def _number(parts: Parts, name: str) -> int:
    tensor = parts.take(name, "I32")
    if tensor.shape not in ((), (1,)):
        raise parts.error(f"{name} is not a number")
    return int(tensor.read().reshape(-1)[0])


def _are_whole(zeros: NDArray[np.floating]) -> bool:
    return bool((np.abs(zeros) < _LARGEST_ZERO).all() and (zeros == np.rint(zeros)).all())


def _raw(packed: StoredTensor) -> NDArray[np.uint8]:
    """Return the bytes, of which files may have made floats (`view_as_float`)."""
    numbers = np.ascontiguousarray(packed.read())
    if "BF16" in packed.kinds:  # read as the upper half of float32
        numbers = (numbers.view("<u4") >> np.uint32(16)).astype("<u2")
    return numbers.view(np.uint8)
