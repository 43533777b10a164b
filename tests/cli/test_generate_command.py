"""`kvcast generate` with a scripted model: its output, its order, and exit codes."""

import io
import json
import re
from pathlib import Path

import jsonschema
import pytest

from cli.fakes import LONGEST, PIECES, TEXT, FakeGeneration, FakePieces, FakeTextModel, schema
from kvcast.cli import console, main
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.errors import KvcastError, UsageError

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = schema("generation")
TIMES = "kvcast: 3 tokens: first token after 0.250 s, 125.0 ms per token, 6.0 tokens/s\n"


@pytest.fixture
def scripted(open_as) -> FakeTextModel:
    made = FakeTextModel()
    open_as(made)
    return made


@pytest.fixture
def lines(tmp_path: Path):
    def write(*prompts: str) -> str:
        path = tmp_path / "prompts"
        path.write_text("".join(f"{prompt}\n" for prompt in prompts), encoding="utf-8")
        return str(path)

    return write


def generate(*words: str) -> int:
    return main(["generate", "--model", "demo-chat", *words])


def documents(out: str) -> list[dict]:
    lines = [json.loads(line) for line in out.splitlines()]
    for document in lines:
        jsonschema.validate(document, SCHEMA)
    return lines


def test_text_is_printed_with_a_line_end_and_the_times_come_last(scripted, capsys):
    assert generate("hello") == 0
    assert capsys.readouterr() == (f"{TEXT}\n", TIMES)
    assert generate("hello", "--quiet") == 0
    assert capsys.readouterr() == (f"{TEXT}\n", "")


def test_each_piece_is_printed_before_the_next_is_generated(scripted, capsys):
    printed: list[str] = []
    generated = scripted._pieces

    def watched(prompt: str):
        for piece in generated(prompt):
            yield piece
            printed.append(capsys.readouterr().out)

    scripted._pieces = watched
    assert generate("hello") == 0
    assert tuple(printed) == PIECES


def test_a_prompt_may_come_from_a_file_or_begin_with_a_hyphen(scripted, lines):
    assert generate("--prompt-file", lines("one", "two")) == 0
    assert generate("--quiet", "--", "--my_list") == 0
    assert [prompt for prompt, _ in scripted.calls] == ["one\ntwo", "--my_list"]


def test_a_model_with_a_chat_template_is_asked_through_it_unless_told_otherwise(scripted, capsys):
    scripted.has_chat_template = True
    told = "kvcast: asked through the model's chat template; --raw continues the text instead\n"
    chosen = {
        (): (True, told),
        ("--json",): (True, told),
        ("--quiet",): (True, ""),
        ("--chat",): (True, ""),
        ("--system", "odd"): (True, ""),
        ("--raw",): (False, ""),
        ("--special-tokens",): (False, ""),
    }
    for words, expected in chosen.items():
        assert generate("hello", *words) == 0
        said = capsys.readouterr().err.replace(TIMES, "")
        _, keywords = scripted.calls.pop()
        assert (keywords["chat"], said) == expected


@pytest.mark.parametrize(
    ("words", "advice"), [(["--raw"], ": a chat model is asked without --raw"), ([], "")]
)
def test_a_text_without_a_token_says_why(words, advice, scripted, capsys):
    scripted.stream = lambda *_, **__: FakePieces(iter(()), FakeGeneration(text="", tokens=()))
    assert generate("What is 2 + 3?", *words) == 0
    out, err = capsys.readouterr()
    assert out == "\n"
    assert err.splitlines()[0] == f"kvcast: the model ended the text at once{advice}"
    assert generate("What is 2 + 3?", *words, "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_a_pipe_on_standard_input_is_the_prompt(scripted, monkeypatch):
    for words in ([], ["-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello\n")))
        assert generate(*words) == 0
    assert [prompt for prompt, _ in scripted.calls] == ["hello", "hello"]


def test_a_system_text_makes_it_a_conversation(scripted):
    assert generate("hello", "--system", "") == 0
    keywords = scripted.calls[0][1]
    assert (keywords["chat"], keywords["system"]) == (True, "")


def test_beams_are_printed_when_done(scripted, capsys):
    assert generate("hello", "--beam", "4") == 0
    assert capsys.readouterr() == ("hello#0\n", TIMES)


def test_several_texts_have_headings(scripted, capsys):
    assert generate("hello", "--n", "2", "--temperature", "1") == 0
    printed = capsys.readouterr()
    assert printed.out == "--- 1 of 2 ---\nhello#0\n--- 2 of 2 ---\nhello#1\n"
    assert printed.err == (
        "kvcast: 6 tokens in 2 texts: first token after 0.250 s, 125.0 ms per token, "
        "12.0 tokens/s\n"
    )


