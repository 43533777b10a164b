"""Callers in several threads, each with a cache of its own, get what they get alone."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

from kit.dimensions import LLAMA, MISTRAL, MIXTRAL, QWEN3, SHALLOW
from kit.models import Subject, bundle, open_folder, opened, speech
from kit.rounding import assert_logits_equal
from kvcast.runtimes.base import EncoderDecoder

CALLERS = 4


def logits_of(runtime: EncoderDecoder, source: tuple, seed: int, together: Barrier) -> np.ndarray:
    """Encode, read a prompt and write some tokens: logits [steps, rows, vocab]."""
    generator = np.random.default_rng(seed)
    together.wait(timeout=600)
    cache = runtime.new_cache(rows=2, capacity=20, inputs=len(source[0]))
    cache = runtime.encode(cache, range(len(source[0])), *source)
    cache = runtime.reset(cache, [0, 1], [0, len(source[0]) - 1])
    steps = []
    for new in (1 + seed % 5, *[1] * 12):
        tokens = generator.integers(0, 300, (2, new))
        logits, cache = runtime.decode(tokens, cache)
        steps.append(logits[:, -1].copy())
    return np.stack(steps)


def check(dimensions: Any, runtime: EncoderDecoder, sources: list[tuple]) -> None:
    alone = [logits_of(runtime, source, seed, Barrier(1)) for seed, source in enumerate(sources)]
    together = Barrier(len(sources))
    with ThreadPoolExecutor(len(sources)) as pool:
        calls = [
            pool.submit(logits_of, runtime, source, seed, together)
            for seed, source in enumerate(sources)
        ]
        for expected, call in zip(alone, calls, strict=True):
            assert_logits_equal(call.result(), expected, dimensions)


def test_callers_do_not_disturb_each_other(subject: Subject):
    sources = [subject.source(1 + seed % 2, seed) for seed in range(CALLERS)]
    check(subject.dimensions, subject.runtime, sources)


@pytest.mark.slow
def test_callers_of_executorch_do_not_disturb_each_other():
    sources = [speech(1 + n % 2, n) for n in range(CALLERS)]
    check(SHALLOW, opened(SHALLOW, runtime="executorch"), sources)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_while_a_thread_decodes_decodes_too():
    folder = bundle(LLAMA, "int8", "native")
    program = Path(__file__).with_name("decode_and_fork.py")
    words = [sys.executable, "-W", "ignore", program, folder]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("{0}\n", "")


def test_threads_with_a_model_each_do_not_disturb_each_other():
    kinds = [(LLAMA, "int8"), (MISTRAL, "int4"), (QWEN3, "none"), (MIXTRAL, "int8")]
    folders = [bundle(dimensions, quantize, "native") for dimensions, quantize in kinds]
    alone = [written(folder, Barrier(1)) for folder in folders]
    together = Barrier(2 * len(folders))
    with ThreadPoolExecutor(2 * len(folders)) as pool:
        calls = [pool.submit(written, folder, together) for folder in folders * 2]
        for expected, call in zip(alone * 2, calls, strict=True):
            np.testing.assert_array_equal(call.result(), expected)


def written(folder: Path, together: Barrier) -> np.ndarray:
    """Open a model for oneself and write with it: logits [3 * steps, rows, vocab]."""
    together.wait(timeout=600)
    steps = []
    for seed in range(3):
        generator, runtime = np.random.default_rng(seed), open_folder(folder)
        cache = runtime.new_cache(2, 40)
        for new in (9, *[1] * 12):
            logits, cache = runtime.decode(generator.integers(0, 160, (2, new)), cache)
            steps.append(logits[:, -1].copy())
    return np.stack(steps)
