import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from cli.fakes import SEGMENTS, FakeModel, FakeTextModel, schema
from kvcast.cli import main
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.errors import InputOutputError, KvcastError

SCHEMA = schema("transcript")
TEXT = 'Hello there,\nGrüße aus 東京 --> \t"quoted".\n'


def transcribe(*words: str) -> int:
    return main(["transcribe", "--model", "demo", *words])


def test_text_goes_to_standard_output_and_nothing_to_standard_error(model, recording, capsys):
    assert transcribe(recording("a.wav")) == 0
    assert capsys.readouterr() == (TEXT, "")


def test_each_segment_is_printed_when_it_is_found(model, recording, capsys):
    printed: list[str] = []
    segments = model._segments

    def watched(name: str):
        for segment in segments(name):
            yield segment
            printed.append(capsys.readouterr().out)

    model._segments = watched
    assert transcribe(recording("a.wav")) == 0
    assert printed == TEXT.splitlines(keepends=True)


def test_the_model_is_loaded_with_the_options_asked_for(model, recording):
    words = ["--runtime", "eager", "--quantize", "int4", "--threads", "3"]
    assert transcribe(recording("a.wav"), *words) == 0
    loading = {"model": "demo", "runtime": "eager", "quantize": "int4", "threads": 3}
    others = {"dtype": None, "cache": None, "trust": False, "generation_config": True}
    others |= {"adapter": []}
    assert model.calls[0] == ("load", loading | others)


@pytest.mark.parametrize("fake", [FakeModel(), FakeTextModel()], ids=lambda fake: fake.task)
def test_json_names_the_runtime_of_a_bundle(fake, open_as, recording, capsys):
    open_as(fake, runtime="aoti")
    words = recording("a.wav") if fake.task == "transcribe" else "hello"
    assert main([fake.task, "--model", "demo", words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runtime"] == "aoti"


def test_one_model_serves_all_inputs(model, recording):
    assert transcribe(recording("a.wav"), recording("b.wav")) == 0
    assert [name for name, _ in model.calls].count("load") == 1


def test_standard_input_reaches_the_model_as_a_hyphen(model, monkeypatch, capsys):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert transcribe("-", "--json") == 0
    assert model.calls[1][0] == "-"
    assert json.loads(capsys.readouterr().out)["source"] == "-"


@pytest.mark.parametrize("words", [["--json"], ["--format", "json"], ["--json", "--quiet"]])
def test_json_is_one_valid_document_per_line(words: list[str], model, recording, capsys):
    names = [recording("a.wav"), recording("b.wav")]
    assert transcribe(*names, *words) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [document["source"] for document in documents] == names
    for document in documents:
        jsonschema.validate(document, SCHEMA)
        assert [s["text"] for s in document["segments"]] == [s.text for s in SEGMENTS]


@pytest.mark.parametrize("name", ["srt", "vtt", "tsv"])
def test_other_formats_are_printed_for_one_input_and_refused_for_several(
    name, model, recording, capsys
):
    assert transcribe(recording("a.wav"), "--format", name) == 0
    assert "Hello there," in capsys.readouterr().out
    assert transcribe(recording("a.wav"), recording("b.wav"), "--format", name) == 2
    assert "add --output-dir" in capsys.readouterr().err


SHAPING = ["--highlight-words", "--max-line-width=9", "--max-words-per-line=2"]


@pytest.mark.parametrize("shaping", SHAPING)
@pytest.mark.parametrize("name", ["srt", "vtt"])
def test_subtitle_layout_requests_word_timestamps(shaping, name, model, recording, capsys):
    assert transcribe(recording("a.wav"), "--format", name, shaping) == 0
    assert model.calls[-1][1]["word_timestamps"]
    assert " --> " in capsys.readouterr().out


@pytest.mark.parametrize("format", [[], ["--format", "tsv"], ["--json"]])
@pytest.mark.parametrize("shaping", SHAPING)
def test_subtitle_layout_is_refused_without_subtitles(shaping, format, model, recording, capsys):
    assert transcribe(recording("a.wav"), shaping, *format) == 2
    assert " shapes subtitles: add --format srt, or vtt, ass or lrc" in capsys.readouterr().err
    assert model.calls == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--format=srt", "--max-line-count=2"], "max_line_count needs max_line_width"),
        (["--append-punctuations=)"], "append_punctuations needs word_timestamps"),
        (["--vad-threshold=0.4"], "vad_threshold needs vad"),
        (["--max-line-width=9", "--highlight-words"], "highlight_words and max_line_width shape"),
        (["-", "-"], "only once"),
        (["--draft=ngram", "--beam=5"], "draft needs a beam of 1"),
    ],
)
def test_options_that_would_have_no_effect_are_refused(words, reason, model, recording, error_line):
    assert transcribe(recording("a.wav"), *words) == 2
    assert reason in error_line()
    assert model.calls == []