def test_json_is_one_object_that_fits_the_schema(scripted, capsys):
    assert generate("hello", "--json", "--model", "mine", "--runtime", "eager") == 0
    printed = capsys.readouterr()
    (document,) = documents(printed.out)
    assert document == {
        "format": "kvcast.generation",
        "version": 5,
        "id": None,
        "model": "mine",
        "runtime": "eager",
        "prompt": "hello",
        "chat": False,
        "system": None,
        "prompt_tokens": 4,
        "generation_config": {},
        "text": "hello#0",
        "tokens": [11, 12, 13],
        "logprobs": None,
        "top_logprobs": None,
        "finish_reason": "stop",
        "score": None,
        "similarity": None,
        "draft": None,
        "timings": {
            "first_token": 0.25,
            "seconds": 0.5,
            "per_token": 0.125,
            "tokens_per_second": 6.0,
        },
        "alternatives": [],
    }
    assert printed.err == TIMES


def test_notices_about_a_models_files_are_printed_unless_quiet(open_as, capsys):
    open_as(FakeTextModel(), notices=("m.gguf names no pre-tokenizer",))
    assert generate("hello") == 0
    assert capsys.readouterr().err == f"kvcast: m.gguf names no pre-tokenizer\n{TIMES}"
    assert generate("hello", "--quiet") == 0
    assert capsys.readouterr().err == ""


@pytest.fixture
def drafting(open_as):
    model, small = FakeTextModel(drafts=DraftCounts(proposed=40, accepted=30)), FakeTextModel()
    open_as(model, small=small)
    return model, small


def test_drafts_are_counted_in_the_line_and_in_json(drafting, capsys):
    model, small = drafting
    assert generate("hello", "--draft", "ngram", "--n", "2", "--temperature", "1") == 0
    assert capsys.readouterr().err.endswith(", 60 of 80 drafted tokens accepted\n")
    assert model.calls[-1][1]["draft"] == "ngram"
    assert generate("hello", "--draft", "small", "--json") == 0
    (document,) = documents(capsys.readouterr().out)
    assert document["draft"] == {"proposed": 40, "accepted": 30}
    assert model.calls[-1][1]["draft"] is small


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["same", "--model=same"], "--draft names the model itself: give a smaller one"),
        (["ngram", "--beam=2"], "draft needs a beam of 1"),
        ([""], "is empty"),
    ],
)
@pytest.mark.usefixtures("drafting")
def test_a_draft_that_cannot_help_is_refused(words, reason, error_line):
    assert generate("hello", "--draft", *words) == 2
    assert reason in error_line()


def test_json_of_several_texts_holds_the_others_and_logprobs_on_request(scripted, capsys):
    assert generate("hello", "--json", "--n", "3", "--temperature", "1", "--logprobs") == 0
    (document,) = documents(capsys.readouterr().out)
    assert document["text"] == "hello#0"
    assert [other["text"] for other in document["alternatives"]] == ["hello#1", "hello#2"]
    for text in (document, *document["alternatives"]):
        assert text["logprobs"] == [-0.5, -1.25, None]  # JSON has no infinity


def test_json_has_alternatives_on_request(open_as, capsys):
    tops = (((11, -0.5), (7, -2.0)), ((12, -1.25), (11, float("-inf"))), ((13, -0.1), (2, -3.0)))
    open_as(FakeTextModel(tops=tops))
    assert generate("hello", "--json", "--top-logprobs", "2") == 0
    (document,) = documents(capsys.readouterr().out)
    assert [[token["token"] for token in top] for top in document["top_logprobs"]] == [
        [11, 7],
        [12, 11],
        [13, 2],
    ]
    assert document["top_logprobs"][1][1]["logprob"] is None  # JSON has no infinity


def test_texts_that_are_ranked_have_headings_of_as_many_as_there_are(scripted, capsys):
    scripted.ranks = True
    assert generate("hello", "--num-return", "3", "--temperature", "1", "-q") == 0
    assert capsys.readouterr().out == "--- 1 of 2 ---\nhello#0\n--- 2 of 2 ---\nhello#1\n"


def test_json_has_scores_and_similarities(scripted, capsys):
    scripted.ranks = True
    assert generate("hello", "--json", "--n", "3", "--beam", "4") == 0
    (document,) = documents(capsys.readouterr().out)
    (other,) = document["alternatives"]
    assert [text["score"] for text in (document, other)] == [-0.5, -1.5]
    assert [text["similarity"] for text in (document, other)] == [1.0, 0.5]


def test_prompts_give_one_object_a_line_in_order(scripted, lines, capsys):
    source = lines('{"prompt": "b", "id": "x"}', '"東京"', '{"prompt": "c", "id": 7}')
    assert generate("--prompts", source, "--chat") == 0
    printed = capsys.readouterr()
    texts = documents(printed.out)
    assert [d["text"] for d in texts] == ["b#0", "東京#0", "c#0"]
    assert [d["id"] for d in texts] == ["x", None, 7]
    assert "東京" in printed.out
    assert printed.err.startswith("kvcast: 9 tokens in 3 texts: ")
    assert [prompts for prompts, _ in scripted.calls] == [["b", "東京", "c"]]


def test_each_object_is_printed_before_the_next_prompt_is_taken(scripted, lines, capsys):
    printed: list[str] = []
    generated = scripted._texts

    def watched(prompts, n):
        for texts in generated(prompts, n):
            yield texts
            printed.append(json.loads(capsys.readouterr().out)["prompt"])

    scripted._texts = watched
    assert generate("--prompts", lines("a", "b", "c")) == 0
    assert printed == ["a", "b"]
    assert json.loads(capsys.readouterr().out)["prompt"] == "c"


