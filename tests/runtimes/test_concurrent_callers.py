"""Callers in several threads, each with a cache of its own, get what they get alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from bundles import opened
from executorch_models import WHISPER
from kvcast.runtimes.base import EncoderDecoder
from random_models import Subject, speech

CALLERS = 4


def logits_of(runtime: EncoderDecoder, source: tuple, seed: int, together: Barrier) -> np.ndarray:
    """Encode, read a prompt and write some tokens: logits [steps, rows, vocab]."""
    generator = np.random.default_rng(seed)
    together.wait(timeout=600)
    cache = runtime.new_cache(rows=2, capacity=20, inputs=len(source[0]))
    cache = runtime.encode(cache, range(len(source[0])), *source)
    cache = runtime.reset(cache, [0, 1], [0, len(source[0]) - 1])
    found = []
    for new in (1 + seed % 5, *[1] * 12):
        tokens = generator.integers(0, 300, (2, new))
        logits, cache = runtime.decode(tokens, cache)
        found.append(logits[:, -1].copy())
    return np.stack(found)


def check(runtime: EncoderDecoder, sources: list[tuple]) -> None:
    alone = [logits_of(runtime, one, seed, Barrier(1)) for seed, one in enumerate(sources)]
    together = Barrier(len(sources))
    with ThreadPoolExecutor(len(sources)) as pool:
        calls = [
            pool.submit(logits_of, runtime, one, seed, together) for seed, one in enumerate(sources)
        ]
        for expected, call in zip(alone, calls, strict=True):
            np.testing.assert_allclose(call.result(), expected, atol=1e-4)


def test_callers_do_not_disturb_each_other(subject: Subject):
    check(subject.runtime, [subject.source(1 + seed % 2, seed) for seed in range(CALLERS)])


@pytest.mark.slow
def test_callers_of_executorch_do_not_disturb_each_other():
    check(opened(WHISPER, runtime="executorch"), [speech(1 + n % 2, n) for n in range(CALLERS)])
