"""Voice activity: speech parts of a recording, the recording without the rest, endpointing."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.audio.decode import ArrayAudio, AudioSource
from kvcast.audio.params import VoiceParams
from kvcast.audio.timeline import Part
from kvcast.audio.vad import BLOCK, Change, Endpoints, SpeechOnly, find_speech, speech_parts
from kvcast.audio.vad import Loudness as RoomLoudness
from kvcast.errors import InputOutputError, UsageError

RATE = 16_000
BLOCKS_PER_SECOND = RATE / BLOCK
BARE = VoiceParams(speech_pad=0, min_silence=0.1)

Float32 = NDArray[np.float32]


def probabilities(*runs: tuple[float, float]) -> Float32:
    """Runs of seconds with one probability."""
    return np.concatenate([np.full(round(s * BLOCKS_PER_SECOND), p, np.float32) for s, p in runs])


def parts(probabilities_n: Float32, params: VoiceParams) -> list[tuple[float, float]]:
    """Parts in seconds, rounded."""
    speech = speech_parts(probabilities_n, BLOCK * len(probabilities_n), params)
    return [(round(a, 1), round(b, 1)) for a, b in (part.seconds for part in speech)]


def heard_block_by_block(probabilities_n: Float32, samples: int, params: VoiceParams) -> list[Part]:
    """A reference of the rule, block by block; without `max_speech`."""
    parts: list[tuple[int, int]] = []
    start = pause = since = None
    sustained = False
    for i, probability in enumerate(probabilities_n):
        if probability >= params.vad_threshold:
            since = i if start is None or (pause is not None and i - pause >= 4) else since
            start, pause = i if start is None else start, None
        elif start is not None and probability < max(params.vad_threshold - 0.15, 0.01):
            pause = i if pause is None else pause
            if BLOCK * (i - pause) >= RATE * params.min_silence:
                if sustained:
                    parts.append((BLOCK * start, BLOCK * pause))
                start, pause, sustained = None, None, False
        sustained = sustained or (start is not None and pause is None and i + 1 - since >= 7)
    if start is not None and sustained:
        parts.append((BLOCK * start, samples))
    pad = round(RATE * params.speech_pad)
    padded = []
    for n, (a, b) in enumerate(parts):
        before = pad if n == 0 else min(pad, (a - parts[n - 1][1]) // 2)
        after = pad if n == len(parts) - 1 else min(pad, (parts[n + 1][0] - b) // 2)
        padded.append(Part(max(a - before, 0), min(b + after, samples)))
    return padded


def test_speech_continues_a_little_below_the_threshold() -> None:
    heard = probabilities((1, 0.4), (1, 0.6), (1, 0.4), (1, 0.6), (1, 0.3), (1, 0.4))
    assert parts(heard, BARE) == [(1.0, 4.0)]


def test_short_pauses_stay_and_long_ones_split() -> None:
    heard = probabilities((1, 0.9), (1.5, 0.0), (1, 0.9), (2.5, 0.0), (1, 0.9))
    assert parts(heard, VoiceParams(speech_pad=0)) == [(0.0, 3.5), (6.0, 7.0)]


def test_parts_are_padded_within_the_recording() -> None:
    heard = probabilities((0.2, 0), (1, 0.9), (3, 0), (1, 0.9), (2.2, 0))
    assert parts(heard, VoiceParams()) == [(0.0, 1.6), (3.8, 5.6)]


def test_long_speech_is_cut_at_its_longest_pause() -> None:
    heard = probabilities((2, 0.9), (0.5, 0), (2, 0.9), (0.2, 0), (3, 0.9))
    limited = VoiceParams(speech_pad=0, max_speech=6)
    assert parts(heard, limited) == [(0.0, 2.0), (2.5, 7.7)]


def test_long_speech_without_pauses_is_cut_and_nothing_is_lost() -> None:
    heard = probabilities((7, 0.9))
    assert parts(heard, VoiceParams(speech_pad=0, max_speech=3)) == [(0, 3), (3, 6), (6, 7)]


def test_a_blip_is_no_speech_unless_near_speech() -> None:
    blip, silence = (0.16, 0.9), (2.5, 0)
    assert parts(probabilities(silence, blip, silence, blip, (1, 0), blip), VoiceParams()) == []
    heard = probabilities(silence, blip, (1, 0), (0.23, 0.9), (1, 0), blip, silence)
    assert parts(heard, VoiceParams(speech_pad=0)) == [(2.5, 5.0)]


EDGE = st.sampled_from([0.0, 0.009, 0.2, 0.34, 0.36, 0.49, 0.5, 0.51, 0.64, 0.8, 1.0])
RUNS = st.lists(st.tuples(EDGE, st.integers(1, 40)), min_size=1, max_size=30)
LOW = VoiceParams(vad_threshold=0.1, min_silence=0, speech_pad=0)
PARAMS = st.builds(
    VoiceParams,
    vad_threshold=st.sampled_from([0.1, 0.5, 0.8]),
    min_silence=st.sampled_from([0, 0.032, 0.1, 0.5, 1.0]),
    speech_pad=st.sampled_from([0, 0.01, 0.1, 0.4]),
)


@given(runs=RUNS, params=PARAMS, missing=st.integers(0, BLOCK - 1))
@example(runs=[(0.2, 4), (0.0, 3)], params=VoiceParams(vad_threshold=0.1, min_silence=0), missing=0)
@example(runs=[(0.9, 4), (0.0, 3)], params=VoiceParams(), missing=0)
@example(runs=[(0.2, 1), (0.0, 1), (0.2, 5)], params=LOW, missing=0)
def test_parts_equal_a_blockwise_reference(runs, params, missing):
    heard = np.concatenate([np.full(n, p, np.float32) for p, n in runs])
    samples = BLOCK * len(heard) - missing
    assert list(speech_parts(heard, samples, params)) == heard_block_by_block(
        heard, samples, params
    )


@given(runs=RUNS, params=PARAMS, most=st.sampled_from([None, 1, 1.5, 4]))
@settings(max_examples=200)
def test_parts_hold_all_speech_in_order_and_within_bounds(runs, params, most):
    heard = np.concatenate([np.full(n, p, np.float32) for p, n in runs])
    samples = BLOCK * len(heard)
    limited = VoiceParams(**params.values(VoiceParams) | {"max_speech": most})
    parts = speech_parts(heard, samples, limited)
    covered = np.zeros(samples, bool)
    for part in parts:
        assert 0 <= part.start < part.end <= samples
        assert not covered[part.start : part.end].any()
        covered[part.start : part.end] = True
        assert most is None or part.samples <= RATE * most
    assert list(parts) == sorted(parts)
    loud = np.repeat(heard >= limited.vad_threshold, BLOCK)
    if all(n >= 7 for _, n in runs):
        assert covered[loud].all()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"vad_threshold": 0}, "vad_threshold must be above 0"),
        ({"vad_threshold": 1.1}, "vad_threshold must be above 0 and at most 1"),
        ({"min_silence": -1}, "min_silence must be 0 or more"),
        ({"speech_pad": float("nan")}, "speech_pad must be 0 or more"),
        ({"max_speech": 0.5}, "max_speech must be 1 or more"),
        ({"max_speech": 4, "speech_pad": 2}, "more than twice speech_pad 2, not 4"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        VoiceParams(**options)


class Loudness:
    """A voice detector by loudness, which records its calls."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, blocks_nb: Float32) -> Float32:
        assert blocks_nb.shape[1] == BLOCK
        self.asked.append(len(blocks_nb))
        return np.abs(blocks_nb).max(axis=1)


