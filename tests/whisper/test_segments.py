"""How a window's tokens are cut, and where the next window begins."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.audio.decode import ArrayAudio
from kvcast.audio.features import MelWindows
from kvcast.audio.params import VoiceParams
from kvcast.audio.timeline import Part, Timeline, between
from kvcast.audio.vad import BLOCK, detect_speech, speech_parts
from kvcast.transcripts.segments import Segment, Word, placed
from kvcast.whisper.word_timestamps import Span, Window, split, within

BEGIN = 1000


def cut(*tokens: int | float, seek: int = 0, frames: int = 3000) -> tuple[list[Span], int]:
    """Texts are whole numbers, timestamps are seconds."""
    ids = [BEGIN + round(t / 0.02) if isinstance(t, float) else t for t in tokens]
    return split(ids, Window(seek, frames), BEGIN)


@pytest.mark.parametrize(
    ("tokens", "times", "advance"),
    [
        # Pairs of timestamps are cuts, also at the end; the rest is left to the next window.
        ((0.0, 1, 2, 3.0, 3.0, 4, 5.5, 6.0, 7), [(0, 3), (3, 5.5)], 550),
        ((0.0, 1, 3.0, 3.0), [(0, 3)], 300),
        # A lone timestamp at the end completes the window.
        ((0.0, 1, 3.0, 3.0, 4, 9.0), [(0, 3), (3, 9)], 3000),
        ((0.0, 1, 2, 3.0), [(0, 3)], 3000),
        # Without any time but the start the window is one segment.
        *((tokens, [(0, 30)], 3000) for tokens in [(1, 2), (0.0, 1, 2), (0.0,), ()]),
        # Only decoding without timestamp rules can give a cut at zero, which does not stand still.
        ((0.0, 0.0, 1, 2), [(0, 0)], 3000),
    ],
)
def test_a_window_is_cut_at_its_timestamps(tokens, times, advance):
    spans, frames = cut(*tokens)
    assert [(span.start, span.end) for span in spans] == times
    assert frames == advance


def test_spans_hold_their_tokens_and_their_place_in_the_recording():
    spans, _ = cut(0.0, 1, 2, 3.0, 3.0, 4, 5.5, 6.0, 7)
    assert [span.tokens for span in spans] == [(1000, 1, 2, 1150), (1150, 4, 1275)]
    [span], advance = cut(1.0, 1, 3.0, 3.0, 2, seek=12345)
    assert (span.start, span.end, advance) == (124.45, 126.45, 200 + 100)


def test_a_short_window_is_as_long_as_its_audio():
    assert cut(1, 2, frames=470) == ([Span(0, 4.7, (1, 2))], 470)
    assert cut(0.0, 1, 3.0, 3.0, 4, 4.0, frames=470)[1] == 470


@given(
    stamps=st.lists(st.integers(0, 1500), min_size=2, max_size=20).map(sorted),
    end=st.floats(0.5, 30),
)
def test_no_span_passes_the_audio_and_none_is_lost(stamps: list[int], end: float):
    spans = [Span(a / 50, b / 50, (1,)) for a, b in pairwise(stamps) if a < b]
    inside = within(spans, end)
    assert len(inside) == len(spans)
    assert all(span.start < span.end <= end for span in inside)
    assert all(before.end <= after.start + 1e-9 for before, after in pairwise(inside))
    assert [a for a, b in zip(inside, spans, strict=True) if b.end <= end - 0.4] == [
        span for span in spans if span.end <= end - 0.4
    ]


def test_words_end_with_the_audio():
    words = [Word(start=a, end=a + 2, word=" a", probability=1.0) for a in (8.0, 10.0, 12.0)]
    [span] = within([Span(8, 14, (1, 2, 3), tuple(words))], 10.5)
    assert (span.start, span.end) == (8, 10.5)
    assert [(w.start, w.end) for w in span.words or ()] == [(8, 10), (10, 10.5), (10.5, 10.5)]


@given(
    tokens=st.lists(st.sampled_from([1, 2, BEGIN, BEGIN + 1, BEGIN + 700, BEGIN + 1500])),
    frames=st.integers(1, 3000),
)
def test_every_window_advances_and_spans_are_runs_of_its_tokens_in_order(tokens, frames):
    spans, advance = split(tokens, Window(0, frames), BEGIN)
    assert advance > 0
    joined = [token for span in spans for token in span.tokens]
    assert joined == tokens[: len(joined)]
    assert len(joined) == len(tokens) or advance == 2 * (joined[-1] - BEGIN) or advance == frames


def test_a_segment_of_parts_is_placed_in_the_recording_with_its_words():
    timeline = Timeline([Part(16_000, 80_000), Part(800_000, 960_000)], slack=0.4)
    words = (
        Word(start=3.8, end=4.5, word=" yes", probability=0.9),
        Word(start=4.5, end=6.0, word=" now", probability=0.8),
    )
    said = replace(said_at(3.8, 6.0, words), id=3, seek=400, text=" yes now", tokens=(1, 2))
    segment = placed(said, timeline)
    assert (segment.seek, segment.start, segment.end) == (5000, 50.0, 52.0)
    assert [(word.start, word.end) for word in segment.words] == [(50.0, 50.5), (50.5, 52.0)]
    assert segment.tokens == said.tokens
    assert placed(said, Timeline(())) == said


def said_at(start: float, end: float, words: tuple[Word, ...] | None = None) -> Segment:
    qualities = {"avg_logprob": -0.1, "compression_ratio": 1.0, "no_speech_prob": 0.0}
    text = {"text": " yes", "tokens": (1,), "language": "en", "temperature": 0.0, "fallback": ()}
    return Segment(id=0, seek=0, start=start, end=end, words=words, **text, **qualities)


@given(
    runs=st.lists(
        st.tuples(st.sampled_from([0.0, 1.0]), st.integers(1, 90)), min_size=1, max_size=12
    ),
    pad=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    silence=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    moments=st.lists(st.floats(0, 1), min_size=2, max_size=12),
)
def test_no_word_is_in_skipped_audio(runs, pad, silence, moments):
    probabilities_n = np.concatenate([np.full(blocks, p, np.float32) for p, blocks in runs])
    samples = BLOCK * len(probabilities_n)
    params = VoiceParams(vad=True, speech_pad=pad, min_silence=silence)
    parts = speech_parts(probabilities_n, samples, params)
    timeline = Timeline(parts, slack=0.4)
    edges = sorted(moment * timeline.duration for moment in moments)
    words = tuple(
        Word(start=start, end=end, word=" a", probability=1.0) for start, end in pairwise(edges)
    )
    segment = placed(said_at(edges[0], edges[-1], words), timeline)
    for part in between(parts, samples) if parts else ():
        begin, stop = part.seconds
        for word in segment.words:
            assert min(word.end, stop) - max(word.start, begin) <= 0.05, (word, part)
    times = [moment for word in segment.words for moment in (word.start, word.end)]
    assert times == sorted(times)
    assert (segment.start, segment.end) == (times[0], times[-1])


def test_a_word_across_a_joint_lies_where_most_of_it_is():
    timeline = Timeline([Part(0, 160_000), Part(480_000, 640_000)])  # 0 to 10 s, 30 to 40 s
    words = (
        Word(start=9.0, end=10.3, word=" a", probability=1.0),
        Word(start=10.3, end=11.0, word=" b", probability=1.0),
    )
    assert [(w.start, w.end) for w in placed(said_at(9.0, 11.0, words), timeline).words] == [
        (9.0, 10.0),
        (30.3, 31.0),
    ]


def test_times_are_rounded_to_milliseconds():
    timeline = Timeline([Part(16_001, 160_007)])
    segment = placed(said_at(0.1, 0.7), timeline)
    assert (segment.start, segment.end) == (1.1, 1.7)


def test_without_padding_a_segment_ends_before_the_silence_all_the_same():
    """Predicted times are off by some tenths of a second, whatever the padding is."""
    audio = ArrayAudio(np.full(BLOCK * 1000, 0.1, np.float32))
    loud = iter(np.repeat(np.array([1, 0, 1], np.float32), [300, 400, 300]).tolist())

    def listener(blocks_nb):
        return np.array([next(loud) for _ in blocks_nb], np.float32)

    params = VoiceParams(vad=True, speech_pad=0.0)
    everything = [Part(0, BLOCK * 1000)]
    make = partial(MelWindows, n_mels=80)
    with detect_speech(audio, make, listener, params, clips=everything) as windows:
        segment = placed(said_at(5.0, 300 * BLOCK / 16_000 + 0.1), windows.timeline)
    assert (segment.start, segment.end) == (5.0, 300 * BLOCK / 16_000)
