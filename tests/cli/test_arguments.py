import argparse
import contextlib
import math
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcast.cli import (
    COMMANDS,
    arguments,
    completion,
    export,
    generate,
    main,
    parsers,
    serve,
    transcribe,
)
from kvcast.cli.arguments import Parser, normalise, number, several, whole_number
from kvcast.cli.option_aliases import aliases, translated, words_of
from kvcast.cluster.params import ClusterParams
from kvcast.errors import UsageError
from kvcast.loading.params import OF_TEXTS, LoadParams
from kvcast.speech.params import LiveParams, TranscribeParams
from kvcast.text.params import PromptParams
from kvcast.transcripts.params import FolderParams, SubtitleParams

DOCS = Path(__file__).parents[2] / "docs"


def parsed(*words: str) -> argparse.Namespace:
    parser = Parser(prog="kvcast transcribe")
    transcribe.add_arguments(parser)
    return parser.parse_args(normalise(words))


def keywords(*words: str) -> dict[str, object]:
    return arguments.keywords(parsed("a.wav", *words), TranscribeParams)


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("--best_of 3", "--best-of 3"),
        ("--best_of=3", "--best-of=3"),
        ("--model my_model", "--model my_model"),
        ("--initial_prompt=snake_case", "--initial-prompt=snake_case"),
        ("--suppress_tokens -1,50257", "--suppress-tokens=-1,50257"),
        ("--logprob_threshold -.5", "--logprob-threshold=-.5"),
        ("--condition_on_previous_text True a", "--condition-on-previous-text a"),
        ("--condition-on-previous-text False a", "--no-condition-on-previous-text a"),
        ("--condition_on_previous_text=False", "--no-condition-on-previous-text"),
        ("--condition_on_previous_text a.wav", "--condition-on-previous-text a.wav"),
        ("--word_timestamps True a.wav", "--word-timestamps a.wav"),
        ("--word_timestamps False --highlight_words=False a.wav", "a.wav"),
        ("--highlight_words True", "--highlight-words"),
        ("a.wav -", "a.wav -"),
        ("-- --my_file -1", "-- --my_file -1"),
    ],
)
def test_spellings(typed: str, spelled: str):
    assert normalise(typed.split()) == spelled.split()


def test_whispers_own_command_line_is_understood():
    whispers = """--beam_size 5 --best_of 4 --patience 1.5 --length_penalty 0.5 --temperature 0
        --suppress_tokens -1,11 --condition_on_previous_text False --logprob_threshold -0.5
        --compression_ratio_threshold None --no_speech_threshold None --task translate
        --language de --output_format txt --output_dir out --threads 3 --word_timestamps True
        --hallucination_silence_threshold 2 --prepend_punctuations ( --append_punctuations )
        --clip_timestamps 0,10,30,45.5"""
    got = keywords(*shlex.split(whispers))
    defaults = {option.name: option.default for option in TranscribeParams.declared()}
    assert got == defaults | {
        "language": "de",
        "task": "translate",
        "clip_timestamps": "0,10,30,45.5",
        "beam": 5,
        "best_of": 4,
        "temperature": (0.0,),
        "patience": 1.5,
        "length_penalty": 0.5,
        "suppress_tokens": "-1,11",
        "condition_on_previous_text": False,
        "compression_ratio_threshold": None,
        "logprob_threshold": -0.5,
        "no_speech_threshold": None,
        "word_timestamps": True,
        "prepend_punctuations": "(",
        "append_punctuations": ")",
        "hallucination_silence_threshold": 2.0,
    }


@pytest.mark.parametrize("typed", ["0,0.2,1", "0 0.2 1", "0, 0.2, 1"])
def test_temperatures_by_commas_or_spaces(typed: str):
    assert keywords("--temperature", typed)["temperature"] == (0.0, 0.2, 1.0)


