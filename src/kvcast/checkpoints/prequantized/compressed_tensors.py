"""compressed-tensors 0.12 and 0.20: integers, in words or not, and float8."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float8 import block_size, of_fp8
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, of_int8, stream
from kvcast.checkpoints.prequantized.parts import MATRIX, Parts, Stored, bases, group_of


def read_compressed_tensors(fields: Fields, stored: Stored) -> Stored:
    scheme = _scheme(fields)
    for base in bases(stored, ".weight_packed"):
        stored[f"{base}.weight"] = _packed(Parts(stored, base, fields.label), scheme)
    for base in bases(stored, ".weight_scale"):
        stored[f"{base}.weight"] = _unpacked(Parts(stored, base, fields.label), scheme)
    for name in list(stored):
        if name.endswith((".input_scale", ".output_scale", ".weight_zero_point")):
            del stored[name]
    return stored


def _scheme(fields: Fields) -> Mapping[str, Any]:
    """Return the arguments of weights, which all groups share."""
    formats = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized")
    if (name := fields.values.get("format")) not in formats:
        raise fields.error(
            f"compressed-tensors of the format {str(name)[:40]!r} is not supported: one of "
            f"{', '.join(formats)}"
        )
    groups = fields.values.get("config_groups")
    given = list(groups.values()) if isinstance(groups, dict) else []
    weights = [group.get("weights") for group in given if isinstance(group, dict)]
    if not weights or not isinstance(weights[0], dict) or any(w != weights[0] for w in weights):
        raise fields.error("config_groups must quantize the weights of all groups alike")
    return weights[0]


def _packed(parts: Parts, scheme: Mapping[str, Any]) -> StoredTensor:
    packed, shape = parts.matrix("weight_packed", "I32"), parts.take("weight_shape", "I64", "I32")
    sizes = tuple(int(size) for size in shape.read().reshape(-1))
    bits = scheme.get("num_bits")
    if not isinstance(bits, int) or bits not in range(2, 9):
        raise parts.error(f"codes of {str(bits)[:10]} bits are not supported")
    if len(sizes) != MATRIX or packed.shape[0] != sizes[0]:
        raise parts.error("weight_packed and weight_shape contradict one another")
    outputs, inputs = sizes
    whole = -(-inputs // (WORD // bits))  # words, where codes do not cross them
    width = packed.shape[1]
    if width not in (whole, -(-inputs * bits // WORD)):
        raise parts.error(f"{width} words do not hold {inputs} codes of {bits} bits")

    def unpack(words: NDArray[np.uint32], count: int) -> NDArray[np.uint8]:
        if width != whole or WORD % bits == 0:
            return stream(words, bits, count)
        shifts = np.arange(WORD // bits, dtype=np.uint32) * np.uint32(bits)
        codes = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
        return codes.reshape(*words.shape[:-1], -1)[..., :count].astype(np.uint8)

    scales = _scales(parts, outputs)
    zeros: NDArray[np.uint8] | int = 1 << (bits - 1)
    if parts.has("weight_zero_point"):
        words = parts.matrix("weight_zero_point", "I32").read().view(np.uint32)
        zeros = unpack(words.T, outputs).T
        if zeros.shape != scales.shape:
            raise parts.error("weight_zero_point and weight_scale contradict one another")
    size = -(-inputs // scales.shape[1])
    return IntegerCodes(
        label=parts.label,
        shape=(outputs, inputs),
        codes=lambda: unpack(packed.read().view(np.uint32), inputs),
        range=(0, (1 << bits) - 1),
        scales=scales,
        zeros=zeros,
        group=group_of(parts, "weight_g_idx", inputs, size, scales.shape[1]),
        packed=packed,
    ).stored()


def _scales(parts: Parts, outputs: int) -> NDArray[np.floating[Any]]:
    tensor = parts.matrix("weight_scale", "F32", "F16", "BF16")
    if tensor.shape[0] != outputs or not tensor.shape[1]:
        raise parts.error(f"weight_scale has shape {list(tensor.shape)} for {outputs} outputs")
    return tensor.read()


def _unpacked(parts: Parts, scheme: Mapping[str, Any]) -> StoredTensor:
    codes = parts.matrix("weight", "I8", "F8_E4M3")
    if "F8_E4M3" in codes.kinds:
        return _float8(parts, codes, scheme)
    return of_int8(parts.label, codes, _scales(parts, codes.shape[0]))


def _float8(parts: Parts, codes: StoredTensor, scheme: Mapping[str, Any]) -> StoredTensor:
    scale, block = parts.take("weight_scale", "F32", "F16", "BF16"), None
    if scheme.get("strategy") == "block":
        block = block_size(Fields(values={}, label=parts.label), scheme.get("block_structure"))
    elif scale.shape == (codes.shape[0], 1):
        block = (1, codes.shape[1])
    return of_fp8(codes, scale, block, parts.label)
