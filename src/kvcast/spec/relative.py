"""Maps distances to the buckets of T5's relative position bias.

Raffel et al. 2020, arXiv:1910.10683, section 2.1, by the formula of mesh-tensorflow: short
distances have a bucket each, longer ones share logarithmically growing buckets, and from some
distance on all share one. Knows nothing of the bias itself, of heads or of caches.
"""

import math

import numpy as np
from numpy.typing import NDArray


def bucket_of(
    distances: NDArray[np.int64], buckets: int, max_distance: int, *, bidirectional: bool
) -> NDArray[np.int64]:
    """Return the bucket, 0 .. buckets - 1, of each distance; same shape.

    Args:
        distances: key position minus query position, any shape.
        buckets: how many there are; a multiple of 4.
        max_distance: from this distance on, all share a bucket; above buckets / 2.
        bidirectional: whether keys after the query have half of the buckets, as in an encoder. If
            not, they count as distance 0, since a causal mask hides them anyway.

    """
    buckets //= 2 if bidirectional else 1
    far = np.abs(distances) if bidirectional else -np.minimum(distances, 0)
    exact = buckets // 2
    # In float32 throughout, as in mesh-tensorflow and transformers: rounding decides where the
    # logarithm falls on the border of two buckets.
    ratio = np.maximum(far, exact).astype(np.float32) / np.float32(exact)
    scaled = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(exact)
    shared = np.minimum(exact + scaled.astype(np.int64), buckets - 1)
    numbers: NDArray[np.int64] = np.where(far < exact, far, shared)
    return numbers + buckets * (distances > 0) if bidirectional else numbers
