"""The displayed rows of T5's bias equal those of transformers and of the whole matrix."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.t5.modeling_t5 import T5Attention

from kit.in_transformers import random_t5, save_t5
from kvcast.errors import UsageError
from kvcast.inspect.bias import Bias, bias_of


def theirs(length: int, buckets: int, max_distance: int, *, bidirectional: bool) -> list[list[str]]:
    positions = torch.arange(length)
    buckets = T5Attention._relative_position_bucket(
        positions[None, :] - positions[:, None], bidirectional, buckets, max_distance
    )
    return [
        [str(bucket) if bidirectional or key <= query else "." for key, bucket in enumerate(line)]
        for query, line in enumerate(buckets.tolist())
    ]


def shown(text: str, stack: str) -> list[list[str]]:
    _, block = text.split(f"{stack}: ")
    _, columns, *lines = block.split("\n\n")[0].splitlines()
    assert columns.split() == [str(key) for key in range(len(columns.split()))]
    return [line.split()[1:] for line in lines]


@settings(deadline=None)
@given(st.integers(1, 30), st.sampled_from([(32, 128), (8, 16), (4, 5)]))
def test_both_matrices_are_those_of_transformers(length: int, sizes: tuple[int, int]):
    text = Bias.plain(*sizes).matrix(length)
    assert shown(text, "encoder") == theirs(length, *sizes, bidirectional=True)
    assert shown(text, "decoder") == theirs(length, *sizes, bidirectional=False)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 9))
def test_a_call_has_the_last_rows_of_the_whole_matrix(start: int, new: int):
    bias = Bias.plain(8, 16)
    text = bias.call(start, new)
    whole = shown(bias.matrix(start + new), "decoder")
    assert shown(text, "decoder") == whole[start:]
    assert "encoder" not in text


def test_a_step_says_that_its_row_is_the_last():
    text = Bias.plain(32, 128).call(5, 1)
    assert "\n  5  5 4 3 2 1 0\n" in text
    assert text.endswith(
        "\nThat is the last row of the whole matrix of 6 positions, and all that this call needs.\n"
    )
    assert "Those are the last 2 rows" in Bias.plain(32, 128).call(4, 2)


def test_a_heads_numbers_are_what_transformers_adds(tmp_path: Path):
    model = random_t5("NARROW")
    save_t5(model, tmp_path)
    bias = bias_of(str(tmp_path), 2)
    text = bias.matrix(12)
    for stack, module in (("encoder", model.encoder), ("decoder", model.decoder)):
        attention = module.block[0].layer[0].SelfAttention
        added = attention.compute_bias(12, 12)[0, 2].detach().numpy()
        seen = np.array(shown(text, stack))
        visible = np.tri(12, dtype=bool) | (stack == "encoder")
        assert (seen[~visible] == ".").all()
        np.testing.assert_allclose(seen[visible].astype(float), added[visible], atol=0.0051)
    assert "head 2; 8 buckets; distances from 16 on share one; 12 positions" in text


def test_a_head_that_is_not_there_is_refused(tmp_path: Path):
    save_t5(random_t5("NARROW"), tmp_path)
    with pytest.raises(UsageError, match="has heads 0 to 2, and no head 3"):
        bias_of(str(tmp_path), 3)


def test_a_bundle_is_refused(tmp_path: Path):
    (tmp_path / "bundle.json").write_text("{}")
    with pytest.raises(UsageError, match="is a bundle: give the checkpoint"):
        bias_of(str(tmp_path), 0)


@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(6, 128), (2, 128), (1004, 4000), (32, 16), (32, 1)]
)
def test_buckets_that_cannot_be_are_refused(buckets: int, max_distance: int):
    with pytest.raises(UsageError):
        Bias.plain(buckets, max_distance)


def test_more_than_can_be_shown_is_refused():
    for show in (lambda bias: bias.matrix(1001), lambda bias: bias.call(999, 2)):
        with pytest.raises(UsageError, match="1,001 positions are too many to show"):
            show(Bias.plain(32, 128))
