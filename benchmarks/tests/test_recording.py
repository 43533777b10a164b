from pathlib import Path

import numpy as np
import pytest
import soundfile

from kvcast.errors import InputMissingError, UsageError
from kvcast_bench.recording import normalise, read_recordings, word_error


def test_normalisation_is_what_the_documentation_says():
    assert (
        normalise("Mr. Dashwood,  it\u2019s ill-disposed_!") == "mister dashwood its ill disposed"
    )
    assert normalise("Don't — Mrs. Smith") == "dont missus smith"


def test_case_and_marks_are_no_errors():
    assert word_error(["and mister john had then"], ["And Mr. John had, then."]) == 0


def test_errors_are_counted_over_the_words_of_the_reference():
    # One substitution, one deletion, one insertion.
    assert word_error(["a b c d e f"], ["a x c d e g f g"]) == pytest.approx(3 / 6)
    assert word_error(["one two three four"], [""]) == 1
    # What one recording lacks, another cannot make up for.
    assert word_error(["a b", "c d"], ["a", "b c d"]) == pytest.approx(2 / 4)


def test_a_reference_without_words_is_refused():
    with pytest.raises(UsageError, match="no words"):
        word_error(["a", "..."], ["a", "anything"])


def spoken(folder: Path, name: str, seconds: int, text: str | None) -> Path:
    path = folder / f"{name}.wav"
    soundfile.write(path, np.full(seconds * 16000, 0.1, np.float32), 16000, subtype="FLOAT")
    if text is not None:
        path.with_suffix(".txt").write_text(text)
    return path


def test_files_are_joined_in_their_order_and_so_are_their_references(tmp_path: Path):
    paths = [spoken(tmp_path, "b", 1, "first"), spoken(tmp_path, "a", 2, "second")]
    read = read_recordings([str(path) for path in paths], [p.with_suffix(".txt") for p in paths])
    [samples] = read["recordings"]
    assert len(samples) == 3 * 16000
    assert read["audio"] == {"name": "b.wav a.wav", "recordings": 1, "seconds": 3}
    assert read["references"] == ["first\nsecond"]
    assert read_recordings([str(paths[0])], [])["references"] is None


def test_a_folder_has_a_recording_for_each_file_with_a_text(tmp_path: Path):
    spoken(tmp_path, "b", 2, "second")
    spoken(tmp_path, "a", 1, "first")
    spoken(tmp_path, "c", 1, None)
    read = read_recordings([str(tmp_path)], [])
    assert [len(samples) for samples in read["recordings"]] == [16000, 32000]
    assert read["audio"] == {"name": tmp_path.name, "recordings": 2, "seconds": 3}
    assert read["references"] == ["first", "second"]


def test_a_folder_comes_alone_and_has_texts(tmp_path: Path):
    with pytest.raises(InputMissingError, match="no recording with a text beside it"):
        read_recordings([str(tmp_path)], [])
    path = spoken(tmp_path, "a", 1, "first")
    for sources, references in (
        ([str(tmp_path), str(path)], []),
        ([str(tmp_path)], [path.with_suffix(".txt")]),
    ):
        with pytest.raises(UsageError, match="is a folder: give it alone"):
            read_recordings(sources, references)
