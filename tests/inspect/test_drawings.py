"""Masks and slots as text and SVG: the worked example literally, other sizes by structure."""

from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.inspect import masks, schedule
from kvcast.inspect.schedule import Schedule, row_name

EXAMPLE = Schedule.of((4, 1, 3), 3, 2, 5)

MASKS = """\
chunk 1: 2 + 1 + 2 tokens
      a0 a1 b0 c0 c1
  a0   #  .
  a1   #  #
  b0         #
  c0            #  .
  c1            #  #

chunk 2: 2 + 0 + 1 tokens; old ring beside the chunk: a
      a0 a1 a2 a3 c0 c1 c2
  a2   #  #  #  .
  a3   .  #  #  #
  c2               #  #  #

step 1: 1 + 1 + 1 tokens
      a3 a4 a2 b0 b1 c3 c1 c2
  a4   #  #  #
  b1            #  #
  c3                  #  #  #
"""
SLOTS = """\
            slot 0  slot 1  slot 2

chunk 1  a  a0*     a1*     .
         b  b0*     .       .
         c  c0*     c1*     .

chunk 2  a  a3*     a1      a2*
         b  b0      .       .
         c  c0      c1      c2*

step 1   a  a3      a4*     a2
         b  b0      b1*     .
         c  c3*     c1      c2
"""


def test_the_examples_masks_are_drawn():
    drawn = masks.render(EXAMPLE)
    assert MASKS in drawn
    assert drawn.splitlines()[0] == (
        "prompts of 4, 1 and 3 tokens in chunks of 2, then 5 steps; a window of 3, 3 slots a row"
    )
    assert drawn.count("step") == 6  # the title and five steps


def test_the_examples_slots_are_shown():
    shown = schedule.render(EXAMPLE)
    assert SLOTS in shown
    assert shown.endswith("step 5   a  a6      a7      a8*\n"
                          "         b  b3      b4      b5*\n"
                          "         c  c6      c7*     c5\n")  # fmt: skip


def test_a_larger_ring_is_written_first_and_says_nothing_of_old_rings():
    assert "beside" not in masks.render(Schedule.of((4, 1, 3), 3, 2, 5, 4))


def test_given_words_stand_beside_their_positions():
    texts = [["This", "is", "a", "test"], ["Hi", "there"]]
    shown = schedule.render(Schedule.of((4, 1), 3, 2, 1), texts)
    assert shown.endswith(
        "            slot 0   slot 1    slot 2\n"
        "\n"
        "chunk 1  a  0:This*  1:is*     .\n"
        "         b  0:Hi*    .         .\n"
        "\n"
        "chunk 2  a  3:test*  1:is      2:a*\n"
        "         b  0:Hi     .         .\n"
        "\n"
        "step 1   a  3:test   4:a4*     2:a\n"
        "         b  0:Hi     1:there*  .\n"
    )


def test_without_a_window_the_cache_holds_the_longest_row():
    schedule = Schedule.of((2, 1), None, 2, 1)
    assert schedule.capacity == 3
    assert "no window, 3 slots a row" in masks.render(schedule)
    assert schedule.title().startswith("prompts of 2 and 1 tokens in chunks of 2, then 1 step;")


@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    window=st.none() | st.integers(1, 6),
    chunk=st.integers(1, 7),
    new=st.integers(0, 3),
    spare=st.integers(0, 3),
)
def test_masks_are_block_diagonal_and_text_shows_them(
    lengths: list[int], window: int | None, chunk: int, new: int, spare: int
):
    schedule = Schedule.of(lengths, window, chunk, new, (window or max(lengths) + new) + spare)
    blocks = masks.render(schedule).split("\n\n")[1:]
    for mask, block in zip(masks.masks(schedule), blocks, strict=True):
        queries, keys = np.array(mask.queries), np.array(mask.keys)
        assert not (mask.seen & (queries[:, :1] != keys[:, 0])).any()
        assert (mask.seen.sum(1) == np.minimum(queries[:, 1] + 1, window or 99)).all()
        heading, labels, *lines = block.splitlines()
        assert heading.startswith(mask.call.name)
        assert labels.split() == [f"{row_name(row)}{position}" for row, position in mask.keys]
        assert [line.count("#") for line in lines] == mask.seen.sum(1).tolist()
        # Each mark stands under the last character of its key's label.
        ends = [end for end in range(len(labels)) if labels[end : end + 2].rstrip().isdigit()]
        assert all(line[i] in " #." for line in lines for i in ends if i < len(line))


def test_the_picture_is_xml_with_a_coloured_cell_for_each_pair_that_is_seen():
    every = list(masks.masks(EXAMPLE))
    root = ElementTree.fromstring(masks.draw(EXAMPLE.title(), every))
    cells = root.findall("{http://www.w3.org/2000/svg}rect")[1:]  # without the background
    legend = 3 + 1
    hidden = [cell for cell in cells if cell.get("fill") == "#eceff1"]
    seen = sum(int(mask.seen.sum()) for mask in every)
    assert len(cells) - len(hidden) == seen + legend - 1
    texts = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert all(masks.heading(mask) in texts for mask in every)
    width, height = (float(root.get(side)) for side in ("width", "height"))
    for cell in cells:
        assert 0 <= float(cell.get("x")) < width - 20
        assert 0 <= float(cell.get("y")) < height - 20


def test_labels_of_long_rows_fit_their_cells():
    short, long = (
        masks.draw("", list(masks.masks(Schedule.of((length,), 3, 200, 0)))) for length in (9, 300)
    )
    assert ".k{font-size:11.0px" in short
    assert ".k{font-size:8.9px" in long  # four characters of 0.62 times that in 22


def test_rows_are_named_like_columns_of_a_sheet():
    assert [row_name(row) for row in (0, 25, 26, 27, 26 * 27)] == ["a", "z", "aa", "ab", "aaa"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (((), 3, 2, 5), "lengths must give each of one or more prompts 1 token or more"),
        (((4, 0), 3, 2, 5), "lengths must give each of one or more prompts 1 token or more"),
        (((4,), 0, 2, 5), "window must be 1 or more, not 0"),
        (((4,), 3, 0, 5), "chunk must be 1 or more, not 0"),
        (((4,), 3, 2, -1), "new must be 0 or more, not -1"),
        (((4,), 3, 2, 5, 2), "capacity must be from 3 to 1,000 here, not 2"),
        (((900, 1), 3, 2, 50), "1,001 positions are too many to draw"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[object, ...], message: str):
    with pytest.raises(UsageError, match=f"^{message}"):
        Schedule.of(*sizes)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([["x"]], "1 text for 3 rows"),
        ([["x"] * 3, ["x"], ["x"] * 3], "the text of row a has 3 words"),
        ([["x"] * 4, ["x"] * 7, ["x"] * 3], "the text of row b has 7 words"),
    ],
)
def test_words_that_do_not_fit_are_refused(texts: list[list[str]], message: str):
    with pytest.raises(UsageError, match=message):
        schedule.render(EXAMPLE, texts)
