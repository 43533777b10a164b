"""What continuous batching asks of a runtime, and that it changes no text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kit.letters import BEGIN, END, FIRST, VOCAB, Letters
from kit.scripted_runtimes import (
    Model,
    RecomputingRuntime,
    in_transformers,
    random_model,
    spelling,
    tiny_llama,
)
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.sampling import log_softmax
from kvcast.engine.requests import Prefix, Prompt, compute
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError
from kvcast.text.requests import SampledText, TextSpec
from kvcast.text.texts import LENGTH, STOP, StoppingCriteria, Stopwatch

RANDOM = random_model(VOCAB, 0)


def request(
    prompt: Sequence[int],
    prefix: Prefix | None = None,
    *,
    max_new_tokens: int = 8,
    stream: int = 0,
    ends: tuple[int, ...] = (END,),
    logprobs: bool = True,
    watch: Stopwatch | None = None,
    **choice: Any,
) -> SampledText:
    params = SamplingParams(max_new_tokens=max_new_tokens, logprobs=logprobs, **choice)
    spec = TextSpec(
        prompt=Prompt(np.array(prompt, np.int64), prefix=prefix),
        prompt_tokens=len(prompt),
        params=params,
        criteria=StoppingCriteria.of(params, ends, room=100),
        tokenizer=Letters(),
        watch=watch or Stopwatch(),
    )
    return SampledText(spec, stream)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(FIRST, VOCAB, rng.integers(1, 9)).tolist() for _ in range(count)]


def outcome(sampled: SampledText) -> tuple[Any, ...]:
    assert sampled.done
    text = sampled.text
    return text.tokens, text.logprobs, "".join(text.pieces), text.finish_reason


def scheduler_for(
    runtime: RecomputingRuntime, requests: Sequence[SampledText], rows: int, chunk: int = 512
) -> Scheduler:
    capacity = max((sampled.capacity for sampled in requests), default=1)
    return Scheduler(runtime, rows=min(rows, len(requests)), capacity=capacity, chunk=chunk)


def run(
    model: Model,
    requests: list[SampledText],
    rows: int = 8,
    chunk: int = 512,
    runtimes: type[RecomputingRuntime] = RecomputingRuntime,
) -> tuple[list[tuple[Any, ...]], RecomputingRuntime]:
    runtime = runtimes(model)
    for _ in scheduler_for(runtime, requests, rows, chunk).run(requests):
        pass
    return [outcome(sampled) for sampled in requests], runtime


def test_the_prompts_chunks_are_fed_once_and_then_one_token_at_a_time():
    model = spelling({(4, 5, 6, 7, 8): "abc"}, VOCAB, FIRST, END)
    [[tokens, logprobs, text, reason]], runtime = run(model, [request([4, 5, 6, 7, 8])], chunk=2)
    assert [call[0] for call in runtime.calls] == [[4, 5], [6, 7], [8], [2], [3], [4]]
    assert (tokens, text, reason) == ([2, 3, 4], "abc", STOP)
    each = -np.log1p((VOCAB - 1) * np.exp(-10))
    assert logprobs == pytest.approx([each] * 3, abs=1e-6)


def test_rows_that_have_read_their_prompts_take_no_part_in_later_chunks():
    requests = [request(prompt, max_new_tokens=3) for prompt in ([5, 6, 7, 8], [9], [10, 11, 12])]
    _, runtime = run(random_model(VOCAB, 1), requests, chunk=2)
    in_chunks = [call for call in runtime.calls if any(len(fed) > 1 for fed in call.values())]
    assert in_chunks[0] == {0: [5, 6], 1: [9], 2: [10, 11]}
    assert runtime.calls[1] == {1: [requests[1].text.tokens[0]]}
    assert runtime.calls[2] == {0: [7, 8], 2: [12]}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("rows", "chunk"), [(1, 512), (2, 1), (3, 2), (8, 3), (20, 4)])
def test_neither_rows_nor_chunks_change_a_text(rows: int, chunk: int, temperature: float):
    def requests() -> list[SampledText]:
        return [
            request(prompt, temperature=temperature, stream=i, max_new_tokens=12, ends=(0, 3, 4))
            for i, prompt in enumerate(prompts(9))
        ]

    expected = [run(RANDOM, [sampled])[0][0] for sampled in requests()]
    assert run(RANDOM, requests(), rows, chunk)[0] == expected
    assert {reason for *_, reason in expected} == {STOP, LENGTH}


def test_a_request_that_is_over_costs_nothing_and_leaves_its_row_to_the_next():
    texts = {(9, 9): "ab", (8,): "abcdefg", (7, 7, 7): "a", (6,): "abc"}
    model = spelling(texts, VOCAB, FIRST, END)
    requests = [request(prompt) for prompt in texts]
    outcomes, runtime = run(model, requests, rows=2)
    assert [text for _, _, text, _ in outcomes] == list(texts.values())
    assert runtime.caches == [(2, 3 + 8 - 1)]
    assert sorted(row for rows in runtime.resets for row in rows) == [0, 0, 0, 1]
    fed = [tuple(token) for call in runtime.calls for token in call.values()]
    # Each prompt once, and every token but the one after the last.
    assert len(fed) == len(texts) + sum(len(text) for text in texts.values())
    # While others come and go beside it, the longest goes on in every step.
    assert sum(1 in call for call in runtime.calls) == 1 + len("abcdefg")


def test_no_call_without_tokens_and_no_cache_without_requests():
    assert run(RANDOM, [])[1].caches == []


def test_the_last_token_is_chosen_and_never_fed():
    for most in (1, 2, 5):
        [[tokens, *_, reason]], runtime = run(
            RANDOM, [request([5, 6], max_new_tokens=most, ends=())]
        )
        assert (len(tokens), reason) == (most, LENGTH)
        assert len(runtime.calls) == most
        assert runtime.caches == [(1, 2 + most - 1)]


def test_requests_are_yielded_whenever_they_got_a_token():
    sampled = request([5, 6], max_new_tokens=4, ends=())
    progress = scheduler_for(RecomputingRuntime(RANDOM), [sampled], rows=1, chunk=9).run([sampled])
    lengths = [len(sampled.text.tokens) for got in progress if got is sampled]
    assert lengths == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8, "top_k": 5, "repetition_penalty": 2.0}]
)
def test_log_probabilities_are_the_models_own(options: dict[str, Any]):
    prompt = [5, 6, 7]
    [[tokens, logprobs, *_]], _ = run(RANDOM, [request(prompt, ends=(), **options)])
    logprobs_sv = log_softmax(RANDOM((*prompt, *tokens))[len(prompt) - 1 : -1].copy())
    expected = logprobs_sv[np.arange(len(tokens)), tokens]
    np.testing.assert_allclose(logprobs, expected, atol=1e-5)


def test_the_penalty_sees_prompt_and_text():
    alike = np.zeros(VOCAB, np.float32)
    alike[:6] = [9, 8, 7, 6, 5, 4]
    [[tokens, *_]], _ = run(
        lambda written: np.stack([alike] * len(written)),
        [request([0, 2], repetition_penalty=3.0, max_new_tokens=4, ends=())],
    )
    assert tokens == [1, 3, 4, 5]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_equals_transformers(penalty: float):
    llama = tiny_llama(0)
    requests, expected = [], []
    for prompt in prompts(6, seed=4):
        tokens = llama.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            repetition_penalty=penalty,
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=11,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        expected.append(tokens[: tokens.index(11)] if 11 in tokens else tokens)
        requests.append(request(prompt, repetition_penalty=penalty, max_new_tokens=12, ends=(11,)))
    outcomes, _ = run(in_transformers(llama), requests, rows=3, chunk=2)
    assert [tokens for tokens, *_ in outcomes] == expected


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("prefix", [[BEGIN], [5, 6, 7, 8, 9]])
def test_after_a_prefix_comes_what_comes_after_the_whole(prefix: list[int], rows: int):
    rests = [[], [10], [11, 12, 13], [], [14]]
    runtime = RecomputingRuntime(RANDOM)
    start = compute(runtime, Prompt(np.array(prefix, np.int64)), chunk=2)
    for _ in range(2):
        hot = {"temperature": 1.0}
        requests = [request(rest, start, stream=i, **hot) for i, rest in enumerate(rests)]
        for _ in scheduler_for(runtime, requests, rows=rows, chunk=2).run(requests):
            pass
        whole = [
            request([*prefix, *rest], temperature=1.0, stream=i) for i, rest in enumerate(rests)
        ]
        assert [outcome(sampled) for sampled in requests] == run(RANDOM, whole)[0]
    assert start.cache.written == (tuple(prefix),)
    fed = sum(len(tokens) for call in runtime.calls for tokens in call.values())
    # A text's last token is not fed, unless an end token came after it.
    texts = sum(
        len(sampled.text.tokens) - (sampled.text.finish_reason == LENGTH) for sampled in requests
    )
    assert fed == len(prefix) + 2 * (sum(map(len, rests)) + texts)


def test_prefixes_follow_each_other():
    runtime = RecomputingRuntime(RANDOM)
    five, seven, nothing = (np.array(ids, np.int64) for ids in ([5, 6], [7, 8], []))
    once = compute(runtime, Prompt(np.concatenate([five, seven])), chunk=512)
    first = compute(runtime, Prompt(five), chunk=None)
    twice = compute(runtime, Prompt(seven, prefix=first), chunk=1)
    assert twice.tokens.tolist() == once.tokens.tolist() == [5, 6, 7, 8]
    assert (twice.logits_v == once.logits_v).all()
    assert compute(runtime, Prompt(nothing, prefix=once), chunk=512) is once


def spelled(text: str, **options: Any) -> tuple[str, str | None, int]:
    model = spelling({(9, 9): text}, VOCAB, FIRST, END)
    [[tokens, _, said, reason]], _ = run(model, [request([9, 9], max_new_tokens=20, **options)])
    return said, reason, len(tokens)


def test_a_stop_string_ends_a_text_before_it_while_its_tokens_stay():
    assert spelled("abcdefg", stop=("de",)) == ("abc", STOP, 5)
    assert spelled("abcdefg", stop=("xyz", "abc")) == ("", STOP, 3)


def test_what_only_began_like_a_stop_string_belongs_to_the_text():
    assert spelled("abcd", stop=("cdx",)) == ("abcd", STOP, 4)
    assert spelled("abcdabcdabcdabcdabcdabcdabcd", stop=("dx",))[:2] == ("abcd" * 5, LENGTH)


def test_end_tokens_are_no_part_of_the_text_or_its_tokens():
    assert spelled("ab") == ("ab", STOP, 2)
    assert spelled("") == ("", STOP, 0)
    assert spelled("abcd", ends=(END, FIRST + 2)) == ("ab", STOP, 2)


def test_a_text_that_is_under_way_has_no_result():
    with pytest.raises(KvcastError, match="not finished"):
        request([5]).generations()


def test_log_probabilities_are_left_out_unless_asked_for():
    sampled = request([5, 6], logprobs=False)
    [[tokens, logprobs, *_]], _ = run(RANDOM, [sampled])
    assert (len(tokens), logprobs) == (8, [])
    assert sampled.generations()[0].logprobs is None


def test_each_request_has_its_times():
    watch = Stopwatch()
    requests = [request([9], max_new_tokens=most, ends=(), watch=watch) for most in (1, 6)]
    run(RANDOM, requests)
    once, several = (sampled.watch.timings() for sampled in requests)
    assert once.per_token == 0
    assert once.first_token == once.seconds > 0
    assert several.seconds == pytest.approx(several.first_token + 5 * several.per_token)
    assert several.tokens_per_second == pytest.approx(6 / several.seconds)
    assert several.seconds > once.seconds
