"""Impossible or unsupported dimensions are refused in one line."""

from dataclasses import replace

import pytest

from kit.dimensions import LLAMA, MIXTRAL
from kvcast.errors import KvcastError
from kvcast.families.decoder import DecoderDimensions


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"max_positions": 1 << 30}, "more than any model has"),
        ({"heads": 5}, "not a multiple"),
        ({"head_dim": 15}, "even"),
        ({"windows": ()}, "windows must have"),
        ({"windows": (0, 3)}, "windows must have"),
        ({"vocab_size": 0}, "vocab_size must be a positive whole number"),
        ({"activation": "relu"}, "not supported"),
        ({"experts": 2, "experts_per_token": 3}, "3 of 2 experts"),
    ],
)
def test_impossible_dimensions(changes, line):
    with pytest.raises(KvcastError, match=line):
        replace(LLAMA, **changes)


def test_experts_of_another_activation():
    with pytest.raises(KvcastError, match="experts with gelu_tanh"):
        replace(MIXTRAL, activation="gelu_tanh")


def test_json_gives_the_same_dimensions_back():
    assert DecoderDimensions.from_json(MIXTRAL.to_json()) == MIXTRAL
