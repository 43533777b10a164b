"""compressed-tensors 0.12 and 0.20: integers, in words or not, float8 and e2m1."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float4 import of_mxfp4, of_nvfp4
from kvcast.checkpoints.prequantized.float8 import block_size, of_fp8
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, of_int8, stream
from kvcast.checkpoints.prequantized.parts import (
    MATRIX,
    Parts,
    Stored,
    bases,
    drop,
    group_of,
    group_size,
)
from kvcast.spec.stored_matrices import BLOCK

_UNUSED = (".input_scale", ".output_scale", ".input_global_scale", ".weight_zero_point")
"""Of activations, and of symmetric codes."""
_WITH_ZEROS = ("pack-quantized", "int-quantized")


def read_compressed_tensors(fields: Fields, stored: Stored) -> Stored:
    schemes = _schemes(fields)
    for base in bases(stored, ".weight_packed"):
        parts = Parts(stored, base, fields.label)
        stored[f"{base}.weight"] = parts.whole(_of_format(parts, _format_of_packed(parts), schemes))
    for base in bases(stored, ".weight_scale"):
        parts = Parts(stored, base, fields.label)
        stored[f"{base}.weight"] = parts.whole(_of_format(parts, _format_of_whole(parts), schemes))
    drop(stored, _UNUSED)
    return stored


def _schemes(fields: Fields) -> Mapping[str, Mapping[str, Any]]:
    """Return the arguments of weights by format; groups of one format share them."""
    for name in ("transform_config", "sparsity_config"):
        given = fields.group(name)
        if given and given.values.get("format") != "dense" and given.values:
            raise fields.error(f"{name} is not supported: save the model without it")
    groups = fields.values.get("config_groups")
    schemes: dict[str, Mapping[str, Any]] = {}
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if weights is None:
            continue
        format_ = str(group.get("format") or fields.values.get("format"))
        if format_ not in _READERS:
            raise fields.error(
                f"compressed-tensors of the format {format_[:40]!r} is not supported: one of "
                f"{', '.join(_READERS)}"
            )
        if not isinstance(weights, dict) or schemes.setdefault(format_, weights) != weights:
            raise fields.error("config_groups must quantize the weights of a format alike")
    if not schemes:
        raise fields.error("config_groups must quantize weights")
    return schemes


def _format_of_packed(parts: Parts) -> str:
    if not parts.is_of("weight_packed", "U8"):
        return "pack-quantized"
    has_factor = parts.has("weight_global_scale")
    return "nvfp4-pack-quantized" if has_factor else "mxfp4-pack-quantized"


def _format_of_whole(parts: Parts) -> str:
    if parts.is_of("weight_scale", "U8"):
        return "mxfp8-quantized"
    return "float-quantized" if parts.is_of("weight", "F8_E4M3") else "int-quantized"


def _of_format(
    parts: Parts, format_: str, schemes: Mapping[str, Mapping[str, Any]]
) -> StoredTensor:
    scheme = schemes.get(format_)
    if scheme is None and format_ in ("int-quantized", "float-quantized"):
        scheme = schemes.get("naive-quantized")
    if scheme is None:
        raise parts.error(f"it is {format_}, but config_groups have only {', '.join(schemes)}")
    if scheme.get("symmetric") is False and format_ not in _WITH_ZEROS:
        raise parts.error(f"{format_} with zero points is not supported")
    return _READERS[format_](parts, scheme)


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
    size = group_size(Fields(values={}, label=parts.label), scheme.get("group_size") or -1, inputs)
    if -(-inputs // size) != scales.shape[1]:
        raise parts.error(f"weight_scale has shape {list(scales.shape)} for groups of {size}")
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


def _int8(parts: Parts, _: Mapping[str, Any]) -> StoredTensor:
    codes = parts.matrix("weight", "I8")
    scales, zeros = _scales(parts, codes.shape[0]), None
    if parts.has("weight_zero_point"):
        zeros = parts.matrix("weight_zero_point", "I8").read()
    return of_int8(parts.label, codes, scales, zeros)


def _float8(parts: Parts, scheme: Mapping[str, Any]) -> StoredTensor:
    codes = parts.matrix("weight", "F8_E4M3")
    scale, block = parts.take("weight_scale", "F32", "F16", "BF16"), None
    if scheme.get("strategy") == "block":
        block = block_size(Fields(values={}, label=parts.label), scheme.get("block_structure"))
    elif scale.shape == (codes.shape[0], 1):
        block = (1, codes.shape[1])
    return of_fp8(codes, scale, block, parts.label)


def _mxfp8(parts: Parts, _: Mapping[str, Any]) -> StoredTensor:
    codes, powers = parts.matrix("weight", "F8_E4M3"), parts.matrix("weight_scale", "U8")
    return of_fp8(codes, powers, (1, BLOCK), parts.label)


def _mxfp4(parts: Parts, _: Mapping[str, Any]) -> StoredTensor:
    packed = parts.matrix("weight_packed", "U8")
    return of_mxfp4(packed, parts.matrix("weight_scale", "U8", "F8_E8M0"), parts.label)


def _nvfp4(parts: Parts, _: Mapping[str, Any]) -> StoredTensor:
    packed, scales = parts.matrix("weight_packed", "U8"), parts.matrix("weight_scale", "F8_E4M3")
    divisor = parts.floats("weight_global_scale", (1,)).astype(np.float32)
    return of_nvfp4(packed, scales.read(), parts.label, divisor=divisor.item())


_READERS: Mapping[str, Callable[[Parts, Mapping[str, Any]], StoredTensor]] = {
    "pack-quantized": _packed,
    "int-quantized": _int8,
    "float-quantized": _float8,
    "naive-quantized": _int8,
    "nvfp4-pack-quantized": _nvfp4,
    "mxfp4-pack-quantized": _mxfp4,
    "mxfp8-quantized": _mxfp8,
}
