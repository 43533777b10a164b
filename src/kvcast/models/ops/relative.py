"""Scores of attention that depend on how far apart positions are, as in Transformer-XL.

Knows no model.

Letters in shapes: b batch, t positions, h heads, d head_dim.
"""

import torch
from torch import Tensor

from kvcast.models.ops.attending import split_heads


def relative_scores(query: Tensor, key: Tensor, heads: int, scale: float) -> Tensor:
    """Multiply queries by the keys of their distances to all positions.

    Args:
        query: [b, t, h * d].
        key: [2, t, h * d], of distances 0 .. t - 1 behind a query and ahead of it; the first of
            those ahead is not read.
        heads: h.
        scale: factor on products.

    Returns:
        [b, h, t, t], for every query and every position.

    """
    positions = query.shape[1]
    query, key = (split_heads(flat, flat.shape[-1] // heads) for flat in (query, key))
    products_bhtn = query.transpose(1, 2) @ key.flatten(0, 1).permute(1, 2, 0)
    at = torch.arange(positions, device=query.device)
    behind_tt = at[:, None] - at
    distances_tt = torch.where(behind_tt >= 0, behind_tt, positions - behind_tt)
    return products_bhtn.gather(-1, distances_tt.expand(*products_bhtn.shape[:2], -1, -1)) * scale