WRONG = """
--beam 0; --beam -3; --beam 2.5; --beam nan; --best-of 0; --patience 0; --patience nan
--temperature nan; --temperature inf; --temperature=-0.1; --temperature 0,x; --temperature=,
--length-penalty 1.5; --suppress-tokens a,b; --suppress-tokens 1,,2; --max-new-tokens 0; --seed -1
--clip-start -1; --clip-start nan; --clip-end 0; --clip-end inf; --clip-start 5 --clip-end 5
--clip-timestamps 1,x; --clip-timestamps 5,1; --clip-timestamps 1,2 --clip-end 5
--repetition-penalty 0; --no-repeat-ngram -1; --language-detection-threshold 2
--multilingual --language de; --no-speech-threshold 1.5; --compression-ratio-threshold -1
--logprob-threshold nan; --threads 0; --threads 9999999999; --task sing; --format docx; --format all
--json --format srt; --runtime tpu; --quantize int3; --language=; --model=; --bea 3; --unknown
--beam; --condition-on-previous-text=maybe
"""


@pytest.mark.parametrize("words", WRONG.strip().replace("\n", "; ").split("; "))
def test_a_wrong_option_is_one_line_and_exit_code_2(words: str, model, recording, error_line):
    assert main(["transcribe", recording("a.wav"), "--model", "demo", *words.split()]) == 2
    assert error_line()
    assert model.calls == []


@pytest.mark.parametrize(
    "words", [[], ["dance"], ["transcribe"], ["export", "demo"], ["--frobnicate"], ["export"]]
)
def test_a_wrong_command_is_one_line_and_exit_code_2(words: list[str], error_line):
    assert main(words) == 2
    assert error_line()


def test_what_is_misspelt_names_what_it_resembles(error_line):
    assert main(["trancribe"]) == 2
    assert "there is no command 'trancribe': did you mean transcribe?" in error_line()
    assert main(["dance"]) == 2
    assert "'dance': transcribe, detect, align," in error_line()
    assert main(["transcribe", "a.wav", "--langage", "de"]) == 2
    assert "--langage de (did you mean --language?); see kvcast transcribe --help" in error_line()
    assert main(["generate", "a", "--temprature=1"]) == 2
    assert "did you mean --temperature?" in error_line()


@pytest.mark.parametrize("command", ["transcribe", "generate", "chat", "serve"])
def test_help_shows_a_dozen_options_with_examples_and_help_all_the_rest(
    command, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "70")
    for word in ("--help", "-h", "--help-all"):
        with pytest.raises(SystemExit) as end:
            main([command, word])
        assert end.value.code in (None, 0)
    brief, same, whole = capsys.readouterr().out.split(f"usage: kvcast {command} ")[1:]
    assert brief == same
    assert 8 <= brief.count("\n  -") <= 12 < whole.count("\n  -")
    assert brief.count(f"\n  kvcast {command}") == 2
    assert f"kvcast {command} --help-all shows all" in brief
    assert "exit codes" in whole
    filled = brief.partition("common options")[0] + brief.rpartition("\n\n")[2]
    assert max(len(line) for line in filled.splitlines() if line[:1] != " ") <= 70


