"""Which cells a reorder copies."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcast.runtimes.lineage import Lineage


def _five_beams_of_one_prompt() -> Lineage:
    return Lineage.empty(1, 16).append(4).select([0] * 5)


def test_rows_with_one_history_need_no_copy() -> None:
    _, copy = _five_beams_of_one_prompt().reorder([3, 3, 0, 1, 2])
    assert copy is None


def test_only_positions_after_the_parting_are_copied() -> None:
    beams = _five_beams_of_one_prompt().append(1)
    beams, copy = beams.reorder([0, 0, 2, 3, 3])
    assert copy is not None
    assert (copy.targets.tolist(), copy.sources.tolist()) == ([1, 4], [0, 3])
    assert (copy.first, copy.stop) == (4, 5)
    # Rows 0 and 1 now share five positions: one step later only the sixth differs.
    _, copy = beams.append(1).reorder([1, 1, 2, 3, 4])
    assert copy is not None
    assert (copy.targets.tolist(), copy.first, copy.stop) == ([0], 5, 6)


@given(st.data())
def test_copies_make_cells_what_ids_say(data: st.DataObject) -> None:
    """Cells that hold their own id stay equal to the ids through any steps and reorders."""
    rows = 4
    lineage = Lineage.empty(rows, 64)
    cells = np.zeros((rows, 64), np.int64)
    for _ in range(data.draw(st.integers(1, 12))):
        new = data.draw(st.integers(1, 3))
        before = int(lineage.lengths[0])
        lineage = lineage.append(new)
        cells[:, before : before + new] = lineage.ids[:, before : before + new]
        sources = data.draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
        lineage, copy = lineage.reorder(sources)
        if copy is not None:
            span = slice(copy.first, copy.stop)
            cells[copy.targets, span] = cells[copy.sources, span]
        held = int(lineage.lengths[0])
        np.testing.assert_array_equal(cells[:, :held], lineage.ids[:, :held])