def test_lines_of_saved_subtitles_are_as_wide_as_asked_for(model, recording, tmp_path):
    out = tmp_path / "out"
    words = ["--format", "all", "-o", str(out), "--max-line-width", "9", "--max-line-count", "1"]
    assert transcribe(recording("a.wav"), *words) == 0
    for name, hours in (("a.srt", "00:"), ("a.vtt", "")):
        written = (out / name).read_text(encoding="utf-8")
        assert f"{hours}00:00" in written
        lines = [line for line in written.splitlines() if "-->" not in line]
        assert max(map(len, lines)) <= 9
        assert "Hello" in lines
    assert (out / "a.txt").read_text(encoding="utf-8") == TEXT


def test_all_formats_are_saved_under_the_inputs_name(model, recording, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    assert transcribe(recording("talk.v2.wav"), "--format", "all", "-o", str(out)) == 0
    assert sorted(path.name for path in out.iterdir()) == [
        f"talk.v2.{extension}" for extension in ("ass", "json", "lrc", "srt", "tsv", "txt", "vtt")
    ]
    assert (out / "talk.v2.txt").read_text(encoding="utf-8") == TEXT == capsys.readouterr().out
    jsonschema.validate(json.loads((out / "talk.v2.json").read_text(encoding="utf-8")), SCHEMA)


def test_with_a_folder_quiet_prints_nothing_and_json_prints_documents(
    model, recording, tmp_path, capsys
):
    saved = ["--output-dir", str(tmp_path / "out"), "--format", "vtt"]
    assert transcribe(recording("a.wav"), *saved, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert transcribe(recording("a.wav"), *saved, "--json", "--quiet") == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.vtt"]


def test_rules_of_replacement_are_read_from_a_file(model, recording, tmp_path, capsys):
    rules = tmp_path / "rules"
    rules.write_text("cube control => kubectl\n", encoding="utf-8")
    assert transcribe(recording("a.wav"), "--replace", str(rules)) == 0
    [(_, options)] = [call for call in model.calls if call[0] != "load"]
    assert options["replace"] == ("cube control => kubectl",)
    rules.write_text("cube control\n", encoding="utf-8")
    assert transcribe(recording("a.wav"), "--replace", str(rules)) == 2
    assert "replacement 1 must be FROM => TO" in capsys.readouterr().err
    assert transcribe(recording("a.wav"), "--replace", str(tmp_path / "gone")) == 66


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("a.wav other/a.mp3", "would both be saved as a.*"),
        ("same.wav SAME.flac", "where capitals and accents do not count"),
        ("\u00e9.wav e\u0301.mp3", "where capitals and accents do not count"),
    ],
)
def test_inputs_with_the_same_name_are_refused(
    names, reason, model, recording, tmp_path, error_line
):
    paths = [recording(name) for name in names.split()]
    assert transcribe(*paths, "--output-dir", str(tmp_path / "out")) == 2
    assert reason in error_line()
    assert model.calls == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "folder", "reason"),
    [
        ("a.wav", "file/out", "out: Not a directory"),
        ("a" * 251 + ".wav", "out", ": File name too long"),
        ("あ" * 83 + "aa.wav", "out", ": File name too long"),
    ],
    ids=["a file for a folder", "long", "long in UTF-8"],
)
def test_an_unusable_output_is_reported_before_any_work(
    name, folder, reason, model, recording, tmp_path, error_line
):
    recording("file")
    words = ["--output-dir", str(tmp_path / folder), "--format", "json"]
    assert transcribe(recording(name), *words) == 74
    assert re.fullmatch(f"kvcast: .*cannot write .*{reason}\n", error_line())
    assert model.calls == []


def test_a_target_that_cannot_be_replaced_is_that_inputs_failure(
    model, recording, tmp_path, capsys
):
    (tmp_path / "out" / "a.txt").mkdir(parents=True)
    words = ["--output-dir", str(tmp_path / "out"), "--quiet"]
    assert transcribe(recording("a.wav"), recording("b.wav"), *words) == 3
    assert "a.txt" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("command", ["transcribe", "detect"])
def test_a_missing_input_is_66_without_loading_a_model(command, model, tmp_path, error_line):
    assert main([command, "--model", "demo", str(tmp_path / "gone.wav")]) == 66
    assert error_line() == f"kvcast: {tmp_path}/gone.wav: there is no such file\n"
    assert model.calls == []


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ({}, 0),
        ({"a.wav": KvcastError("odd")}, 3),
        ({"a.wav": InputOutputError("odd"), "b.wav": InputOutputError("odd")}, 74),
        ({"a.wav": InputOutputError("odd"), "b.wav": KvcastError("odd")}, 1),
    ],
)
def test_exit_code_of_several_inputs(failures, code: int, model, recording, tmp_path, capsys):
    model.failures = failures
    out = tmp_path / "out"
    names = [recording("a.wav"), recording("b.wav")]
    assert transcribe(*names, "-o", str(out), "-q") == code
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"kvcast: {name}: odd" for name in names if Path(name).name in failures]
    saved = sorted(path.stem + ".wav" for path in out.iterdir())
    assert saved == [n for n in ("a.wav", "b.wav") if n not in failures]


