"""A ring gives the same results as a full cache with a window's mask, for any chunks."""

import pytest
import torch

from kvcast.models.ops.attention import self_attention

ROWS, HEADS, KV_HEADS, HEAD_DIM, LENGTH, WINDOW = 2, 4, 2, 8, 40, 6


def attended(capacity: int, chunk: int) -> torch.Tensor:
    """Attention's results [rows, length, heads * d] with a cache of this capacity."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int) -> torch.Tensor:
        return torch.randn(ROWS, LENGTH, heads * HEAD_DIM, generator=generator)

    query, key, value = random(HEADS), random(KV_HEADS), random(KV_HEADS)
    angles = torch.randn(LENGTH, HEAD_DIM // 2, generator=generator)
    caches = [torch.full((ROWS, KV_HEADS, capacity, HEAD_DIM), 1e6) for _ in range(2)]
    mixed = []
    for start in range(0, LENGTH, chunk):
        piece = slice(start, start + chunk)
        lengths = torch.full((ROWS,), start, dtype=torch.int32)
        parts = (part[:, piece] for part in (query, key, value))
        mixed.append(
            self_attention(*parts, *caches, lengths, 0.3, WINDOW, 0.0, angles.cos(), angles.sin())
        )
    return torch.cat(mixed, dim=1)


@pytest.mark.parametrize("chunk", [1, 3, WINDOW, WINDOW + 5, LENGTH])
@pytest.mark.parametrize("capacity", [WINDOW, WINDOW + 2, 2 * WINDOW])
def test_a_ring_equals_a_cache_of_all_positions(capacity: int, chunk: int) -> None:
    everything = attended(LENGTH, LENGTH)
    torch.testing.assert_close(attended(capacity, chunk), everything, atol=1e-5, rtol=0)
