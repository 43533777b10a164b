"""The drawn prefix mask equals the operator's mask and its definition."""

from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcast.errors import UsageError
from kvcast.inspect import masks
from kvcast.inspect.masks import SourceAndTarget
from kvcast.models.ops.attention import self_attention

WHOLE = """\
      s0 s1 s2 t3 t4
  s0   #  #  #  .  .
  s1   #  #  #  .  .
  s2   #  #  #  .  .
  t3   #  #  #  #  .
  t4   #  #  #  #  #
"""
LAST = """\
step 2: 1 token
      s0 s1 s2 t3 t4
  t4   #  #  #  #  #
"""

sizes = given(source=st.integers(1, 9), target=st.integers(1, 9))


@settings(deadline=None)
@sizes
def test_the_whole_mask_compares_running_sums_of_segments(source: int, target: int):
    # The definition with which UniLM models are trained: segment ids, summed up.
    sums = np.cumsum([0] * source + [1] * target)
    whole, *_ = masks.masks(SourceAndTarget(source=source, target=target))
    np.testing.assert_array_equal(whole.seen, sums[None, :] <= sums[:, None])


@settings(deadline=None)
@sizes
def test_the_calls_are_the_rows_of_the_whole_mask(source: int, target: int):
    whole, *calls = masks.masks(SourceAndTarget(source=source, target=target))
    assert [mask.call.counts for mask in calls] == [(source,), *[(1,)] * target]
    positions = [position for mask in calls for _, position in mask.queries]
    assert positions == list(range(source + target))
    for mask in calls:
        queries, keys = ([position for _, position in side] for side in (mask.queries, mask.keys))
        np.testing.assert_array_equal(mask.seen, whole.seen[np.ix_(queries, keys)])
        # What a call's cache does not hold yet, none of its queries may see.
        assert whole.seen[queries].sum() == mask.seen.sum()


@settings(deadline=None)
@sizes
def test_the_operator_sees_what_is_drawn(source: int, target: int):
    prefix = SourceAndTarget(source=source, target=target)
    keys, values = (torch.full((1, 1, prefix.capacity, prefix.capacity), 1e4) for _ in range(2))
    _, *calls = masks.masks(prefix)
    for mask in calls:
        one_hot = torch.eye(prefix.capacity)[None, [position for _, position in mask.queries]]
        mixed = self_attention(
            torch.zeros_like(one_hot),
            one_hot,
            one_hot,
            keys,
            values,
            torch.tensor(mask.call.lengths, dtype=torch.int32),
            1.0,
            # On an empty row the whole source sees itself.
            causal=mask.call.lengths != (0,),
        )
        # Equal weights over one-hot values: their mean is nonzero where the query sees.
        read = [set(line.nonzero().flatten().tolist()) for line in mixed[0]]
        drawn = [
            {key[1] for key, sees in zip(mask.keys, line, strict=True) if sees}
            for line in mask.seen.tolist()
        ]
        assert read == drawn


def test_the_text_shows_the_whole_and_then_each_call():
    drawn = masks.render(SourceAndTarget(source=3, target=2))
    title, legend, *_ = drawn.splitlines()
    assert title == "a source of 3 tokens (s), then a target of 2 (t); one cache of 5 slots"
    assert legend.endswith("# sees, . does not")
    headings = [line for line in drawn.splitlines() if ":" in line[1:] and "token" in line]
    assert headings == [
        "without a cache: 5 tokens",
        "source: 3 tokens",
        "step 1: 1 token",
        "step 2: 1 token",
    ]
    assert WHOLE in drawn
    assert drawn.endswith(LAST)


def test_the_picture_has_a_cell_for_each_pair_and_names_no_rows():
    every = list(masks.masks(SourceAndTarget(source=3, target=2)))
    root = ElementTree.fromstring(masks.draw("title", every))
    spaced = "{http://www.w3.org/2000/svg}"
    cells = root.findall(f"{spaced}rect")[1:]  # without the background
    assert len(cells) == sum(mask.seen.size for mask in every) + 2
    hidden = [cell for cell in cells if cell.get("fill") == "#eceff1"]
    assert len(hidden) == sum(int((~mask.seen).sum()) for mask in every) + 1
    texts = [text.text for text in root.findall(f"{spaced}text")]
    assert texts[1:3] == ["seen", "held, not seen"]
    assert {"s0", "s2", "t3", "t4", "without a cache: 5 tokens"} <= set(texts)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (0, 3, "a source and a target must have 1 token or more each"),
        (5, 0, "a source and a target must have 1 token or more each"),
        (900, 101, "1,001 positions are too many to draw"),
    ],
)
def test_sizes_that_make_no_picture_are_refused(source: int, target: int, message: str):
    with pytest.raises(UsageError, match=f"^{message}"):
        SourceAndTarget(source=source, target=target)
