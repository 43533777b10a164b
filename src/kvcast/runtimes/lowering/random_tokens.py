"""Runs a decoder-only model in fp32 on tokens that need no data, to see how large activations get.

That depends on the weights more than on the text, and so does which channels stand out, so random
tokens do for ranges. Knows no runtime.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import cache_names
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Program

_COUNT = 256
_WORDS = 2**32

Float32 = NDArray[np.float32]


class Activations(NamedTuple):
    """The activations of one row.

    Attributes:
        results: [1, positions, width] of steps, by their names.
        caches: keys and values [1, kv_heads, positions, d] of each layer.

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
    shape = (1, dimensions.kv_heads, count, dimensions.head_dim)
    names = cache_names("past", len(dimensions.windows))
    caches = [np.zeros(shape, np.float32) for _ in names]
    inputs = {
        "tokens": (words % dimensions.vocab_size).astype(np.int64)[None],
        "lengths": np.zeros(1, np.int32),
        # All positions go through all of the last layer, so that each step's result is whole.
        "offsets": np.arange(count),
        **dict(zip(names, caches, strict=True)),
    }
    results = {
        name: np.empty((1, count, width), np.float32) for name, width in (widths or {}).items()
    }
    reference.run(decode, inputs, results)
    return Activations(results, list(zip(caches[::2], caches[1::2], strict=True)))
