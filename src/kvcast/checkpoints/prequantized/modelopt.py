"""ModelOpt 0.47: FP8 with a scale for a matrix, and NVFP4."""

import numpy as np

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float4 import of_nvfp4
from kvcast.checkpoints.prequantized.float8 import of_fp8
from kvcast.checkpoints.prequantized.parts import Parts, Stored, bases, drop

_ALGORITHMS = ("FP8", "NVFP4")
_UNUSED = (".input_scale", ".k_scale", ".v_scale")
"""Of activations and caches."""


def read_modelopt(fields: Fields, stored: Stored) -> Stored:
    if (name := fields.values.get("quant_algo")) not in _ALGORITHMS:
        raise fields.error(
            f"ModelOpt's {str(name)[:40]!r} is not supported: one of {', '.join(_ALGORITHMS)}"
        )
    for base in bases(stored, ".weight_scale"):
        parts = Parts(stored, base, fields.label)
        if parts.has("pre_quant_scale"):
            raise parts.error("scales of activations are not supported: export it without them")
        stored[f"{base}.weight"] = parts.whole(_matrix(parts))
    drop(stored, _UNUSED)
    return stored


def _matrix(parts: Parts) -> StoredTensor:
    codes = parts.matrix("weight", "F8_E4M3", "U8")
    if "F8_E4M3" in codes.kinds:
        return of_fp8(codes, parts.take("weight_scale", "F32", "BF16", "F16"), None, parts.label)
    scales = parts.matrix("weight_scale", "F8_E4M3")
    factor = parts.take("weight_scale_2", "F32", "BF16", "F16").read().astype(np.float32)
    if factor.size != 1:
        raise parts.error(f"weight_scale_2 has {factor.size} numbers, not one")
    return of_nvfp4(codes, scales.read(), parts.label, factor=factor.item())