def of_all_levels(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from of_all_levels(command)


@pytest.mark.parametrize("columns", [60, 80])
def test_no_line_of_any_help_is_wider_than_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    parser, _ = parsers(COMMANDS)
    for each in of_all_levels(parser):
        each.print_help()
        shown = each.format_help() + capsys.readouterr().out
        assert [line for line in shown.splitlines() if len(line) > columns] == [], each.prog


def test_a_long_line_of_help_is_broken_after_commas_and_commands_stay_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        main(["transcribe", "--help"])
    text = capsys.readouterr().out
    choices = "\n  --format, -f, --output-format {text,srt,vtt,ass,lrc,tsv,\n      json,all}\n"
    assert choices in text
    commands = text.partition("common options")[0].replace("\\\n", "").splitlines()
    words = [shlex.split(line) for line in commands if line.startswith("  kvcast")]
    assert [line.split() for line in transcribe.EXAMPLES.splitlines()] == words


def test_every_option_of_the_brief_help_exists():
    _, commands = parsers([*COMMANDS.keys() - {"bench"}])
    for parser in commands.values():
        assert {*parser.brief} <= {action.dest for action in parser.arguments}


def test_other_programs_commands_are_ours(monkeypatch):
    monkeypatch.setattr("kvcast.cli.list_models.run", lambda _: 7)
    assert main(["ls"]) == 7


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_completion_names_commands_and_options(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    options = ("max-new-tokens", "output-dir", "help-all")
    assert all(word in script for word in (*COMMANDS, *options))


def test_completion_needs_no_package_of_benchmarks(monkeypatch, capsys):
    monkeypatch.setattr("kvcast.cli.bench.find_spec", lambda _: None)
    assert main(["completion", "bash"]) == 0
    assert "quantize" in capsys.readouterr().out


def test_help_all_is_help_where_that_shows_all(capsys):
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            main(["export", word])
    first, second = capsys.readouterr().out.split("usage: ")[1:]
    assert first == second


def test_the_completion_of_bash_runs(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    (tmp_path / "kvcast").write_text(capsys.readouterr().out)
    program = (
        f'. {tmp_path}/kvcast; tried() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); '
        "_shtab_kvcast; echo ${COMPREPLY[@]}; }; "
        "tried kvcast tran; tried kvcast generate --max; tried kvcast generate --runtime na"
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["transcribe", "--max-new-tokens", "native"]


@pytest.mark.parametrize(
    ("reader", "text", "message"),
    [
        (whole_number(1, 9), "10", "a whole number from 1 to 9, not '10'"),
        (number(), "x", "a number, not 'x'"),
        (number(0.0), "-1", "a number of at least 0, not '-1'"),
        (number(0.0, 1.0), "2", "a number of at least 0 and at most 1, not '2'"),
        (number(above=0.0), "0", "a number above 0, not '0'"),
        (several(number(above=0.0)), "1 0", "a number above 0, not '0'"),
    ],
)
def test_a_refused_value_is_reported_with_its_bounds(reader, text: str, message: str):
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(f"must be {message}")):
        reader(text)


def test_bounds_themselves_are_inside():
    assert (whole_number(1, 9)("1"), whole_number(1, 9)("9")) == (1, 9)
    assert (number(0.0, 1.0)("0"), number(0.0, 1.0)("1")) == (0.0, 1.0)
    assert number(above=0.0)("1e-9") > 0
    assert math.isclose(number()("-3.5"), -3.5)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [("1:30", 90), ("1:02:03.5", 3723.5), ("90", 90), ("0:05", 5), ("1:5", None), ("-1:30", None)],
)
def test_times_are_read_as_players_show_them(words: str, seconds: float | None, capsys):
    if seconds is None:
        assert main(["transcribe", "a.wav", "-m", "demo", f"--clip-start={words}"]) == 2
        assert "argument --clip-start: must be a number" in capsys.readouterr().err
    else:
        assert parsed("a.wav", "--clip-start", words).clip_start == seconds
        assert parsed("a.wav", "--clip-timestamps", f"0,{words}").clip_timestamps == f"0,{words}"
        assert TranscribeParams(clip_timestamps=f"0,{words}").clips == ((0, seconds),)


@pytest.mark.parametrize(
    ("command", "theirs", "ours"),
    [
        ("transcribe", "--device cpu a.wav --device=AUTO", "a.wav"),
        ("transcribe", "--fp16 False a.wav --fp16", "a.wav"),
        ("transcribe", "--compute-type int8_float32", "--quantize int8"),
        ("transcribe", "--vad-filter True --vad-filter", "--vad --vad"),
        ("transcribe", "--vad-filter=False a.wav", "a.wav"),
        ("transcribe", "--vad-filter a.wav", "--vad a.wav"),
        ("transcribe", "--vad-min-silence-duration-ms 500", "--min-silence 0.5"),
        ("transcribe", "--output-srt --translate a.wav", "--format srt --task translate a.wav"),
        ("transcribe", "-- --device cpu", "-- --device cpu"),
        ("export", "--device cuda", "--device cuda"),
        ("generate", "--n-predict 5 --temp 0.7", "--max-new-tokens 5 --temperature 0.7"),
        ("generate", "-p Hello -n 5", "Hello --max-new-tokens 5"),
        ("serve", "a --parallel 4 --max-num-seqs=8", "a --rows 4 --rows 8"),
    ],
)
def test_options_of_other_programs_are_taken_where_they_mean_the_same(command, theirs, ours):
    assert translated(command, theirs.split()) == ours.split()


@pytest.mark.parametrize(
    ("command", "words", "says"),
    [
        ("transcribe", "--device cuda", "--device cuda has no equal here: kvcast's kernels"),
        ("transcribe", "--fp16 True", "--quantize none is fp32"),
        ("transcribe", "--compute_type float16", "--quantize int8 is the default"),
        ("transcribe", "--vad_speech_pad_ms x", "must be a number, not 'x'"),
        ("transcribe", "--batch_size", "--batch-size needs a value; here it is --batch"),
        ("generate", "--ctx-size 4096", "a cache is as long as its text,"),
        ("transcribe", "--frobnicate", "unrecognized arguments: --frobnicate; see kvcast tran"),
        ("serve", "--frobnicate", "arguments: --frobnicate; see kvcast serve --help"),
    ],
)
def test_options_without_an_equal_are_one_line_that_helps(command, words, says, error_line):
    assert main([command, "a.wav", *words.split()]) == 2
    assert says in error_line()


def test_an_option_of_another_program_is_none_of_ours_and_becomes_one():
    for name, module in (("transcribe", transcribe), ("generate", generate), ("serve", serve)):
        flags = {flag for action in actions(module) for flag in action.option_strings}
        table = aliases(name)
        assert not flags & set(table)
        for theirs, foreign in table.items():
            for value in ("1", *foreign.values):
                with contextlib.suppress(UsageError):
                    words = words_of(theirs, value, foreign)
                    assert {word for word in words if word.startswith("-")} <= flags


def actions(command):
    parser = Parser(prog="kvcast")
    command.add_arguments(parser)
    return parser._actions


@pytest.mark.parametrize(
    ("command", "declared", "others"),
    [
        (
            transcribe,
            (LoadParams, LiveParams, SubtitleParams, FolderParams, ClusterParams),
            "audio model format output_dir json quiet live sample_rate",
        ),
        (
            generate,
            (LoadParams, PromptParams, ClusterParams),
            "prompt prompt_file prompts model raw json output quiet",
        ),
    ],
)
def test_the_declared_options_are_distinct_and_cover_the_parser(command, declared, others):
    parser = Parser(prog="kvcast")
    command.add_arguments(parser)
    args = parser.parse_args(["a.wav"])
    names = [name for group in declared for name in arguments.keywords(args, group)]
    assert sorted([*names, *others.split()]) == sorted(vars(args))
    left_out = {option.name for group in declared for option in group.declared()} - set(names)
    assert left_out == (OF_TEXTS if command is transcribe else set())


@pytest.mark.parametrize("command", [transcribe, export, generate])
def test_docs_name_every_option(command):
    page = "generate.md" if command is generate else "cli.md"
    written = (DOCS / page).read_text(encoding="utf-8")
    named = written.replace("--[no-]", "--") + written.replace("--[no-]", "--no-")
    flags = {flag for action in actions(command) for flag in action.option_strings}
    assert {flag for flag in flags - {"-h", "--help"} if f"`{flag}" not in named} == set()


@pytest.mark.parametrize(
    ("command", "page", "codes"),
    [
        (transcribe, "cli.md", "0 1 2 3 66 74 130 141 143"),
        (generate, "generate.md", "0 1 2 66 74 130 141 143"),
    ],
)
def test_docs_and_help_name_the_same_exit_codes(command, page, codes):
    named = re.findall(r"^\| (\d+) \|", (DOCS / page).read_text(encoding="utf-8"), re.M)
    assert re.findall(r"^  (\d+)  ", command.EPILOG, re.M) == named == codes.split()


def test_docs_name_every_command():
    told = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert all(f"kvcast {name}" in told for name in COMMANDS)
