"""Rejected results, repetitions and hallucinations."""

from collections.abc import Sequence

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


def result(
    avg_logprob: float = -0.3,
    compression_ratio: float = 1.5,
    no_speech_prob: float = 0.1,
    temperature: float = 0.0,
    repetition: str | None = None,
) -> DecodingResult:
    return DecodingResult(
        language="en",
        tokens=(1,),
        text="a",
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech_prob,
        temperature=temperature,
        compression_ratio=compression_ratio,
        repetition=repetition,
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


def repeated(tokens: Sequence[int]) -> Repetition | None:
    return repetition(tokens, EOT)


def test_four_copies_and_48_tokens_are_a_repetition():
    assert repeated(LINE * 4) == Repetition(begin=0, end=12, copies=4)
    assert repeated([7] * 48) == Repetition(begin=0, end=1, copies=48)
    assert repeated([20, 21, *LINE * 4]) == Repetition(begin=2, end=14, copies=4)


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
    assert repeated(spoken) is None


def test_a_last_copy_may_be_unfinished():
    assert repeated(LINE * 4 + LINE[:5]) == Repetition(begin=0, end=12, copies=4)
    assert repeated([5, 6] * 24 + [5]) == Repetition(begin=0, end=2, copies=24)


def test_timestamps_between_copies_do_not_hide_them():
    spoken = [token for i in range(6) for token in (BEGIN + i, *LINE, BEGIN + i + 1)]
    again = repeated([BEGIN, 20, 21, BEGIN + 5, *spoken])
    assert again == Repetition(begin=5, end=17, copies=6)


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
    again = repeated(tokens)
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


def kept_tokens(tokens: list[int]) -> tuple[int, ...]:
    again = repeated(tokens)
    assert again is not None
    return without_repetition(tokens, again, BEGIN)


def test_finished_segments_before_a_repetition_are_kept_and_it_is_not():
    finished = [BEGIN, 20, 21, BEGIN + 50, BEGIN + 50]
    assert kept_tokens([*finished, *LINE * 5]) == tuple(finished)
    assert kept_tokens([*finished, 22, *LINE * 5]) == (*finished, 22)


def test_otherwise_the_first_copy_is_kept_as_far_as_its_timestamp():
    assert kept_tokens([BEGIN, 20, *LINE * 5]) == (BEGIN, 20, *LINE)
    segments = [token for i in range(5) for token in (BEGIN + i, *LINE, BEGIN + i + 1)]
    assert kept_tokens(segments) == (BEGIN, *LINE, BEGIN + 1)
    assert kept_tokens(LINE * 5) == tuple(LINE)


WINDOW = Window(0, 3000)


def said(start: float, end: float, probability: float = 0.9, count: int = 4) -> Span:
    pace = (end - start) / count
    words = tuple(
        Word(
            start=start + i * pace,
            end=start + (i + 1) * pace,
            word=f" w{i}",
            probability=probability,
        )
        for i in range(count)
    )
    return Span(start, end, (50,) * count, words)


def made_up(start: float, end: float) -> Span:
    return said(start, end, probability=0.05)


def kept(*spans: Span, complete: bool = True, content_frames: int = 9000) -> KeptSegments:
    return without_hallucinations(
        KeptSegments(list(spans), 3000),
        WINDOW,
        threshold=2.0,
        complete=complete,
        last_speech=0.0,
        content_frames=content_frames,
    )


def test_speech_is_kept():
    spans = [said(0.5, 3.0), said(9.0, 12.0)]
    assert kept(*spans) == KeptSegments(spans, 3000)


def test_hallucinations_in_silence_are_dropped_and_decoded_again():
    first = said(0.5, 3.0)
    assert kept(first, made_up(9.0, 10.0)) == KeptSegments([first], 900)


def test_a_hallucination_at_the_end_ends_the_recording():
    first = said(0.5, 3.0)
    assert kept(first, made_up(9.0, 10.0), content_frames=1100) == KeptSegments([first], 1100)


def test_unlikely_words_between_others_are_kept():
    spans = [said(0.5, 3.0), made_up(3.5, 4.5), said(5.0, 7.0)]
    assert kept(*spans).spans == spans


def test_silence_before_a_hallucination_is_skipped_with_the_window():
    assert kept(made_up(4.0, 5.0)) == KeptSegments([], 400, skipped=True)


@pytest.mark.parametrize(("last", "seek"), [(20.0, 2000), (28.5, 3000)])
def test_an_unfinished_window_goes_on_at_its_last_word_or_at_its_end(last, seek):
    spans = [said(0.5, last, count=20)]
    assert kept(*spans, complete=False).seek == seek


def test_speech_ends_with_the_last_word_or_the_last_span():
    silent = Span(4.0, 6.0, (), ())
    assert end_of_speech([said(0.5, 3.0), silent]) == 3.0
    assert end_of_speech([silent]) == 6.0
    assert end_of_speech([]) is None