def test_a_lines_own_system_text_takes_the_place_of_the_option(scripted, lines, capsys):
    source = lines('"a"', '"b"', '{"prompt": "c", "system": "own"}', '"d"')
    assert generate("--prompts", source, "--system", "all") == 0
    calls = [
        (prompts, keywords["chat"], keywords["system"]) for prompts, keywords in scripted.calls
    ]
    assert calls == [(["a", "b"], True, "all"), (["c"], True, "own"), (["d"], True, "all")]
    texts = documents(capsys.readouterr().out)
    assert [d["system"] for d in texts] == ["all", "all", "own", "all"]
    assert [d["prompt"] for d in texts] == ["a", "b", "c", "d"]
    assert generate("--prompts", lines('"a"', '{"prompt": "b", "system": "own"}')) == 0
    assert [d["chat"] for d in documents(capsys.readouterr().out)] == [False, True]


def test_output_saves_the_lines_and_prints_nothing(scripted, lines, tmp_path, capsys):
    target = tmp_path / "new" / "out.jsonl"
    assert generate("--prompts", lines("a", "b"), "--output", str(target), "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    texts = documents(target.read_text(encoding="utf-8"))
    assert [d["prompt"] for d in texts] == ["a", "b"]
    assert [path.name for path in target.parent.iterdir()] == ["out.jsonl"]


def test_output_serves_one_prompt_too(scripted, tmp_path, capsys):
    assert generate("hello", "-o", str(tmp_path / "out.json"), "-q", "--logprobs") == 0
    (document,) = documents((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert document["logprobs"][0] == -0.5
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), KvcastError("odd"), ValueError("odd")])
def test_a_run_that_ends_early_leaves_the_old_output(failure, scripted, lines, tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("old")
    scripted.failures = {"b": failure}
    before = sorted(tmp_path.iterdir())
    assert generate("--prompts", lines("a", "b"), "--output", str(target)) in {1, 130}
    assert target.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "prompts"])


def test_unwritable_outputs_are_reported_before_any_work(scripted, lines, tmp_path, error_line):
    source = lines("a")
    (tmp_path / "link").symlink_to(source)
    for target, code in [
        (tmp_path, 74),
        ("/dev/null", 74),
        (tmp_path / "prompts" / "out", 74),
        (tmp_path / ("x" * 300), 74),
        (source, 2),
        (tmp_path / "link", 2),
    ]:
        assert generate("--prompts", source, "--output", str(target)) == code
        assert error_line()
    assert scripted.calls == []
    assert Path(source).read_text() == "a\n"


def test_a_prompt_that_is_too_long_is_named_by_its_line(scripted, lines, error_line):
    told = f"the prompt is longer than {LONGEST}: shorten it\n"
    source = lines("a", "b", "x" * (LONGEST + 1), '{"c": 1}', "y" * (LONGEST + 1))
    assert generate("--prompts", source) == 2
    assert error_line() == f"kvcast: {source}, line 3: {told}"
    assert scripted.taken == []
    for words in ([], ["--json"], ["--beam", "2"]):
        assert generate("x" * (LONGEST + 1), *words) == 2
        assert error_line() == f"kvcast: {told}"


def test_refused_options_name_no_line(scripted, lines, error_line):
    scripted.refuses = UsageError("this model has 1 token")
    assert generate("--prompts", lines("a", "b"), "--beam", "2") == 2
    assert error_line() == "kvcast: this model has 1 token\n"


def test_an_interrupt_is_130_and_keeps_the_streamed_text(scripted, capsys):
    scripted.failures = {"hello": KeyboardInterrupt()}
    assert generate("hello") == 130
    assert capsys.readouterr() == (f"{PIECES[0]}\n", "kvcast: interrupted\n")


def test_an_interrupt_keeps_the_objects_that_were_printed(scripted, lines, capsys):
    scripted.failures = {"c": KeyboardInterrupt()}
    assert generate("--prompts", lines("a", "b", "c", "d")) == 130
    printed = capsys.readouterr()
    assert [d["prompt"] for d in documents(printed.out)] == ["a", "b"]
    assert printed.err == "kvcast: interrupted\n"


def test_a_failure_in_the_middle_begins_a_line_of_its_own(scripted, capsys, monkeypatch):
    monkeypatch.delenv(console.DEBUG_VARIABLE, raising=False)
    scripted.failures = {"hello": ZeroDivisionError("zero")}
    assert generate("hello") == 1
    printed = capsys.readouterr()
    assert printed.out == f"{PIECES[0]}\n"
    assert re.fullmatch(r"kvcast: internal error \(ZeroDivisionError: zero\); .*\n", printed.err)


def test_docs_name_every_field_of_the_schema():
    told = (DOCS / "generate.md").read_text(encoding="utf-8")
    fields = {*SCHEMA["properties"], *SCHEMA["$defs"]["timings"]["properties"]}
    assert {field for field in fields if f"| `{field}` |" not in told} == set()
