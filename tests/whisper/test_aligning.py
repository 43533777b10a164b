"""A given text has the times that transcribing gives to the same words."""

import json

import numpy as np
import pytest

from kit.recordings import EXAMPLE
from kvcast.cli import main
from kvcast.errors import UsageError
from kvcast.transcripts.segments import Word
from kvcast.whisper.model import WhisperModel
from kvcast.whisper.text_placement import GivenWord, MatchedText, RecognizedWord
from kvcast.whisper.word_matching import matched
from kvcast.whisper.word_timestamps import Window

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


def in_lines(words: list[Word]) -> list[list[Word]]:
    return [words[i : i + 7] for i in range(0, len(words), 7)]


def joined(lines: list[list[Word]]) -> str:
    return "\n".join("".join(word.word for word in line) for line in lines)


UNSPOKEN = "Nobody on this ship had ever seen so large a wave"


@pytest.fixture(scope="module")
def spoken_lines(model, recordings) -> list[list[Word]]:
    segments = model.transcribe(recordings["example"], temperature=0.0, word_timestamps=True)
    return in_lines([word for segment in segments for word in segment.words or ()])


@pytest.mark.parametrize(
    "part", [slice(2), slice(3, 6), slice(-2, None)], ids=["first", "middle", "last"]
)
def test_a_part_of_the_text_has_the_times_that_it_has_in_the_whole(
    model, recordings, spoken_lines, part
):
    alignment = model.align(recordings["example"], joined(spoken_lines[part]))
    words = [word for segment in alignment.segments for word in segment.words or ()]
    assert median_apart(words, [word for line in spoken_lines[part] for word in line]) <= USUAL
    assert all(segment.score > 0.5 for segment in alignment.segments)
    assert alignment.notices == ()


def test_lines_that_are_not_spoken_are_told_and_left_out(model, recordings, spoken_lines):
    lines = joined(spoken_lines).splitlines()
    text = "\n".join([*lines[:2], "", UNSPOKEN, *lines[5:], UNSPOKEN, UNSPOKEN])
    alignment = model.align(recordings["example"], text)
    count = len(lines)
    assert alignment.notices == (f"not found in the recording: lines 4, {count} to {count + 1}",)
    unspoken = [segment for segment in alignment.segments if not segment.has_times]
    assert [segment.text.strip() for segment in unspoken] == [UNSPOKEN] * 3
    assert {(segment.score, segment.words) for segment in unspoken} == {(0.0, ())}
    words = [word for segment in alignment.segments for word in segment.words or ()]
    said = [word for line in (*spoken_lines[:2], *spoken_lines[5:]) for word in line]
    assert [word.word.strip() for word in words] == [word.word.strip() for word in said]
    assert median_apart(words, said) <= USUAL
    fields = alignment.to_dict()["segments"][2]
    assert [fields[name] for name in ("start", "end", "words", "score")] == [None, None, [], 0.0]
    for subtitles in (alignment.to_srt(), alignment.to_vtt()):
        assert UNSPOKEN not in subtitles
        assert "nan" not in subtitles
    assert UNSPOKEN in alignment.text


def test_a_line_of_which_the_recording_has_a_part_is_told(model, recordings, spoken_lines):
    said = [word for line in spoken_lines for word in line]
    end = 9.0
    samples = recordings["example"][: int(end * 16_000)]
    alignment = model.align(samples, "".join(word.word for word in said))
    assert alignment.notices == ("found only in part: line 1",)
    [segment] = alignment.segments
    heard = [word for word in said if word.end < end - 1]
    assert median_apart(list(segment.words or ())[: len(heard)], heard) <= USUAL
    assert 0.2 < segment.score < 0.6


def test_another_text_silence_and_no_text_are_errors(model, recordings):
    text = "Wholly other words\nthat nobody said"
    with pytest.raises(UsageError, match="the text was not found in the recording"):
        model.align(recordings["example"], text)
    with pytest.raises(UsageError, match="no speech was recognised"):
        model.align(np.zeros(32_000, np.float32), "a")
    with pytest.raises(UsageError, match="there is no text to align"):
        model.align(recordings["example"], " \n")


