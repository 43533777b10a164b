"""MLX 0.32: affine codes, with a scale and a least value for each group; MXFP4, NVFP4 and MXFP8.

Experts, and matrices of heads, are stacked as mlx-lm 0.32.2 does (`models/switch_layers.py`,
`models/mla.py`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np

from kvcast.checkpoints.base import StoredTensor, one_by_one
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float4 import of_mxfp4, of_nvfp4
from kvcast.checkpoints.prequantized.float8 import of_fp8
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, stream
from kvcast.checkpoints.prequantized.parts import MATRIX, Parts, Stored, bases, group_size
from kvcast.spec.stored_matrices import BLOCK

_BITS: Mapping[str, tuple[int, ...]] = {
    **{"affine": (4, 2, 3, 5, 6, 8), "mxfp4": (4,), "nvfp4": (4,), "mxfp8": (8,)},
}
"""Of each mode, the usual number first."""
_LARGEST = np.float32(448 * 6)
"""The product of the largest numbers of e4m3 and e2m1, which a `global_scale` is that of."""
_RUNS = {"mxfp4": BLOCK, "nvfp4": 16, "mxfp8": BLOCK}

_STACKS = ("switch_mlp", "experts.switch_glu", "experts")
"""Modules of a layer's experts, whose tensors have an axis of experts before the others."""
_STACKED = re.compile(
    rf"\.(?:{'|'.join(map(re.escape, _STACKS))})\.((?:gate|up|down)_proj)"
    r"\.(weight|scales|biases|global_scale|bias)$"
)
_EXPERT = re.compile(r"\.experts\.\d+\.")
_MOST_EXPERTS = 1 << 16


def experts_apart(stored: Mapping[str, StoredTensor]) -> Stored:
    """Return a matrix for each expert, by the names that most published folders give them."""
    apart = {}
    for name, tensor in stored.items():
        stack = _STACKED.search(name)
        if stack is None or not tensor.nbytes or tensor.shape[0] > _MOST_EXPERTS:
            apart[name] = tensor
            continue
        for expert, part in enumerate(one_by_one(tensor)):
            apart[f"{name[: stack.start()]}.experts.{expert}.{stack[1]}.{stack[2]}"] = part
    return apart


def read_mlx(fields: Fields, stored: Stored) -> Stored:
    for base in bases(stored, ".scales"):
        # Of one layer, in place of all that is said of the others.
        names = (base, *(_EXPERT.sub(f".{stack}.", base) for stack in _STACKS))
        own = next((own for name in names if (own := fields.values.get(name))), None)
        of_layer = Fields(values=own, label=fields.label) if isinstance(own, dict) else fields
        parts = Parts(stored, base, fields.label)
        stored[f"{base}.weight"] = parts.whole(_matrices(parts, of_layer))
    return stored


def _matrices(parts: Parts, fields: Fields) -> StoredTensor:
    """Return a matrix, or one for each head."""
    packed = parts.stored.get(f"{parts.base}.weight")
    if packed is None or len(packed.shape) == MATRIX or not packed.nbytes:
        return _matrix(parts, fields)
    *outer, _ = packed.shape
    for part in ("weight", "scales", "biases"):
        if tensor := parts.stored.get(f"{parts.base}.{part}"):
            parts.stored[f"{parts.base}.{part}"] = _as_matrix(tensor)
    matrix = _matrix(parts, fields)
    shape = (*outer, matrix.shape[1])
    return replace(matrix, shape=shape, read=lambda: matrix.read().reshape(shape))


def _as_matrix(tensor: StoredTensor) -> StoredTensor:
    shape = (prod(tensor.shape[:-1]), *tensor.shape[-1:])
    return replace(tensor, shape=shape, read=lambda: tensor.read().reshape(shape))


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
            factor = parts.floats("global_scale", ()) / _LARGEST if parts.has("global_scale") else 1
            return of_nvfp4(packed, scales.read(), parts.label, factor=float(factor))
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
