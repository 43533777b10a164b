import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from cli.fakes import SEGMENTS, FakeModel, schema
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


def test_json_names_the_runtime_of_a_bundle(open_as, recording, capsys):
    open_as(FakeModel(), runtime="aoti")
    assert transcribe(recording("a.wav"), "--json") == 0
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
        (
            ["--max-line-width=9", "--highlight-words"],
            "highlight_words and max_line_width shape subtitles",
        ),
    ],
)
def test_options_that_would_have_no_effect_are_refused(words, reason, model, recording, capsys):
    assert transcribe(recording("a.wav"), *words) == 2
    assert reason in capsys.readouterr().err
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


def test_two_inputs_with_one_name_are_refused_before_any_work(model, recording, tmp_path, capsys):
    names = recording("a.wav"), recording("other/a.mp3")
    assert transcribe(*names, "--output-dir", str(tmp_path / "out")) == 2
    assert re.fullmatch(r"kvcast: .*would both be saved as a\.\*.*\n", capsys.readouterr().err)
    assert model.calls == []
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("names", [("same.wav", "SAME.flac"), ("\u00e9.wav", "e\u0301.mp3")])
def test_names_that_some_disks_take_for_the_same_are_refused(
    names, model, recording, tmp_path, capsys
):
    paths = [recording(name) for name in names]
    assert transcribe(*paths, "--output-dir", str(tmp_path / "out")) == 2
    assert "where capitals and accents do not count" in capsys.readouterr().err
    assert model.calls == []


def test_an_unusable_folder_is_reported_before_any_work(model, recording, tmp_path, capsys):
    recording("file")
    assert transcribe(recording("a.wav"), "--output-dir", str(tmp_path / "file" / "out")) == 74
    assert re.fullmatch(r"kvcast: cannot write .*out: Not a directory\n", capsys.readouterr().err)
    assert model.calls == []


def test_a_target_that_cannot_be_replaced_is_that_inputs_failure(
    model, recording, tmp_path, capsys
):
    (tmp_path / "out" / "a.txt").mkdir(parents=True)
    words = ["--output-dir", str(tmp_path / "out"), "--quiet"]
    assert transcribe(recording("a.wav"), recording("b.wav"), *words) == 3
    assert "a.txt" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", ["a" * 251 + ".wav", "あ" * 83 + "aa.wav"], ids=["a", "あ"])
def test_a_too_long_output_name_is_reported_before_any_work(
    name, model, recording, tmp_path, capsys
):
    words = ["--output-dir", str(tmp_path / "out"), "--format", "json"]
    assert transcribe(recording(name), *words) == 74
    assert re.fullmatch(r"kvcast: .*cannot write .*: File name too long\n", capsys.readouterr().err)
    assert model.calls == []


def test_a_missing_input_is_66_without_loading_a_model(model, tmp_path, capsys):
    assert transcribe(str(tmp_path / "gone.wav")) == 66
    assert capsys.readouterr().err == f"kvcast: {tmp_path}/gone.wav: there is no such file\n"
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


@pytest.mark.parametrize("name", ["", "a.wav/b.wav", "x" * 300 + ".wav"])
def test_odd_names_of_inputs_give_one_line(name: str, model, recording, tmp_path, capsys):
    model.failures = {name: InputOutputError("cannot be opened")}
    parent = recording("a.wav").removesuffix("a.wav") if name else ""
    assert transcribe(parent + name) in {66, 74}
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failure_to_load_is_reported_once(monkeypatch, recording, capsys):
    def fail(*_, **__):
        raise KvcastError("no model like that")

    monkeypatch.setattr("kvcast.loading.opening.open_model", fail)
    assert transcribe(recording("a.wav"), recording("b.wav")) == 1
    assert capsys.readouterr().err == "kvcast: no model like that\n"


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


def test_a_name_cannot_send_commands_to_the_terminal(model, tmp_path, capsys):
    assert transcribe(f"{tmp_path}/\x1b[2Jgone\n.wav") == 66
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_a_message_that_names_its_file_is_not_prefixed_with_it_again(model, recording, capsys):
    name = recording("a  b\n.wav")
    shown = name.replace("\n", "\\n")
    model.failures = {Path(name).name: InputOutputError(f"{shown} is empty: it has 0 bytes")}
    assert transcribe(name) == 74
    assert capsys.readouterr().err == f"kvcast: {shown} is empty: it has 0 bytes\n"


@pytest.mark.parametrize("words", [["-", "-"], ["-", "a.wav", "-"]])
def test_standard_input_is_named_once_at_most(words: list[str], model, capsys):
    assert transcribe(*words) == 2
    assert "only once" in capsys.readouterr().err


def test_a_draft_model_is_opened_and_its_counts_are_printed(open_as, recording, capsys):
    larger, smaller = FakeModel(draft=DraftCounts(proposed=8, accepted=6)), FakeModel()
    open_as(larger, small=smaller)
    assert transcribe(recording("a.wav"), "--draft", "small") == 0
    [(_, keywords)] = larger.calls
    assert keywords["draft"] is smaller
    assert "6 of 8 drafted tokens accepted" in capsys.readouterr().err
    assert transcribe(recording("a.wav"), "--draft", "small", "--json") == 0
    assert json.loads(capsys.readouterr().out)["draft"] == {"proposed": 8, "accepted": 6}
    assert transcribe(recording("a.wav"), "--draft", "ngram", "--beam", "5") == 2
    assert "draft needs a beam of 1" in capsys.readouterr().err
