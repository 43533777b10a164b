"""Runs a decoder-only model in fp32 on tokens that need no data, to see how large activations get.

That depends on the weights more than on the text, and so does which channels stand out, so random
tokens do for ranges. Knows no runtime.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcast.families.caches import KEY_VALUE
from kvcast.families.programs import empty_caches
from kvcast.families.table import family_with
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Program

_COUNT = 256
_WORDS = 2**32

Float32 = NDArray[np.float32]


class Activations(NamedTuple):
    """The activations of one row.

    Attributes:
        results: [1, positions, width] of steps, by their names.
        caches: keys and values [1, kv_heads, positions, d] of each layer with attention.

    """

    results: Mapping[str, Float32]
    caches: list[tuple[Float32, Float32]]


def run_random_tokens(
    decode: Program, reference: Reference, widths: Mapping[str, int] | None = None
) -> Activations:
    """Decode one row of random tokens at once; `widths` are of the steps whose results are kept."""
    dimensions: Any = reference.dimensions
    count = min(_COUNT, dimensions.max_positions)
    # NumPy's older generator, whose numbers are promised to stay the same.
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