class InPieces(AudioSource):
    """Samples in pieces of odd sizes; counts how many were read."""

    def __init__(self, samples: Float32, size: int) -> None:
        self.name, self.notices = "talk.wav", ("it ends early",)
        self.read = 0
        self.closed = False
        self._samples, self._size = samples, size

    def blocks(self) -> Iterator[Float32]:
        self.read = 0
        for start in range(0, len(self._samples), self._size):
            piece = self._samples[start : start + self._size]
            self.read += len(piece)
            yield piece

    def close(self) -> None:
        self.closed = True


def loud_and_quiet(*seconds: float) -> Float32:
    """Seconds of quiet, of loud, of quiet and so on."""
    return np.concatenate(
        [np.full(round(RATE * s), 0.9 * (i % 2), np.float32) for i, s in enumerate(seconds)]
    )


@pytest.mark.parametrize("size", [1, 100, 511, 512, 513, 5000, 10**7])
def test_blocks_do_not_depend_on_pieces(size: int) -> None:
    samples = loud_and_quiet(0.1, 0.3, 0.1)[: 15 * BLOCK + 7]
    listener = Loudness()
    speech = find_speech(InPieces(samples, size), listener, VoiceParams(speech_pad=0))
    assert speech.samples == len(samples)
    assert sum(listener.asked) == 16
    assert speech.parts == (Part(3 * BLOCK, len(samples)),)
    assert speech.likeliest == pytest.approx(0.9)


