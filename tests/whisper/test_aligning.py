"""A given text has the times that transcribing gives to the same words."""

import json

import numpy as np
import pytest

from kit.recordings import EXAMPLE
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.transcripts.segments import Word
from kvcast.whisper.forced_alignment import _parts, _share
from kvcast.whisper.model import WhisperModel

USUAL = 0.05


@pytest.fixture(scope="module")
def model(load) -> WhisperModel:
    return load("demo", runtime="native")


@pytest.fixture(scope="module")
def expected(model, recordings) -> list[Word]:
    samples = recordings["two windows"]
    segments = model.transcribe(samples, temperature=0.0, word_timestamps=True)
    return [word for segment in segments for word in segment.words or ()]


def median_apart(words: list[Word], others: list[Word]) -> float:
    times, expected = (
        np.array([t for word in timed for t in (word.start, word.end)]) for timed in (words, others)
    )
    return float(np.median(np.abs(times - expected)))


def test_aligned_words_have_the_times_of_a_transcript(model, recordings, expected):
    said = "".join(word.word for word in expected).split()
    lines = [" ".join(said[i : i + 7]) for i in range(0, len(said), 7)]
    alignment = model.align(recordings["two windows"], "\n".join(lines))
    assert [segment.text for segment in alignment.segments] == [f" {line}" for line in lines]
    words = [word for segment in alignment.segments for word in segment.words or ()]
    assert [word.word for word in words] == [word.word for word in expected]
    assert median_apart(words, expected) <= USUAL
    assert alignment.notices == ()
    assert {segment.seek > 0 for segment in alignment.segments} == {False, True}


def test_a_text_that_differs_has_the_times_of_the_words_it_shares(model, recordings, expected):
    changed = [word for i, word in enumerate(expected) if i % 9 != 4]
    texts = [" house" if i % 7 == 3 else word.word for i, word in enumerate(changed)]
    alignment = model.align(recordings["two windows"], "".join(texts), language="en")
    words = alignment.segments[0].words or ()
    assert len(words) == len(texts)
    shared = [i for i in range(len(texts)) if i % 7 != 3]
    assert median_apart([words[i] for i in shared], [changed[i] for i in shared]) <= USUAL
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)


def test_another_text_is_a_notice_and_silence_or_no_text_an_error(model, recordings):
    alignment = model.align(recordings["example"], "Wholly other words\nthat nobody said")
    [notice] = alignment.notices
    assert notice.startswith("of 6 words, 0 were recognised as given")
    assert len(alignment.segments) == 2
    with pytest.raises(UsageError, match="no speech was recognised"):
        model.align(np.zeros(32_000, np.float32), "a")
    with pytest.raises(UsageError, match="there is no text to align"):
        model.align(recordings["example"], " \n")


@pytest.mark.parametrize(
    ("ahead", "here", "following", "count"),
    [
        ("a b c d e", "a b c", "d e", 3),
        ("a x c d e", "a b c", "d e", 3),
        ("a b x y d e", "a b c", "d e", 3),  # one unlike word is heard, so one is of this window
        ("d e", "a b", "d e", 0),
        ("a b c d", "", "c d", 0),
        ("x y z", "a b", "c d", 2),
    ],
)
def test_words_are_divided_among_windows(ahead, here, following, count):
    assert _share(ahead.split(), here.split(), following.split())[0] == count


def test_nothing_of_a_text_is_left_out():
    assert _parts([], []) == ([], 0)


def test_the_command_writes_subtitles_and_words(tmp_path, capsys):
    text = EXAMPLE.with_suffix(".txt")
    given = ["align", str(EXAMPLE), str(text), "--model", "demo", "--quiet", "--cues", "sentence"]
    assert main([*given, "--format", "all", "--output-dir", str(tmp_path)]) == 0
    subtitles = (tmp_path / f"{EXAMPLE.stem}.srt").read_text(encoding="utf-8")
    assert subtitles.startswith("1\n00:00:00,000 --> 00:00:")
    document = json.loads((tmp_path / f"{EXAMPLE.stem}.json").read_text(encoding="utf-8"))
    said = text.read_text(encoding="utf-8").split()
    assert [word["word"].strip() for word in document["segments"][0]["words"]] == said
    assert main([*given[:2], str(tmp_path / "gone"), *given[3:]]) == 66
    assert main(["align", "-", "-", "--model", "demo"]) == 2
