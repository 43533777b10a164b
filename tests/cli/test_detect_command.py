import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest

from cli.fakes import schema
from kvcast.cli import main
from kvcast.errors import InputOutputError, KvcastError
from kvcast.whisper.language_detection import DetectedLanguage

SCHEMA = schema("language")
GERMAN = DetectedLanguage(
    language="de",
    probabilities={"de": 0.75, "nl": 0.125, "en": 0.12, "fr": 0.005, "zu": 0.0},
    windows=2,
)
HAWAIIAN = DetectedLanguage(language="haw", probabilities={"haw": 1.0, "en": 0.0}, windows=1)


@dataclass
class FakeDetector:
    task: ClassVar[str] = "transcribe"
    is_multilingual: bool = True
    found: dict[str, Any] = field(default_factory=dict)
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def detect_language(self, source: str, **keywords: Any) -> DetectedLanguage:
        self.calls.append((source, keywords))
        result = self.found.get(Path(source).name, GERMAN)
        if isinstance(result, BaseException):
            raise result
        return result


@pytest.fixture
def detector(open_as: Callable[..., None]) -> FakeDetector:
    model = FakeDetector()
    open_as(model, calls=model.calls)
    return model


def detect(*words: str) -> int:
    return main(["detect", "--model", "demo-base", *words])


def test_each_recording_is_a_row_and_columns_are_aligned(detector, recording, capsys):
    detector.found["longer.wav"] = HAWAIIAN
    short, longer = recording("a.wav"), recording("longer.wav")
    assert detect(short, longer) == 0
    assert capsys.readouterr() == (
        f"{short:<{len(longer)}}  de   German          0.75  nl 0.12  en 0.12  fr 0.01\n"
        f"{longer}  haw  Hawaiian        1.00\n",
        "",
    )


def test_json_is_one_valid_document_per_line(detector, recording, capsys):
    names = [recording("a.wav"), recording("b.wav")]
    assert detect(*names, "--json") == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["source"] for document in documents] == names
    for document in documents:
        jsonschema.validate(document, SCHEMA)
        assert document["model"] == "demo-base"
        assert (document["language"], document["probability"]) == ("de", 0.75)
        assert list(document["probabilities"]) == ["de", "nl", "en", "fr", "zu"]


def test_options_arrive_at_the_model(detector, recording):
    words = ["--language_detection_threshold", "0.9", "--language-detection-segments", "9"]
    words += ["--audio-track", "de"]
    assert detect(recording("a.wav"), *words, "--runtime", "eager") == 0
    (_, loading), (_, asked) = detector.calls
    assert loading["runtime"] == "eager"
    assert asked == {
        "audio_track": "de",
        "language_detection_threshold": 0.9,
        "language_detection_segments": 9,
    }


def test_notices_are_lines_on_standard_error_unless_quiet(detector, recording, capsys):
    detector.found["a.wav"] = DetectedLanguage(
        language="en", probabilities={"en": 0.4}, windows=1, notices=("it is silent",)
    )
    name = recording("a.wav")
    assert detect(name) == 0
    assert capsys.readouterr().err == f"kvcast: {name}: it is silent\n"
    assert detect(name, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_an_english_only_model_is_reported_once(detector, recording, error_line):
    detector.is_multilingual = False
    assert detect(recording("a.wav"), recording("b.wav")) == 2
    assert error_line() == "kvcast: demo-base knows English only: there is no language to detect\n"


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ({"a.wav": KvcastError("odd")}, 3),
        ({"a.wav": InputOutputError("odd"), "b.wav": InputOutputError("odd")}, 74),
    ],
)
def test_exit_code_of_several_inputs(failures, code: int, detector, recording, capsys):
    detector.found = failures
    names = [recording("a.wav"), recording("b.wav")]
    assert detect(*names) == code
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"kvcast: {name}: odd" for name in names if Path(name).name in failures
    ]
    assert len(printed.out.splitlines()) == len(names) - len(failures)


@pytest.mark.parametrize(
    "words",
    [
        ["--language-detection-threshold", "1.5"],
        ["--language-detection-segments", "0"],
        ["--language", "de"],
        ["--model="],
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(words, detector, recording, error_line):
    assert detect(recording("a.wav"), *words) == 2
    assert error_line()
    assert detector.calls == []


def test_a_name_cannot_send_commands_to_the_terminal(detector, recording, capsys):
    assert detect(recording("a\x1b[2Jb.wav")) == 0
    assert "\x1b" not in capsys.readouterr().out
