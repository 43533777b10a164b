"""In fp32 an engine's answers are those of the model alone, whoever asks at the same time."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.dimensions import (
    COHERE2,
    DSA,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    GRANITE4,
    KIMI,
    LFM2,
    LLAMA,
    MINISTRAL3,
    MISTRAL,
    NEOX,
    QWEN2_MOE,
    QWEN3_5,
    ROFORMER,
    SMALL_T5,
    YOUTU,
)
from kit.marks import slow
from kit.text_models import model, prompt
from kvcast import Engine
from kvcast.decoding.drafters import Guess, PromptLookup
from kvcast.decoding.speculative_decoding import Ledger
from kvcast.text.requests import TextDelta

RUNTIMES = ["native", "onnx"]
OPTIONS: list[dict[str, Any]] = [
    {"max_new_tokens": 12},
    {"max_new_tokens": 20, "temperature": 1.0, "seed": 3},
    {"max_new_tokens": 9, "temperature": 0.8, "top_p": 0.9, "n": 3, "logprobs": True},
    {"max_new_tokens": 7, "beam": 3, "n": 2},
    {"max_new_tokens": 1},
    {"max_new_tokens": 15, "repetition_penalty": 1.3, "logprobs": True},
]


def same(texts: Any) -> Any:
    if isinstance(texts, list):
        return [same(text) for text in texts]
    return texts.text, texts.tokens, texts.finish_reason, texts.prompt_tokens


def close(texts: Any, expected: Any) -> None:
    assert same(texts) == same(expected)
    for text, other in zip(np.atleast_1d(texts), np.atleast_1d(expected), strict=True):
        assert (text.logprobs is None) == (other.logprobs is None)
        if text.logprobs is not None:
            np.testing.assert_allclose(text.logprobs, other.logprobs, atol=2e-4)


def conversations() -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts of which many begin alike, each with options of its own."""
    stems = [prompt(40, 1), prompt(60, 2)]
    return [
        (stems[i % 2][: 10 + 5 * (i % 9)] + prompt(1 + i % 7, 100 + i), OPTIONS[i % len(OPTIONS)])
        for i in range(24)
    ]


@pytest.mark.parametrize(
    ("dimensions", "runtime"),
    [
        *(
            (dimensions, "native")
            for dimensions in (LLAMA, MISTRAL, GEMMA4, LFM2, QWEN3_5, YOUTU, DSA, KIMI)
        ),
        (MISTRAL, "onnx"),
        *(slow(dimensions, "onnx") for dimensions in (LLAMA, GEMMA3)),
        # Further kinds of layers: state spaces, sinks, learned positions, blocks beside each other.
        *(
            slow(dimensions, "native")
            for dimensions in (GRANITE4, GPT_OSS, NEOX, COHERE2, QWEN2_MOE, MINISTRAL3)
        ),
    ],
    ids=lambda value: getattr(value, "architecture", value),
)
def test_texts_of_many_callers(dimensions: Any, runtime: str):
    alone = model(replace(dimensions, max_positions=128), runtime)
    asked = conversations()
    expected = [alone.generate(tokens, **options) for tokens, options in asked]
    with Engine(alone, rows=5, chunk=8) as engine, ThreadPoolExecutor(4) as callers:
        jobs = list(callers.map(lambda pair: engine.submit(pair[0], **pair[1]), asked))
        for job, text in zip(jobs, expected, strict=True):
            close(job.result(timeout=600), text)
        status = engine.status()
        cached = status.cached_tokens
        # Once more, in another order: much of it is there.
        again = [engine.submit(tokens, **options) for tokens, options in reversed(asked)]
        for job, text in zip(again, reversed(expected), strict=True):
            close(job.result(timeout=600), text)
        assert engine.status().cached_tokens > cached > 0
    assert status.running == status.waiting == 0
    assert status.prompt_tokens == sum(len(tokens) for tokens, _ in asked)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "dimensions", [SMALL_T5, ROFORMER], ids=lambda dimensions: dimensions.architecture
)
def test_answers_to_sources_of_many_callers(dimensions: Any, runtime: str):
    alone = model(dimensions, runtime)
    asked = [(tokens[:20], options) for tokens, options in conversations()]
    expected = [alone.generate(tokens, **options) for tokens, options in asked]
    with Engine(alone, rows=5, chunk=8) as engine:
        jobs = [engine.submit(tokens, **options) for tokens, options in asked]
        for job, text in zip(jobs, expected, strict=True):
            close(job.result(timeout=600), text)
            assert job.cached_tokens == 0


