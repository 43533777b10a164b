"""On the worked example, the eager operator agrees with the ring arithmetic.

Values are one-hot by position and queries are zero, so attention returns the mean of the values
that a query sees: its mask can be read off. Slots are filled with garbage before.
"""

import pytest
import torch

from kvcast.inspect.masks import masks
from kvcast.inspect.schedule import Schedule
from kvcast.models.ops.attention import packed_self_attention
from kvcast.spec.ring import EMPTY, positions_held

POSITIONS = 16
ROWS = (4, 1, 3)


@pytest.mark.parametrize(
    ("window", "chunk", "capacity"), [(3, 2, 3), (3, 2, 4), (3, 8, 3), (3, 1, 3), (2, 3, 7)]
)
def test_slots_and_masks_are_the_operators(window: int, chunk: int, capacity: int):
    keys = torch.full((len(ROWS), 1, capacity, POSITIONS), 1e4)
    values = torch.full((len(ROWS), 1, capacity, POSITIONS), 1e4)
    schedule = Schedule.of(ROWS, window, chunk, 5, capacity)
    for mask in masks(schedule):
        rows = [row for row, new in enumerate(mask.call.counts) if new]
        positions = torch.tensor([position for _, position in mask.queries])
        one_hot = torch.nn.functional.one_hot(positions, POSITIONS).float()
        mixed = packed_self_attention(
            torch.zeros_like(one_hot),
            one_hot,
            one_hot,
            keys,
            values,
            rows,
            [mask.call.counts[row] for row in rows],
            torch.tensor(mask.call.lengths, dtype=torch.int32),
            1.0,
            window,
        )
        seen = [
            {key[1] for key, sees in zip(mask.keys, line, strict=True) if sees}
            for line in mask.seen.tolist()
        ]
        assert [set(line.nonzero().flatten().tolist()) for line in mixed] == seen
        grown = [a + b for a, b in zip(mask.call.lengths, mask.call.counts, strict=True)]
        for row, length in enumerate(grown):
            held = positions_held(length, capacity)
            for slot, position in enumerate(held.tolist()):
                if position != EMPTY:
                    assert values[row, 0, slot].argmax() == keys[row, 0, slot].argmax() == position
                    assert values[row, 0, slot].sum() == 1
