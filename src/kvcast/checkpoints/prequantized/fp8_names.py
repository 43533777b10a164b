"""FP8 folders as they are published: other names of scales, and matrices of e2m1 among float8."""

import numpy as np

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.float4 import of_e2m1, of_mxfp4
from kvcast.checkpoints.prequantized.float8 import E8M0, read_fp8
from kvcast.checkpoints.prequantized.parts import Stored, bases, drop
from kvcast.errors import KvcastError

_SCALE = "_scale_inv"
_OTHER_NAMES = (".qscale_weight", ".scale")
"""Of scales: Mistral's, and DeepSeek V4's."""
_CODES = frozenset({"F8_E4M3", "I8"})
_SCALES = frozenset({"F32", "F16", "BF16"}) | E8M0
_OF_ACTIVATIONS = ".qscale_act"


def read_published_fp8(fields: Fields, stored: Stored) -> Stored:
    """Read what transformers' `Fp8Dequantize` does: int8 stands for two codes of e2m1."""
    for ending in _OTHER_NAMES:
        for base in bases(stored, ending):
            matrix = stored.get(f"{base}.weight")
            if matrix is not None and matrix.kinds & _CODES:
                stored[f"{base}.weight{_SCALE}"] = stored.pop(f"{base}{ending}")
    for base in bases(stored, _SCALE):
        scale, codes = stored[f"{base}{_SCALE}"], stored.get(base)
        if not scale.kinds & _SCALES:
            kind = ", ".join(sorted(scale.kinds))
            raise KvcastError(f"{fields.label}: matrix {base} has scales of {kind}, not F32")
        if codes is not None and "I8" in codes.kinds:
            del stored[f"{base}{_SCALE}"]
            stored[base] = _of_pairs(codes, scale, f"{fields.label}: matrix {base}")
    drop(stored, _OF_ACTIVATIONS)
    return read_fp8(fields, stored)


def _of_pairs(codes: StoredTensor, scale: StoredTensor, label: str) -> StoredTensor:
    if scale.kinds & E8M0:
        return of_mxfp4(codes, scale, label)
    return of_e2m1(codes, scale.read().astype(np.float32), label)
