"""Relative position bias (Raffel et al. 2020, arXiv:1910.10683, section 2.1).

The bias added to a query's product with a key depends on the distance between them: short distances
have a value each, longer ones share buckets. One table serves all layers. Knows nothing of masks
or caches.
"""

import numpy as np
import torch
from torch import Tensor, nn

from kvcast.spec.relative import bucket_of


class RelativeBias(nn.Module):
    """A table [buckets, heads], read by distance."""

    buckets: Tensor

    def __init__(self, buckets: int, max_distance: int, heads: int, *, bidirectional: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        # Beyond the largest distance all share a bucket, so these distances cover everything.
        self.farthest = max_distance + 1
        distances = np.arange(-self.farthest, self.farthest + 1)
        numbers = bucket_of(distances, buckets, max_distance, bidirectional=bidirectional)
        self.register_buffer("buckets", torch.from_numpy(numbers), persistent=False)

    def forward(self, queries_rs: Tensor, keys: int) -> Tensor:
        """Positions of queries [r, s] to biases [r, heads, s, keys] for keys 0 .. keys - 1."""
        keys_c = torch.arange(keys, device=queries_rs.device)
        distances_rsc = (keys_c - queries_rs[:, :, None]).clamp(-self.farthest, self.farthest)
        by_distance_hd = self.weight[self.buckets].T
        # Heads first, so that the transpose below moves long rows.
        found_hn = by_distance_hd.index_select(1, (distances_rsc + self.farthest).flatten())
        return found_hn.unflatten(1, distances_rsc.shape).transpose(0, 1)
