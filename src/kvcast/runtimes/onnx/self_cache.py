"""int8 self caches: a step reads a quarter of the bytes of past keys and values.

GroupQueryAttention quantises what it writes and reads it as int8, with one scale per channel that
is fixed in the graph. Rotary embeddings rotate pairs of a key's channels, so both channels of a
pair share a scale for the pair's length, which no rotation changes. Knows no model: the caller
gives sample keys and values.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import ProgramSignature
from kvcast.runtimes.onnx.cross_cache import Described
from kvcast.spec.program import Constant, Program

_STEPS, _LEAST = np.float32(127), np.float32(1e-5)
# Real texts may have larger activations than the random tokens that were measured.
_MARGIN = np.float32(1.2)

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Keys and values [rows, kv_heads, positions, d]."""


def quantize_self_caches(decode: Program, signature: ProgramSignature) -> Described:
    """Return `decode` over int8 self caches; `scales_of` gives the constants that it reads."""
    layers = iter(range(len(decode.steps)))
    steps = [
        replace(
            step, keywords={**step.keywords, "scales": list(map(Constant, _names(next(layers))))}
        )
        if step.operation == "self_attention"
        else step
        for step in decode.steps
    ]
    arguments = tuple(
        replace(argument, dtype="int8") if argument.name == "past" else argument
        for argument in signature.arguments
    )
    return replace(decode, steps=steps), replace(signature, arguments=arguments)


def scales_of(measured: Sequence[Layer]) -> dict[str, NDArray[np.float32]]:
    """Return the scales [kv_heads * d] of each layer's channels, from a sample text."""
    return {
        name: scales
        for i, (key, value) in enumerate(measured)
        for name, scales in zip(
            _names(i), (_scales(_pair_lengths(key)), _scales(np.abs(value))), strict=True
        )
    }


def _names(layer: int) -> list[str]:
    return [f"self_{part}_scale_{layer}" for part in ("key", "value")]


def _pair_lengths(key: NDArray[np.float32]) -> NDArray[np.float32]:
    length = np.hypot(*np.split(key, 2, axis=-1))
    return np.concatenate([length, length], axis=-1)


def _scales(magnitude: NDArray[np.float32]) -> NDArray[np.float32]:
    """[rows, kv_heads, positions, d] to [kv_heads * d]."""
    largest = np.maximum(magnitude.max(axis=(0, 2)).ravel(), _LEAST)
    scales: NDArray[np.float32] = largest * (_MARGIN / _STEPS)
    return scales
