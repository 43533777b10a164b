"""On kvcast's own kernels a row's numbers are its own: nothing beside it changes a bit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.dimensions import (
    CROSS_BIASED_T5,
    DSA,
    GEMMA3,
    GEMMA4,
    GRANITE4,
    KIMI,
    LFM2,
    LLAMA,
    MIXTRAL,
    QWEN3_5,
    SMALL,
    SMALL_T5,
    YOUTU,
)
from kit.marks import slow
from kit.models import bundle, encoded, input_at, opened, random_tokens, speech, text
from kvcast.bundle.manifest import read_bundle
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime
from kvcast.runtimes.native import interpreter
from kvcast.runtimes.target import TARGETS
from kvcast.spec.program import Program

SOURCES = {SMALL: speech, SMALL_T5: text}
DECODERS = {
    "llama": LLAMA,
    "gemma": GEMMA3,
    "one long head": replace(LLAMA, heads=2, kv_heads=1),
    "mixtral": MIXTRAL,
    "lfm2": LFM2,
    "qwen 3.5": QWEN3_5,
    "gemma 4": GEMMA4,
    "granite 4": GRANITE4,
    "youtu": YOUTU,
    "mistral_large4": DSA,
    "kimi": KIMI,
}
# Gemma's layers do all that Llama's do.
each_decoder = pytest.mark.parametrize("name", [slow("llama"), *list(DECODERS)[1:]])


def in_chunks(runtime: Any, cache: Any, tokens_s: Int64, row: int, chunk: int) -> Float32:
    """Logits [s, vocab] of a row that reads so many tokens a call."""
    chunks = []
    for first in range(0, len(tokens_s), chunk):
        part = tokens_s[first : first + chunk]
        logits, cache = runtime.decode([part], cache, [row], positions=range(len(part)))
        chunks.append(logits[0].copy())
    return np.concatenate(chunks)


PRECISIONS = {
    "none": {"quantize": "none"},
    "int8": {"quantize": "int8", "cache": "fp16"},
    "int4": {"quantize": "int4", "cache": "int8"},
    "int8 caches": {"quantize": "none", "cache": "int8"},
}


# The others have matrices in fp32, and caches in int8.
@pytest.fixture(params=["none", "int8", "int4", slow("int8 caches")])
def precision(request: pytest.FixtureRequest) -> dict[str, str]:
    return PRECISIONS[request.param]


@pytest.mark.parametrize(
    ("dimensions", "source"),
    [(SMALL, speech), (SMALL_T5, text), (CROSS_BIASED_T5, text)],
    ids=["whisper", "t5", "cross-biased t5"],
)
def test_fp32_equals_the_model(dimensions: Any, source: Any) -> None:
    # Encoder and decoder of a T5 have tables of biases of their own.
    given, (tokens_s,) = source(1, 12), random_tokens(1, 9, seed=6)
    actual, expected = (
        in_chunks(runtime, encoded(runtime, given), tokens_s, 0, 9)
        for runtime in (opened(dimensions, runtime=name) for name in ("native", "eager"))
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dimensions", SOURCES, ids=["whisper", "t5"])
def test_inputs_and_rows_beside_it_change_nothing(
    dimensions: Any, precision: dict[str, str]
) -> None:
    runtime: EncoderDecoder = opened(dimensions, runtime="native", **precision)
    inputs, given = SOURCES[dimensions](3, 5), random_tokens(6, 9, seed=6)
    together, _ = runtime.decode(list(given), encoded(runtime, inputs, 6), positions=range(9))
    for row in range(6):
        alone = encoded(runtime, input_at(inputs, row // 2))
        np.testing.assert_array_equal(in_chunks(runtime, alone, given[row], 0, 9), together[row])


@each_decoder
def test_chunks_change_nothing(name: str, precision: dict[str, str]) -> None:
    runtime: Runtime = opened(DECODERS[name], runtime="native", **precision)
    tokens_s = np.random.default_rng(1).integers(0, 160, 40)
    expected = in_chunks(runtime, runtime.new_cache(2, 64), tokens_s, 1, 1)
    for chunk in (3, 16, 40):
        logits = in_chunks(runtime, runtime.new_cache(2, 64), tokens_s, 1, chunk)
        np.testing.assert_array_equal(logits, expected)


def test_threads_change_nothing(precision: dict[str, str]) -> None:
    folder = bundle(LLAMA, runtime="native", **precision)
    manifest = read_bundle(folder)
    tokens_s = np.random.default_rng(2).integers(0, 160, 50)
    alone, *others = [
        in_chunks(runtime, runtime.new_cache(1, 64), tokens_s, 0, 25)
        for runtime in (TARGETS["native"].open("decoder", folder, manifest, n) for n in (1, 2, 3))
    ]
    for other in others:
        np.testing.assert_array_equal(other, alone)


@pytest.mark.parametrize(
    ("rounded", "most"),
    [({"quantize": "int8"}, 0.05), ({"quantize": "int4"}, 0.5), ({"cache": "int8"}, 0.03)],
    ids=["int8", "int4", "int8 caches"],
)
@each_decoder
def test_quantised_stays_near_fp32(name: str, rounded: dict[str, str], most: float) -> None:
    tokens_s = np.random.default_rng(3).integers(0, 160, 30)
    exact, near = (
        in_chunks(runtime, runtime.new_cache(1, 32), tokens_s, 0, 30)
        for runtime in (
            opened(DECODERS[name], runtime="native", **precision) for precision in ({}, rounded)
        )
    )
    # The median token: some take another expert.
    error_s = np.abs(near - exact).mean(-1) / np.abs(exact).mean(-1)
    # Gates multiply the errors of weights. With an indexer tokens read other positions.
    most *= 2 if DECODERS[name].mixers and "quantize" in rounded else 1
    assert 0 < np.median(error_s) < most * (3 if DECODERS[name] is DSA else 1)


def test_an_int8_cache_has_a_byte_for_a_value_and_four_for_a_scale() -> None:
    caches = (
        opened(LLAMA, runtime="native", cache=dtype).new_cache(2, 32) for dtype in ("fp32", "int8")
    )
    held, small = (sum(cell.nbytes for cell in cache.memory.cells) for cache in caches)
    assert small * 4 * LLAMA.head_dim == held * (LLAMA.head_dim + 4)


def test_keys_of_an_int8_cache_align_as_those_of_fp32() -> None:
    source, (tokens_s,) = speech(1, 12), random_tokens(1, 12, seed=13)
    scores = [
        runtime.align(tokens_s, encoded(runtime, source), 0).scores_hst
        for runtime in (
            opened(SMALL, runtime="native", cache=precision) for precision in ("fp32", "int8")
        )
    ]
    error = np.abs(scores[0] - scores[1]).max()
    assert 0 < error < 0.02 * np.ptp(scores[0])


@pytest.mark.parametrize("slots", [1, 2])
def test_inputs_of_one_size_need_a_plan_for_each_slot(
    slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime: Any = opened(SMALL, "int8", "native")
    inputs, (tokens_s,) = speech(2, 5), random_tokens(1, 3, seed=7)
    plans: list[str] = []
    call = runtime.interpreter.call
    monkeypatch.setattr(
        runtime.interpreter,
        "call",
        lambda name, *given, **options: plans.append(name) or call(name, *given, **options),
    )
    cache, logits, rows = runtime.new_cache(slots, 8, slots), [], range(slots)
    for clips in ((0, 1), (1, 0), (0, 1)):
        for slot in rows:
            given = input_at(inputs, clips[slot])
            cache = runtime.encode(cache.reset([slot], None), [slot], *given)
        cache = runtime.reset(cache, rows, rows)
        logits.append([in_chunks(runtime, cache, tokens_s, row, 1) for row in rows])
    np.testing.assert_array_equal(logits[0], logits[2])
    assert not np.array_equal(logits[0], logits[1])
    if slots == 2:
        np.testing.assert_array_equal(logits[0], logits[1][::-1])
    # The first one made the cache's arrays, which the others' results are written to.
    assert plans.count("encode") == 1 + slots
    assert slots > 1 or plans == ["encode", "decode", "encode"]


def test_caches_of_one_size_share_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime: Any = opened(LLAMA, "int8", "native")
    tokens_s = np.random.default_rng(4).integers(0, 160, 9)
    plans: list[Program] = []
    plan = interpreter.planned
    monkeypatch.setattr(
        interpreter,
        "planned",
        lambda program, *given, **options: (
            plans.append(program) or plan(program, *given, **options)
        ),
    )
    caches = [runtime.new_cache(2, 48) for _ in range(2)]
    first = [in_chunks(runtime, caches[0], tokens_s, 1, chunk) for chunk in (1, 4)]
    planned = len(plans)
    second = [in_chunks(runtime, caches[1], tokens_s, 1, chunk) for chunk in (1, 4)]
    assert 0 < planned == len(plans)
    np.testing.assert_array_equal(first, second)