@pytest.mark.parametrize(
    ("given", "recognized", "pairs"),
    [
        ("a b c", "x y a b c z", [(0, 2), (1, 3), (2, 4)]),
        ("x y a b c z", "a b c", [(2, 0), (3, 1), (4, 2)]),
        ("a x c d", "a b c d", [(0, 0), (2, 2), (3, 3)]),
        ("a b , c", "a b c", [(0, 0), (1, 1), (3, 2)]),
        ("a b x y z c d", "p a b q r s t u c d", [(0, 1), (1, 2), (5, 8), (6, 9)]),
        ("the x y", "p the q", []),  # a single word may be anywhere
        ("a b c d", "a q r s b t u v c w p o d e", []),
        ("", "a", []),
    ],
)
def test_words_are_matched_in_runs(given, recognized, pairs):
    plain = [word.strip(",") for word in given.split()]
    assert matched(plain, recognized.split()) == pairs


def chunks(phrases: list[str], windows: list[str], second: float = 0.5) -> list[tuple[str, ...]]:
    """Return each chunk's text, first and last second; words take `second` each."""
    given = [
        GivenWord((number,), (0, 1), word, number, number)
        for number, phrase in enumerate(phrases)
        for word in phrase.split()
    ]
    recognized = list[RecognizedWord]()
    for words in windows:
        start = len(recognized) * second
        window = Window(round(100 * start), round(100 * second * len(words.split())))
        for word in words.split():
            at = len(recognized) * second
            recognized.append(RecognizedWord(word, at, at + second, window))
    text = MatchedText.of(given, recognized)
    text = text.without(text.without_room(len(recognized) * second))
    return [
        (" ".join(word.plain for word in each.words), each.audio.start, each.audio.end)
        for each in text.chunks()
    ]


@pytest.mark.parametrize(
    ("phrases", "windows", "expected"),
    [
        (["a b c d e"], ["a b c", "d e"], [("a b c", 0, 1.5), ("d e", 1.5, 2.5)]),
        (["a x c d e"], ["a b c", "d e"], [("a x c", 0, 1.5), ("d e", 1.5, 2.5)]),
        # One unlike word is recognized, so one is of this window.
        (["a b x y d e"], ["a b c", "d e"], [("a b x", 0, 1.5), ("y d e", 1.5, 2.5)]),
        (["d e"], ["a b", "d e"], [("d e", 1, 2)]),
        (["x y z"], ["a b", "c d"], [("x y", 0, 1), ("z", 1, 2)]),
        (["d e"], ["a b c d e f g h"], [("d e", 1.5, 2.5)]),
        (["a b", "g h"], ["a b c d e f g h"], [("a b", 0, 1), ("g h", 3, 4)]),
        # Phrases without a match take the place of what differs, unless there is no room.
        (["a b", "x y z", "g h"], ["a b c d e g h"], [("a b x y z g h", 0, 3.5)]),
        (["a b", "x y z v w", "g h"], ["a b g h"], [("a b g h", 0, 2)]),
        ([" ".join("uvwxyz" * 20), "a b"], ["a b c"], [("a b", 0, 1.5)]),
    ],
)
def test_a_text_is_cut_into_passages(phrases, windows, expected):
    assert chunks(phrases, windows) == expected


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


def test_the_command_tells_of_lines_that_were_not_found(tmp_path, capsys):
    said = EXAMPLE.with_suffix(".txt").read_text(encoding="utf-8").split()
    text = tmp_path / "part.txt"
    text.write_text(f"{' '.join(said[20:40])}\n{UNSPOKEN}\n")
    assert main(["align", str(EXAMPLE), str(text), "--model", "demo"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("-->") == 1
    assert f"{EXAMPLE}: not found in the recording: line 2\n" in printed.err
    text.write_text(f"{UNSPOKEN}\n")
    assert main(["align", str(EXAMPLE), str(text), "--model", "demo"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("kvcast: the text was not found in the recording")
