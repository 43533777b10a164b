"""What a request writes does not depend on who comes, stays, leaves or is cancelled beside it.

Callers of each family arrive at random steps at a scheduler of few rows; requests that run to their
ends write what they write alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.dimensions import GEMMA3, LLAMA, SIMBERT, SMALL, SMALL_T5
from kit.marks import slow, soak
from kit.models import opened
from kit.small_tokenizers import Numbers
from kvcast.decoding.params import SamplingParams
from kvcast.engine.callers import RequestList
from kvcast.engine.requests import Prefix, Prompt, Request, compute
from kvcast.engine.scheduler import Scheduler
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, SearchRequest, Strategy
from kvcast.text.beam_search import SearchedTexts
from kvcast.text.requests import SampledText, TextRequest, TextSpec
from kvcast.text.text2text import Source
from kvcast.text.texts import StoppingCriteria, Stopwatch
from kvcast.whisper.decoding import SuppressBlank
from kvcast.whisper.requests import Features

CAPACITY, ROWS = 24, 5
KINDS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.4},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.7, "top_k": 9, "min_new_tokens": 3},
    {"beam": 3, "length_penalty": 0.6},
    {"beam": 2, "early_stopping": True},
]
STRATEGIES: list[Strategy] = [Greedy(), Sampling(1.0, 3, (5,)), BeamSearch(3), BeamSearch(2, 2.0)]


@dataclass(frozen=True)
class Subject:
    """A model on a runtime; `requests[i]()` begins its i-th request anew."""

    runtime: Any
    requests: list[Callable[[], Request]]
    inputs: int = 0
    chunks: tuple[int | None, ...] = (None,)


def spec(prompt: Prompt, vocab: int, options: dict[str, Any], room: int) -> TextSpec:
    params = SamplingParams(max_new_tokens=room, logprobs=True, **options)
    ends = tuple(range(3, vocab, 9))  # often enough that texts have many lengths
    return TextSpec(
        prompt=prompt,
        prompt_tokens=prompt.length,
        params=params,
        criteria=StoppingCriteria.of(params, ends, room),
        tokenizer=Numbers(vocab, end=ends[0]),
        watch=Stopwatch(),
    )


def texts(vocab: int, prompts: list[Prompt]) -> list[Callable[[], Request]]:
    def begins(prompt: Prompt, options: dict[str, Any]) -> Callable[[], Request]:
        kind = SearchedTexts if "beam" in options else SampledText
        return lambda: kind(spec(prompt, vocab, options, 8))

    return [begins(prompt, options) for prompt in prompts for options in KINDS]


def tokens(vocab: int, count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, vocab, count)


def decoder_only(dimensions: Any, runtime: str) -> Subject:
    opened_runtime = opened(dimensions, runtime=runtime)
    vocab = dimensions.vocab_size
    prefix: Prefix = compute(opened_runtime, Prompt(tokens(vocab, 9, 0)), chunk=4)
    prompts = [
        Prompt(tokens(vocab, 1, 1)),
        Prompt(tokens(vocab, 11, 2)),
        Prompt(tokens(vocab, 3, 3), prefix=prefix),
        Prompt(tokens(vocab, 0, 4), prefix=prefix),
    ]
    return Subject(opened_runtime, texts(vocab, prompts), chunks=(None, 1, 4))


def unilm(runtime: str) -> Subject:
    vocab = SIMBERT.vocab_size
    sources = [Prompt(tokens(vocab, length, length)) for length in (2, 9)]
    return Subject(opened(SIMBERT, runtime=runtime), texts(vocab, sources))


def t5(runtime: str) -> Subject:
    vocab, start = SMALL_T5.vocab_size, np.array([SMALL_T5.start_token], np.int64)
    sources = [Prompt(start, input=Source(tokens(vocab, n, n))) for n in (1, 6, 13)]
    return Subject(opened(SMALL_T5, runtime=runtime), texts(vocab, sources), inputs=3)


def whisper(runtime: str) -> Subject:
    features = np.random.default_rng(0).normal(size=(3, SMALL.n_mels, 2 * SMALL.source_positions))
    windows = [Features(features_mt.astype(np.float32)) for features_mt in features]

    def begins(window: Features, strategy: Strategy, length: int) -> Callable[[], Request]:
        return lambda: SearchRequest(
            Prompt(tokens(SMALL.vocab_size, length, length), input=window),
            strategy=strategy,
            filters=[SuppressBlank((7, 11))],
            eot=7,
            max_new_tokens=9,
            probe=length // 2,
        )

    requests = [
        begins(window, strategy, length)
        for window, length in zip(windows, (1, 4, 4), strict=True)
        for strategy in STRATEGIES
    ]
    return Subject(opened(SMALL, runtime=runtime), requests, inputs=3, chunks=(None, 2))


SUBJECTS: dict[str, Callable[[str], Subject]] = {
    "llama": lambda runtime: decoder_only(LLAMA, runtime),
    "gemma3": lambda runtime: decoder_only(GEMMA3, runtime),
    "unilm": unilm,
    "t5": t5,
    "whisper": whisper,
}


def result_of(request: Request) -> tuple[Any, list[float]]:
    """Return what it generated, and its probabilities."""
    if isinstance(request, TextRequest):
        texts = request.generations()
        return (
            [(text.text, text.tokens, text.finish_reason) for text in texts],
            [p for text in texts for p in [*(text.logprobs or ()), text.score or 0.0]],
        )
    assert isinstance(request, SearchRequest)
    candidates = request.search.candidates()
    return (
        [candidate.tokens for candidate in candidates],
        [*(candidate.sum_logprob for candidate in candidates), *request.probed_v.tolist()],
    )


@cache
def alone(name: str, runtime: str) -> tuple[Subject, list[tuple[Any, list[float]]]]:
    """A subject, and what each of its requests writes by itself."""
    subject = SUBJECTS[name](runtime)
    expected = []
    for begin in subject.requests:
        request = begin()
        sizes = {"rows": request.width, "capacity": CAPACITY, "inputs": min(1, subject.inputs)}
        list(Scheduler(subject.runtime, **sizes).run([request]))
        expected.append(result_of(request))
    return subject, expected


ARRIVALS = st.lists(
    # Which request, how many steps after the last one, and after how many it is cancelled.
    st.tuples(st.integers(0, 99), st.integers(0, 6), st.none() | st.integers(0, 12)),
    min_size=1,
    max_size=9,
)


def check(
    name: str,
    runtime: str,
    arrivals: list[tuple[int, int, int | None]],
    rows: int,
    inputs: int,
    chunk: int,
) -> None:
    subject, expected = alone(name, runtime)
    sizes = {"rows": rows, "capacity": CAPACITY, "inputs": min(inputs, subject.inputs)}
    chunk_size = subject.chunks[chunk % len(subject.chunks)]
    scheduler = Scheduler(subject.runtime, **sizes, chunk=chunk_size)
    events: dict[int, list[Callable[[], None]]] = {}
    kept: list[tuple[Request, int]] = []
    arrival = 0
    for which, later, patience in arrivals:
        number = which % len(subject.requests)
        request = subject.requests[number]()
        caller = RequestList([request])
        arrival += later
        events.setdefault(arrival, []).append(partial(scheduler.add, caller))
        if patience is None:
            kept.append((request, number))
        else:
            leaving = events.setdefault(arrival + patience, [])
            leaving.append(partial(scheduler.remove, caller))
    step = 0
    while events or not scheduler.idle:
        for event in events.pop(step, []):
            event()
        scheduler.step()
        step += 1
    for request, number in kept:
        assert request.done
        (written, figures), (other, others) = result_of(request), expected[number]
        assert written == other
        np.testing.assert_allclose(figures, others, atol=1e-3)


MANY = settings(
    deadline=None, max_examples=10, derandomize=True, suppress_health_check=list(HealthCheck)
)
RANDOM = given(
    arrivals=ARRIVALS, rows=st.integers(3, ROWS), inputs=st.integers(1, 3), chunk=st.integers(0, 2)
)


@pytest.mark.parametrize("name", SUBJECTS)
@RANDOM
@MANY
def test_on_eager(name, arrivals, rows, inputs, chunk):
    check(name, "eager", arrivals, rows, inputs, chunk)


@pytest.mark.parametrize("name", SUBJECTS)
@RANDOM
@settings(MANY, max_examples=4)
def test_on_onnx_runtime(name, arrivals, rows, inputs, chunk):
    check(name, "onnx", arrivals, rows, inputs, chunk)


@pytest.mark.parametrize("examples", [slow(20), soak(500)])
@pytest.mark.parametrize("runtime", ["eager", "onnx"])
@pytest.mark.parametrize("name", SUBJECTS)
def test_at_length(name, runtime, examples):
    @RANDOM
    @settings(MANY, max_examples=examples, derandomize=False)
    def changes_nothing(arrivals, rows, inputs, chunk):
        check(name, runtime, arrivals, rows, inputs, chunk)

    changes_nothing()


@pytest.mark.parametrize("name", SUBJECTS)
def test_requests_of_a_family_differ(name: str):
    """Or nothing would be proven by equal ones."""
    _, expected = alone(name, "eager")
    assert len({str(written) for written, _ in expected}) > len(expected) // 4
