"""Activation ranges of random tokens, and SmoothQuant, which moves outlier channels into weights.

Ranges and outlier channels depend on the weights more than on the text, so random tokens suffice.
SmoothQuant (Xiao et al., arXiv:2211.10438) does not change a model's results.

The output of each norm is divided by a factor per channel, and the matrices that read it (two where
parallel blocks share a norm) are multiplied by the same factor, so no computation is added (section
4).

SmolLM2-135M on 2,048 tokens of English, prefilled in chunks of 512: perplexity 9.21 in fp32; 10.9
with all products in int8 and one scale for their input; 9.58 with the feed-forward's second product
in blocks; 9.28 with smoothing as well. Ranges of an English text gave the same within half a
percent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import KEY_VALUE, empty_caches
from kvcast.families.table import family_with
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Constant, Program

Float32 = NDArray[np.float32]

_COUNT = 256
_WORDS = 2**32


class Activations(NamedTuple):
    results: Mapping[str, Float32]
    caches: list[tuple[Float32, Float32]]


def run_random_tokens(
    decode: Program, reference: Reference, widths: Mapping[str, int] | None = None
) -> Activations:
    """Decode one row of random tokens; `widths` are those of the results that are kept."""
    dimensions: Any = reference.dimensions
    count = min(_COUNT, dimensions.max_positions)
    # NumPy's legacy generator, whose stream is guaranteed not to change.
    words = np.random.RandomState(0).randint(_WORDS, size=count, dtype=np.uint32)
    caches = empty_caches(family_with(dimensions).caches(dimensions), count)
    inputs = {
        "tokens": (words % dimensions.vocab_size).astype(np.int64)[None],
        "lengths": np.zeros(1, np.int32),
        # All positions go through all of the last layer, so that each step's result is whole.
        "offsets": np.arange(count),
        **caches,
    }
    results = {
        name: np.empty((1, count, width), np.float32) for name, width in (widths or {}).items()
    }
    reference.run(decode, inputs, results)
    keys, values = (
        [cache for name, cache in caches.items() if name.startswith(f"past_{part}_")]
        for part in KEY_VALUE
    )
    return Activations(results, list(zip(keys, values, strict=True)))


# SmoothQuant's migration strength, from activations to weights: 0 none, 1 all.
_STRENGTH = 0.65
_LEAST = 1e-5


def smooth(
    decode: Program, weights: Mapping[str, Float32], reference: Reference
) -> Iterator[tuple[str, Float32]]:
    """Yield rescaled norms and the matrices that read them; results are unchanged."""
    groups = list(_groups(decode))
    widths = {group.norm: len(weights[group.parts[0]]) for group in groups}
    inputs = run_random_tokens(decode, reference, widths).results
    for group in groups:
        magnitudes = [np.abs(weights[matrix]).max(axis=0) for matrix in group.matrices]
        magnitude_x = np.max(magnitudes, axis=0).clip(_LEAST)
        input_x = np.abs(inputs[group.norm]).max(axis=(0, 1)).clip(_LEAST)
        ratios_x = input_x**_STRENGTH / magnitude_x ** (1 - _STRENGTH)
        # A factor common to all channels would smooth nothing.
        factors_x = ratios_x / np.exp(np.log(ratios_x).mean())
        for name in group.parts:
            yield name, weights[name] / factors_x
        for name in group.matrices:
            yield name, weights[name] * factors_x


class _Group(NamedTuple):
    """A norm's result, its gain and bias, and the matrices that multiply it."""

    norm: str
    parts: Sequence[str]
    matrices: Sequence[str]


def _groups(decode: Program) -> Iterator[_Group]:
    """Yield norms that only matrices read, except for the head's."""
    head = decode.last_product("logits")
    for step in decode.steps:
        readers = [other for other in decode.steps if step.name in other.reads]
        if step.operation not in ("rms_norm", "layer_norm") or not readers or head in readers:
            continue
        if all(reader.operation == "linear" for reader in readers):
            parts = [part.name for part in step.arguments if isinstance(part, Constant)]
            yield _Group(step.name, parts, [reader.arguments[1].name for reader in readers])