def test_a_missing_one_of_several_leaves_the_others_alone(model, recording, tmp_path, capsys):
    assert transcribe(str(tmp_path / "gone.wav"), recording("a.wav")) == 3
    printed = capsys.readouterr()
    assert printed.out == TEXT
    assert printed.err == f"kvcast: {tmp_path}/gone.wav: there is no such file\n"


@pytest.mark.parametrize("name", ["", "a.wav/b.wav", "x" * 300 + ".wav", "\x1b[2Jgone\n.wav"])
def test_odd_names_of_inputs_give_one_line(name: str, model, recording, capsys):
    model.failures = {name: InputOutputError("cannot be opened")}
    parent = recording("a.wav").removesuffix("a.wav") if name else ""
    assert transcribe(parent + name) in {66, 74}
    err = capsys.readouterr().err
    assert (err.count("\n"), "\x1b" in err) == (1, False)


@pytest.mark.parametrize(
    "words", [["transcribe", "a.wav", "b.wav", "--model=m"], ["generate", "a", "--model=m"]]
)
def test_a_failure_to_load_is_reported_once(words, monkeypatch, recording, tmp_path, error_line):
    def fail(*_, **__):
        raise KvcastError("no model like that")

    monkeypatch.setattr("kvcast.loading.opening.open_model", fail)
    monkeypatch.chdir(tmp_path)
    for name in ("a.wav", "b.wav"):
        recording(name)
    assert main(words) == 1
    assert error_line() == "kvcast: no model like that\n"


def test_a_bug_is_one_line_and_the_other_inputs_are_done(model, recording, capsys, monkeypatch):
    monkeypatch.delenv("KVCAST_DEBUG", raising=False)
    model.failures = {"a.wav": ZeroDivisionError("of\nzero")}
    name = recording("a.wav")
    assert transcribe(name, recording("b.wav")) == 3
    printed = capsys.readouterr()
    assert printed.out.endswith(TEXT)
    assert printed.err == (
        f"kvcast: {name}: internal error (ZeroDivisionError: of zero); please report it; "
        "KVCAST_DEBUG=1 shows the traceback\n"
    )


def test_a_bug_shows_its_traceback_on_request(model, recording, capsys, monkeypatch):
    monkeypatch.setenv("KVCAST_DEBUG", "1")
    model.failures = {"a.wav": ZeroDivisionError("zero")}
    assert transcribe(recording("a.wav")) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_is_130_and_keeps_complete_files(model, recording, tmp_path, capsys):
    model.failures = {"b.wav": KeyboardInterrupt()}
    out = tmp_path / "out"
    names = [recording("a.wav"), recording("b.wav"), recording("c.wav")]
    assert transcribe(*names, "-o", str(out), "-q") == 130
    assert capsys.readouterr().err == "kvcast: interrupted\n"
    assert [path.name for path in out.iterdir()] == ["a.txt"]


def test_notices_are_lines_on_standard_error_unless_quiet(model, recording, capsys):
    model.notices = ("resampled", "two channels\nmixed")
    name = recording("a.wav")
    assert transcribe(name) == 0
    expected = f"kvcast: {name}: resampled\nkvcast: {name}: two channels mixed\n"
    assert capsys.readouterr() == (TEXT, expected)
    assert transcribe(name, "--quiet") == 0
    assert capsys.readouterr() == (TEXT, "")


def test_a_message_that_names_its_file_is_not_prefixed_with_it_again(model, recording, capsys):
    name = recording("a  b\n.wav")
    shown = name.replace("\n", "\\n")
    model.failures = {Path(name).name: InputOutputError(f"{shown} is empty: it has 0 bytes")}
    assert transcribe(name) == 74
    assert capsys.readouterr().err == f"kvcast: {shown} is empty: it has 0 bytes\n"


def test_a_draft_model_is_opened_and_its_counts_are_printed(open_as, recording, capsys):
    larger, smaller = FakeModel(draft=DraftCounts(proposed=8, accepted=6)), FakeModel()
    open_as(larger, small=smaller)
    assert transcribe(recording("a.wav"), "--draft", "small") == 0
    [(_, keywords)] = larger.calls
    assert keywords["draft"] is smaller
    assert "6 of 8 drafted tokens accepted" in capsys.readouterr().err
    assert transcribe(recording("a.wav"), "--draft", "small", "--json") == 0
    assert json.loads(capsys.readouterr().out)["draft"] == {"proposed": 8, "accepted": 6}
