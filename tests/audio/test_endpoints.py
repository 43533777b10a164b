"""Where utterances begin and end, block by block."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.audio.vad import BLOCK, Change, Endpoints, Loudness


def scripted(probabilities: Sequence[float]):
    rest = list(probabilities)

    def listen(blocks_nb: np.ndarray) -> np.ndarray:
        taken, rest[: len(blocks_nb)] = rest[: len(blocks_nb)], []
        return np.array(taken, np.float32)

    return listen


def changes(
    probabilities: Sequence[float], sizes: Sequence[int] = (BLOCK,)
) -> list[tuple[int, Change]]:
    """Return each change, and the block before which it is."""
    endpoints = Endpoints(scripted(probabilities), threshold=0.5, pause=5 * BLOCK / 16_000)
    samples = np.arange(BLOCK * len(probabilities), dtype=np.float32)
    heard, pieces, at, number = [], [], 0, 0
    while at < len(samples):
        size = sizes[number % len(sizes)]
        for piece, change in endpoints.follow(samples[at : at + size]):
            pieces.append(piece)
            if change is not Change.NONE:
                heard.append((sum(map(len, pieces)) // BLOCK, change))
        at, number = at + size, number + 1
    pieces.append(endpoints.finish())
    assert np.array_equal(np.concatenate(pieces), samples)
    return heard


def test_speech_begins_after_three_blocks_and_ends_after_a_pause():
    script = [0, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0.3, 0, 0, 0, 0, 0, 0]
    assert changes(script) == [(7, Change.BEGIN), (18, Change.END)]


def test_doubtful_blocks_neither_begin_nor_end_it():
    assert changes([0.4] * 20) == []
    assert changes([0.9] * 3 + [0.4] * 20) == [(3, Change.BEGIN)]
    assert changes([0.9] * 3 + [0.3] * 5) == [(3, Change.BEGIN), (8, Change.END)]


@given(
    speech=st.lists(st.sampled_from([0.0, 0.4, 0.9]), max_size=80),
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
)
def test_pieces_of_any_length_change_nothing(speech, sizes):
    assert changes(speech, sizes) == changes(speech)


def noise(decibels: float, blocks: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (10 ** (decibels / 20) * rng.standard_normal((blocks, BLOCK))).astype(np.float32)


def test_loud_audio_after_silence_is_speech_from_its_first_block():
    assert Loudness()(noise(-30, 3)).tolist() == [1, 1, 1]
    assert Loudness()(noise(-70, 3)).tolist() == [0, 0, 0]
    assert Loudness()(np.zeros((3, BLOCK), np.float32)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("floor", [-60.0, -45.0, -30.0])
def test_a_steady_noise_becomes_the_room(floor: float):
    listener = Loudness()
    listener(noise(floor, 400))
    assert not listener(noise(floor, 100, seed=1)).any()
    assert listener(noise(floor + 20, 10, seed=2)).all()
    assert not listener(noise(floor, 100, seed=3)).any()
