"""The options of `kvcast generate`: their bounds, and the keywords that they become."""

import dataclasses
import inspect
from pathlib import Path

import pytest

import kvcast
from cli.fakes import FakeGeneration, FakeTimings
from kvcast.cli import main
from kvcast.loading.params import LoadParams
from kvcast.text.params import PromptParams
from kvcast.text.texts import TextGeneration, Timings

LARK = Path(__file__).parents[1] / "data" / "sum.lark"

LOADED = {
    "--model mine": {"model": "mine"},
    "--adapter lora --adapter other=0.5": {"adapter": ["lora", "other=0.5"]},
    "--runtime eager": {"runtime": "eager"},
    "--quantize int4": {"quantize": "int4"},
    "--dtype bf16": {"dtype": "bf16"},
    "--cache int8": {"cache": "int8"},
    "--threads 3": {"threads": 3},
    "--trust": {"trust": True},
    "--no-generation-config": {"generation_config": False},
}
STREAMED = {
    "--chat": {"chat": True},
    "--system odd": {"system": "odd", "chat": True},
    "--special-tokens": {"special_tokens": True},
    "--max-new-tokens 7": {"max_new_tokens": 7},
    "--min-new-tokens 5": {"min_new_tokens": 5},
    "--temperature 0.7": {"temperature": 0.7},
    "--top-k 5": {"top_k": 5},
    "--top-p 0.9": {"top_p": 0.9},
    "--min-p 0.05": {"min_p": 0.05},
    "--repetition-penalty 1.1": {"repetition_penalty": 1.1},
    "--no-repeat-ngram-size 3": {"no_repeat_ngram_size": 3},
    "--forced-bos-token-id 7": {"forced_bos_token_id": 7},
    "--forced-eos-token-id 7": {"forced_eos_token_id": 7},
    "--encoder-no-repeat-ngram-size 3": {"encoder_no_repeat_ngram_size": 3},
    "--source-language eng": {"source_language": "eng"},
    "--target-language deu_Latn": {"target_language": "deu_Latn"},
    "--sentences": {"sentences": True},
    "--presence-penalty 0.5": {"presence_penalty": 0.5},
    "--frequency-penalty -0.5": {"frequency_penalty": -0.5},
    "--logit-bias 11:-100,13:2.5": {"logit_bias": "11:-100,13:2.5"},
    "--stop a --stop=--b": {"stop": ["a", "--b"]},
    "--seed 9": {"seed": 9},
    "--chunk 64": {"chunk": 64},
    "--draft ngram": {"draft": "ngram"},
    '--json-schema {"type":"null"}': {"json_schema": '{"type":"null"}'},
    "--json-object": {"json_object": True},
    "--reasoning-budget 5": {"reasoning_budget": 5},
    "--regex a+": {"regex": "a+"},
    f"--lark {LARK}": {"lark": LARK.read_text()},
}
SEARCHED = {
    "--beam 4": {"beam": 4},
    "--beam-size 4": {"beam": 4},
    "--beam 2 --length-penalty -0.5": {"beam": 2, "length_penalty": -0.5},
    "--beam 2 --early-stopping": {"beam": 2, "early_stopping": True},
    "--beam 2 --n 2": {"beam": 2, "n": 2},
    "--temperature 1 --num-return 2": {"temperature": 1.0, "n": 2},
    "--batch 3": {"batch": 3},
    "--logprobs": {"logprobs": True},
    "--top-logprobs 3": {"top_logprobs": 3},
}


def test_the_walk_below_meets_every_option():
    walked = {name for names in (LOADED | STREAMED | SEARCHED).values() for name in names}
    declared = LoadParams.declared() + PromptParams.declared()
    assert walked == {"model"} | {option.name for option in declared}


@pytest.mark.parametrize("words", LOADED)
def test_each_loading_option_is_one_of_load(words: str, text_model):
    options = ("runtime", "quantize", "dtype", "cache", "threads")
    before = {"model": "demo-chat", "adapter": [], "trust": False, "generation_config": True}
    before |= dict.fromkeys(options)
    assert main(["generate", "hello", *words.split()]) == 0
    assert text_model.calls[0] == ("load", before | LOADED[words])


@pytest.mark.parametrize("words", STREAMED)
def test_each_option_of_one_text_is_a_keyword_of_stream(words: str, text_model):
    assert main(["generate", "hello"]) == main(["generate", "hello", *words.split()]) == 0
    _, (prompt, before), _, (_, after) = text_model.calls
    assert prompt == "hello"
    assert after == before | STREAMED[words]


@pytest.mark.parametrize("words", STREAMED | SEARCHED)
def test_each_option_of_several_texts_is_a_keyword_of_generate_each(words: str, text_model):
    plain = ["generate", "hello", "--json"]
    assert main(plain) == main([*plain, *words.split()]) == 0
    _, (prompts, before), _, (_, after) = text_model.calls
    assert prompts == ["hello"]
    assert after == before | (STREAMED | SEARCHED)[words]


def test_a_batch_is_no_reason_not_to_stream(text_model):
    assert main(["generate", "hello", "--batch", "3"]) == 0
    _, (prompt, given) = text_model.calls
    assert prompt == "hello"
    assert "batch" not in given


def test_stream_takes_these_keywords(text_model):
    main(["generate", "hello"])
    _, (prompt, given) = text_model.calls
    for kind in (kvcast.TextModel, kvcast.T5Model):
        inspect.signature(kind.stream).bind(None, prompt, **given)


@pytest.mark.parametrize(
    ("fake", "real"), [(FakeGeneration, TextGeneration), (FakeTimings, Timings)]
)
def test_the_scripted_result_has_the_real_ones_fields(fake, real):
    assert {f.name for f in dataclasses.fields(fake)} == {f.name for f in dataclasses.fields(real)}


WRONG = """
--max-new-tokens 0; --max-new-tokens 1.5; --min-new-tokens -1; --max-new-tokens 3 --min-new-tokens 4
--temperature -1; --temperature nan; --temperature inf; --top-k 0; --top-p 0; --top-p 1.1
--top-p nan; --min-p -0.1; --min-p 2; --repetition-penalty 0; --presence-penalty 2.1
--frequency-penalty nan; --logit-bias 11; --logit-bias 11:101; --logit-bias=-1:5
--logit-bias 1:5,1:6; --top-logprobs 3; --top-logprobs=-1; --logprobs; --stop=; --seed -1; --beam 0
--length-penalty nan; --length-penalty 2 --no-generation-config; --n 0; --num-return 0
--early-stopping --no-generation-config; --n 2 --no-generation-config; --n 2 --temperature 0
--beam 2 --n 3; --beam 2 --temperature 1; --batch 0; --chunk 0; --json-schema=; --json-schema {
--json-schema {"minProperties":2}; --regex=; --lark=; --json-object --regex a
--regex a --min-new-tokens 2; --threads 0; --runtime tpu; --quantize int3; --model=; --output=
--prompts=; --prompts a.txt; --prompt-file a.txt; --system \udcff; --stop \udcff; another
"""


@pytest.mark.parametrize("words", WRONG.strip().replace("\n", "; ").split("; "))
def test_a_wrong_option_is_one_line_and_exit_code_2(words: str, text_model, error_line):
    assert main(["generate", "hello", *words.split(" ")]) == 2
    assert error_line()
    assert text_model.calls == []
