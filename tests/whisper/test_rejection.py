"""Rejected results, repetitions and hallucinations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import Word
from kvcast.whisper.decoding import DecodingResult
from kvcast.whisper.hallucinations import KeptSegments, without_hallucinations
from kvcast.whisper.long_form import rejection
from kvcast.whisper.requests import Repetition, repetition, without_repetition
from kvcast.whisper.word_timestamps import Span, Window, end_of_speech


def result(**changes: Any) -> DecodingResult:
    usual = {"avg_logprob": -0.3, "compression_ratio": 1.5, "no_speech_prob": 0.1}
    return DecodingResult(
        language="en", tokens=(1,), text="a", temperature=0.0, **(usual | changes)
    )


@pytest.mark.parametrize(
    ("decoded", "reason"),
    [
        (result(), None),
        (result(compression_ratio=2.4), None),
        (result(compression_ratio=2.416), "compression_ratio 2.42 > 2.4"),
        (result(avg_logprob=-1.0), None),
        (result(avg_logprob=-1.25), "avg_logprob -1.25 < -1"),
        (
            result(avg_logprob=-1.25, compression_ratio=9),
            "compression_ratio 9.00 > 2.4 and avg_logprob -1.25 < -1",
        ),
        # Improbable and without speech is silence, which no temperature can mend.
        (result(avg_logprob=-1.25, no_speech_prob=0.61), None),
        (result(avg_logprob=-1.25, no_speech_prob=0.61, compression_ratio=9), None),
        (result(avg_logprob=-1.25, no_speech_prob=0.6), "avg_logprob -1.25 < -1"),
        (result(compression_ratio=9, no_speech_prob=0.99), "compression_ratio 9.00 > 2.4"),
        (result(repetition='repeats " a" 60 times'), 'repeats " a" 60 times'),
        (
            result(repetition='repeats " a" 60 times', compression_ratio=9),
            'repeats " a" 60 times and compression_ratio 9.00 > 2.4',
        ),
    ],
)
def test_a_rejection_says_why(decoded: DecodingResult, reason: str | None):
    assert rejection(decoded, TranscribeParams()) == reason


EOT = 1000
BEGIN = 2000
LINE = list(range(12))
STAMPED = [BEGIN, *LINE, BEGIN + 1]


@pytest.mark.parametrize(
    ("spoken", "found"),
    [
        (LINE * 4, (0, 12, 4)),
        ([7] * 48, (0, 1, 48)),
        ([20, 21, *LINE * 4], (2, 14, 4)),
        # A last copy may be unfinished.
        (LINE * 4 + LINE[:5], (0, 12, 4)),
        ([5, 6] * 24 + [5], (0, 2, 24)),
        # Timestamps between copies do not hide them.
        ([BEGIN, 20, 21, BEGIN + 5, *STAMPED * 6], (5, 17, 6)),
    ],
)
def test_four_copies_and_48_tokens_are_a_repetition(spoken: list[int], found: tuple[int, ...]):
    assert repetition(spoken, EOT) == Repetition(*found)


@pytest.mark.parametrize(
    "spoken",
    [
        [],
        [7] * 47,  # "no, no, no"
        LINE * 3,
        [*LINE, *LINE[:11], *LINE, *LINE],
        [*LINE[:11], 99, *LINE * 3],  # the first line is another
        list(range(20)) * 3,
        [*LINE * 8, 30],  # it went on
        list(range(200)),
    ],
)
def test_less_is_none(spoken: list[int]):
    assert repetition(spoken, EOT) is None


@given(
    before=st.lists(st.integers(0, 3), max_size=30),
    copy=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    copies=st.integers(1, 60),
    stamps=st.lists(st.integers(0, 200), max_size=6),
)
def test_whatever_is_found_is_there(before, copy, copies, stamps):
    tokens = before + copy * copies
    for place in stamps:
        tokens.insert(place, BEGIN + 5)
    again = repetition(tokens, EOT)
    if copies >= 4 and len(copy) * copies >= 48:
        assert again is not None
    if again is None:
        return
    text = [token for token in tokens[again.begin :] if token < EOT]
    first = [token for token in tokens[again.begin : again.end] if token < EOT]
    assert tokens[again.begin] < EOT
    assert tokens[again.end - 1] < EOT
    assert again.copies >= 4
    assert len(text) >= 48
    assert (first * (again.copies + 1))[: len(text)] == text


FINISHED = [BEGIN, 20, 21, BEGIN + 50, BEGIN + 50]


def kept_tokens(tokens: list[int]) -> tuple[int, ...]:
    again = repetition(tokens, EOT)
    assert again is not None
    return without_repetition(tokens, again, BEGIN)


@pytest.mark.parametrize(
    ("before", "copy", "kept"),
    [
        (FINISHED, LINE, []),
        ([*FINISHED, 22], LINE, []),
        # Without a finished segment, the first copy as far as its timestamp.
        ([BEGIN, 20], LINE, LINE),
        ([], STAMPED, STAMPED),
        ([], LINE, LINE),
    ],
)
def test_finished_segments_or_else_the_first_copy_are_kept(before, copy, kept):
    assert kept_tokens([*before, *copy * 5]) == (*before, *kept)


def said(start: float, end: float, probability: float = 0.9, count: int = 4) -> Span:
    edges = [start + i * (end - start) / count for i in range(count + 1)]
    words = tuple(
        Word(start=edges[i], end=edges[i + 1], word=f" w{i}", probability=probability)
        for i in range(count)
    )
    return Span(start, end, (50,) * count, words)


def kept(*spans: Span, complete: bool = True, content_frames: int = 9000) -> KeptSegments:
    options = {"threshold": 2.0, "last_speech": 0.0, "content_frames": content_frames}
    return without_hallucinations(
        KeptSegments(list(spans), 3000), Window(0, 3000), complete=complete, **options
    )


FIRST, IN_SILENCE = said(0.5, 3.0), said(9.0, 10.0, 0.05)


def test_speech_and_unlikely_words_between_are_kept():
    for spans in [FIRST, said(9.0, 12.0)], [FIRST, said(3.5, 4.5, 0.05), said(5.0, 7.0)]:
        assert kept(*spans) == KeptSegments(spans, 3000)


@pytest.mark.parametrize(("content_frames", "seek"), [(9000, 900), (1100, 1100)])
def test_hallucinations_in_silence_are_dropped_and_decoded_again_or_end_the_recording(
    content_frames, seek
):
    kept_segments = kept(FIRST, IN_SILENCE, content_frames=content_frames)
    assert kept_segments == KeptSegments([FIRST], seek)


def test_silence_before_a_hallucination_is_skipped_with_the_window():
    assert kept(said(4.0, 5.0, 0.05)) == KeptSegments([], 400, skipped=True)


@pytest.mark.parametrize(("last", "seek"), [(20.0, 2000), (28.5, 3000)])
def test_an_unfinished_window_goes_on_at_its_last_word_or_at_its_end(last, seek):
    spans = [said(0.5, last, count=20)]
    assert kept(*spans, complete=False).seek == seek


def test_speech_ends_with_the_last_word_or_the_last_span():
    silent = Span(4.0, 6.0, (), ())
    assert end_of_speech([said(0.5, 3.0), silent]) == 3.0
    assert end_of_speech([silent]) == 6.0
    assert end_of_speech([]) is None
