"""What is dropped as made up; the whole rule is held against openai-whisper's transcribe."""

import pytest

from kvcast.transcripts.segments import Word
from kvcast.whisper.hallucinations import KeptSegments, without_hallucinations
from kvcast.whisper.word_timestamps import Span, Window, end_of_speech

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
