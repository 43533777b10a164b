"""Alignment heads among a Whisper's dimensions."""

import json
from dataclasses import asdict, replace

import pytest

from kit.dimensions import SMALL
from kvcast.errors import KvcastError
from kvcast.families.whisper import WhisperDimensions


@pytest.mark.parametrize(("layers", "first"), [(1, 0), (2, 1), (3, 1), (4, 2)])
def test_without_names_they_are_all_heads_of_the_upper_half(layers: int, first: int):
    heads = replace(SMALL, decoder_layers=layers, alignment_heads=()).alignment_heads
    assert heads == tuple((layer, head) for layer in range(first, layers) for head in range(4))


@pytest.mark.parametrize(
    ("heads", "says"),
    [
        (((2, 0),), "head 0 of layer 2, counted from 0, and the decoder has 2 layers of 4 heads"),
        (((0, 4),), "head 4 of layer 0"),
        (((0, -1),), "head -1 of layer 0"),
        (((-1, 0),), "head 0 of layer -1"),
        (((1, 0), (1, 0)), "names a head twice"),
    ],
)
def test_heads_that_there_are_not_are_one_line(heads: tuple[tuple[int, int], ...], says: str):
    with pytest.raises(KvcastError, match=says) as caught:
        replace(SMALL, alignment_heads=heads)
    assert "\n" not in str(caught.value)


def test_they_survive_json():
    fields = json.loads(json.dumps(asdict(SMALL)))
    assert fields["alignment_heads"] == [[1, 3], [0, 1], [1, 0]]
    assert WhisperDimensions.from_json(fields) == SMALL


@pytest.mark.parametrize("heads", [None, 3, "01", [3], [[1]], [[1, 0.5]], [[1, True]], [[1, 2, 3]]])
def test_what_is_no_list_of_pairs_is_one_line(heads: object):
    with pytest.raises(KvcastError, match="a list of pairs of a layer and a head"):
        WhisperDimensions.from_json({**asdict(SMALL), "alignment_heads": heads})
