import argparse
import contextlib
import math
import re
import shlex
from pathlib import Path

import pytest

from kvcast.cli import (
    COMMANDS,
    arguments,
    export,
    generate,
    main,
    option_aliases,
    serve,
    transcribe,
)
from kvcast.cli.arguments import Parser, normalise, number, several, whole_number
from kvcast.cli.option_aliases import translated
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


def test_without_a_model_the_choices_are_listed(monkeypatch, recording, capsys):
    monkeypatch.delenv("KVCAST_MODEL", raising=False)
    assert main(["transcribe", recording("a.wav")]) == 2
    assert "demo or demo-base; or set KVCAST_MODEL" in capsys.readouterr().err


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
        assert not flags & set(option_aliases._TABLES[name])
        for theirs, translation in option_aliases._TABLES[name].items():
            with contextlib.suppress(UsageError):
                words = translation.words(theirs, "1")
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
            "prompt prompt_file prompts model json output quiet",
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
