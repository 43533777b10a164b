"""GPTQ (GPTQModel 7.7) and AWQ (AutoAWQ 0.2.9, AutoRound 0.16.1), whose codes fill words."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.prequantized.integer_codes import WORD, IntegerCodes, stream
from kvcast.checkpoints.prequantized.parts import Parts, Stored, bases, group_of, group_size

_BITS = (2, 3, 4, 8)


def read_gptq(fields: Fields, stored: Stored) -> Stored:
    bits, group = fields.whole("bits"), fields.values.get("group_size", -1)
    if bits not in _BITS:
        raise fields.error(f"GPTQ of {bits} bits is not supported: {_one_of(_BITS)}")
    version = fields.values.get("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise fields.error(f"checkpoint_format {str(version)[:40]!r} is not supported")
    for base in bases(stored, ".qweight"):
        parts = Parts(stored, base, fields.label)
        packed = parts.matrix("qweight", "I32")
        inputs, outputs = packed.shape[0] * WORD // bits, packed.shape[1]
        size = group_size(fields, group, inputs)
        groups = -(-inputs // size)
        zeros = _zeros(parts, bits, (groups, outputs), less_one=version == "gptq")
        codes = IntegerCodes(
            label=parts.label,
            shape=(outputs, inputs),
            codes=_columns(packed, bits, inputs),
            range=(0, (1 << bits) - 1),
            scales=parts.floats("scales", (groups, outputs)).T,
            zeros=zeros.T,
            group=group_of(parts, "g_idx", inputs, size, groups),
            packed=packed,
        )
        stored[f"{base}.weight"] = parts.whole(codes.stored())
    return stored


def _one_of(values: tuple[int, ...]) -> str:
    return f"one of {', '.join(map(str, values))}"


def _columns(packed: StoredTensor, bits: int, count: int) -> Callable[[], NDArray[np.uint8]]:
    """Read codes [outputs, count] that run down the rows of words [n, outputs]."""
    return lambda: stream(packed.read().view(np.uint32).T, bits, count)


def _zeros(parts: Parts, bits: int, shape: tuple[int, int], *, less_one: bool) -> NDArray[np.uint8]:
    tensor = parts.take("qzeros", "I32")
    if tensor.shape != (shape[0], -(-shape[1] * bits // WORD)):
        raise parts.error(f"qzeros has shape {list(tensor.shape)} for {list(shape)} zero points")
    words = tensor.read().view(np.uint32)
    whole = WORD % bits == 0
    if less_one and whole:
        # One is taken from all fields of a word together, so that a 0 borrows from the next.
        ones = sum(1 << at for at in range(0, WORD, bits))
        words = words + np.uint32(ones)
    zeros = stream(words, bits, shape[1])
    return (zeros + 1) % (1 << bits) if less_one and not whole else zeros


_AWQ_BITS = (4, 5, 6, 7)
"""Other than 4 is AutoRound's."""
_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The code that each of eight outputs has."""


def read_awq(fields: Fields, stored: Stored) -> Stored:
    bits, version = fields.whole("bits", 4), str(fields.values.get("version", "gemm")).lower()
    if bits not in _AWQ_BITS or version != "gemm":
        raise fields.error("AWQ other than gemm of 4 to 7 bits is not supported")
    for base in bases(stored, ".qweight"):
        parts = Parts(stored, base, fields.label)
        packed = parts.matrix("qweight", "I32")
        inputs, outputs = packed.shape[0], packed.shape[1] * WORD // bits
        if packed.shape[1] * WORD % (bits * len(_AWQ_ORDER)):
            raise parts.error(f"{packed.shape[1]} words hold no eights of codes of {bits} bits")
        size = group_size(fields, fields.values.get("group_size", 128), inputs)
        groups = -(-inputs // size)
        zeros = parts.take("qzeros", "I32")
        if zeros.shape != (groups, packed.shape[1]):
            raise parts.error(f"qzeros has shape {list(zeros.shape)} for {groups} groups")
        codes = IntegerCodes(
            label=parts.label,
            shape=(outputs, inputs),
            codes=lambda packed=packed: _interleaved(packed, bits).T,  # type: ignore[misc]
            range=(0, (1 << bits) - 1),
            scales=parts.floats("scales", (groups, outputs)).T,
            zeros=_interleaved(zeros, bits).T,
            group=size,
            packed=packed,
        )
        stored[f"{base}.weight"] = parts.whole(codes.stored())
    return stored


def _interleaved(packed: StoredTensor, bits: int) -> NDArray[np.uint8]:
    rows, words = packed.shape
    codes = stream(packed.read().view(np.uint32), bits, words * WORD // bits)
    return codes.reshape(rows, -1, len(_AWQ_ORDER))[..., _AWQ_ORDER].reshape(rows, -1)