def test_no_call_gets_more_than_a_bounded_number_of_blocks() -> None:
    listener = Loudness()
    find_speech(ArrayAudio(np.zeros(RATE * 200, np.float32)), listener, VoiceParams())
    assert max(listener.asked) <= 1024


def test_skipped_parts_are_the_rest() -> None:
    speech = find_speech(ArrayAudio(loud_and_quiet(3, 1, 5, 1)), Loudness(), VoiceParams())
    edges = [round(edge, 1) for part in speech.skipped for edge in part.seconds]
    assert edges == [0.0, 2.6, 4.4, 8.6]


def test_silence_has_no_parts() -> None:
    speech = find_speech(ArrayAudio(np.zeros(RATE, np.float32)), Loudness(), VoiceParams())
    assert (speech.parts, speech.likeliest) == ((), 0)
    assert speech.skipped == (Part(0, RATE),)


def test_invalid_audio_is_no_speech() -> None:
    samples = np.full(RATE, np.nan, np.float32)
    with pytest.raises(InputOutputError, match="is not audio"):
        find_speech(ArrayAudio(samples), Loudness(), VoiceParams())


@given(edges=st.lists(st.integers(0, 500), max_size=10, unique=True), size=st.integers(1, 600))
def test_speech_only_is_the_parts_put_together(edges: list[int], size: int) -> None:
    samples = np.arange(500, dtype=np.float32)
    edges = sorted(edges)
    parts = [Part(*pair) for pair in zip(edges[::2], edges[1::2], strict=False)]
    spoken = SpeechOnly(InPieces(samples, size), parts)
    expected = np.concatenate([samples[:0], *(samples[a:b] for a, b in parts)])
    for _ in range(2):
        np.testing.assert_array_equal(np.concatenate([samples[:0], *spoken.blocks()]), expected)


def test_speech_only_reads_no_further_than_it_must() -> None:
    audio = InPieces(np.zeros(1000, np.float32), 10)
    spoken = SpeechOnly(audio, [Part(20, 40), Part(100, 105)])
    assert sum(map(len, spoken.blocks())) == 25
    assert audio.read == 110


def test_speech_only_passes_on_name_and_notices_and_closes() -> None:
    audio = InPieces(np.zeros(10, np.float32), 10)
    spoken = SpeechOnly(audio, [])
    assert (spoken.name, spoken.notices) == ("talk.wav", ("it ends early",))
    assert list(spoken.blocks()) == []
    spoken.close()
    assert audio.closed


class Closing(InPieces):
    """Notes that a pass ended, as files are closed then."""

    ended = False

    def blocks(self) -> Iterator[Float32]:
        try:
            yield from super().blocks()
        finally:
            self.ended = True


def test_an_abandoned_pass_closes_the_recording() -> None:
    audio = Closing(np.zeros(100, np.float32), 10)
    blocks = SpeechOnly(audio, [Part(0, 15)]).blocks()
    next(blocks)
    del blocks
    assert audio.ended


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
    assert RoomLoudness()(noise(-30, 3)).tolist() == [1, 1, 1]
    assert RoomLoudness()(noise(-70, 3)).tolist() == [0, 0, 0]
    assert RoomLoudness()(np.zeros((3, BLOCK), np.float32)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("floor", [-60.0, -45.0, -30.0])
def test_a_steady_noise_becomes_the_room(floor: float):
    listener = RoomLoudness()
    listener(noise(floor, 400))
    assert not listener(noise(floor, 100, seed=1)).any()
    assert listener(noise(floor + 20, 10, seed=2)).all()
    assert not listener(noise(floor, 100, seed=3)).any()