@pytest.mark.parametrize("dimensions", [LFM2, QWEN3_5], ids=["lfm2", "qwen 3.5"])
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_a_row_goes_on_from_a_snapshot_where_a_prompt_ended_or_parted(
    quantize: str, dimensions: Any
):
    """Answers are longer than what a convolution can take back."""
    alone = model(replace(dimensions, max_positions=256), "native", quantize)
    stem, options = prompt(50, 1), {"max_new_tokens": 30, "min_new_tokens": 30}
    with Engine(alone, rows=4, chunk=64) as engine:

        def asked(tokens: list[int]) -> tuple[int, list[int]]:
            job = engine.submit(tokens, **options)
            text = job.result(timeout=600)
            assert same(text) == same(alone.generate(tokens, **options))
            return job.cached_tokens, [*tokens, *text.tokens]

        reused, chat = asked(stem + prompt(20, 2))
        assert reused == 0
        assert asked(chat + prompt(5, 3))[0] == (70 if alone.runtime.prompts_differ else 99)
        # The second that begins so ends a chunk there, from which the third goes on.
        assert [asked(stem + prompt(20, seed))[0] for seed in (4, 5, 6)] == [0, 50, 50]


@contextmanager
def always_drafting() -> Iterator[None]:
    """Check drafts whether that pays or not; where a text does not repeat itself, wrong ones."""
    guessed = PromptLookup.guess

    def guess(drafter: PromptLookup, history: list[int], most: int) -> Guess:
        found = guessed(drafter, history, most)
        return found if found.tokens else Guess([len(history) % 150] * most)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptLookup, "guess", guess)
        patch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 3))
        yield


ARRIVALS = st.lists(
    # Of which stem how many tokens, how many of its own, the options, and whether it is cancelled.
    st.tuples(
        st.integers(0, 1),
        st.integers(1, 60),
        st.integers(1, 9),
        st.integers(0, len(OPTIONS)),
        st.booleans(),
    ),
    min_size=2,
    max_size=9,
)


@pytest.mark.parametrize(
    "dimensions", [LFM2, QWEN3_5, GEMMA4, slow(GRANITE4)], ids=lambda d: d.architecture
)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(arrivals=ARRIVALS, rows=st.integers(3, 5), chunk=st.sampled_from([3, 16, 64]))
def test_prompts_go_on_from_snapshots_whoever_comes_drafts_and_leaves(
    dimensions: Any, arrivals: list[tuple[int, int, int, int, bool]], rows: int, chunk: int
):
    alone = model(replace(dimensions, max_positions=128), "native")
    stems = [prompt(60, 1), prompt(60, 2)]
    kinds = [*OPTIONS, {"max_new_tokens": 25, "draft": "ngram"}]
    kept = []
    with always_drafting(), Engine(alone, rows=rows, chunk=chunk) as engine:
        for number, (stem, shared, own, kind, leaves) in enumerate(arrivals):
            tokens = stems[stem][:shared] + prompt(own, own)
            job = engine.submit(tokens, **kinds[kind])
            if leaves:
                for _ in zip(range(number % 3), job, strict=False):
                    pass
                job.cancel()
            else:
                kept.append((job, tokens, kind))
        results = [job.result(timeout=600) for job, _, _ in kept]
    for texts, (_, tokens, kind) in zip(results, kept, strict=True):
        close(texts, alone.generate(tokens, **kinds[kind]))


@pytest.mark.parametrize("options", OPTIONS)
def test_the_pieces_of_a_text_are_the_text(options: dict[str, Any]):
    alone = model(LLAMA, "native")
    with Engine(alone, rows=4) as engine:
        job = engine.submit(prompt(5, 1), **options)
        deltas: list[TextDelta] = list(job)
        texts = job.result()
    for index, text in enumerate(texts if isinstance(texts, list) else [texts]):
        own = [delta for delta in deltas if delta.index == index]
        assert "".join(delta.text for delta in own) == text.text
        assert tuple(token for delta in own for token in delta.tokens) == text.tokens
        assert [delta.finish_reason for delta in own if delta.finish_reason] == [text.finish_reason]
        assert own[-1].finish_reason == text.finish_reason
        if options.get("logprobs"):
            assert tuple(logprob for delta in own for logprob in delta.logprobs) == text.logprobs


def test_cancelled_neighbours_change_nothing():
    alone = model(LLAMA, "native")
    asked = conversations()
    expected = [alone.generate(tokens, **options) for tokens, options in asked]
    rng = np.random.default_rng(0)
    with Engine(alone, rows=4, chunk=16) as engine:
        kept = []
        for (tokens, options), text in zip(asked, expected, strict=True):
            kept.append((engine.submit(tokens, **options), text))
            doomed = engine.submit(prompt(30, int(rng.integers(99))), max_new_tokens=60)
            for _ in zip(range(int(rng.integers(3))), doomed, strict=False):
                pass
            doomed.cancel()
        for job, text in kept:
            close(job.result(timeout=600), text)
    finished = engine.status().finished  # of a closed engine: the last may have been under way
    assert finished["cancelled"] > 0
    assert sum(finished.values()) == 2 * len(asked)


def test_a_model_that_threads_use_without_an_engine_gives_the_same_texts():
    alone = model(LLAMA, "native")
    asked = conversations()
    expected = [alone.generate(tokens, **options) for tokens, options in asked]
    with ThreadPoolExecutor(4) as callers:
        texts = callers.map(lambda pair: alone.generate(pair[0], **pair[1]), asked)
        for text, other in zip(texts, expected, strict=True):
            close(text, other)
