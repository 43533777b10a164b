"""Prompts on kvcast's own kernels: what is computed of them depends on nothing beside them.

In int8 and int4 attention of prompts may have a kernel of its own. Its results are near to those of
steps and not the same; in fp32 they are the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kit.dimensions import DSA, GEMMA3, LLAMA, YOUTU
from kit.marks import slow
from kit.models import bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.families.latents import Indexer
from kvcast.runtimes.base import Float32, Int64, Runtime
from kvcast.runtimes.native.bundles import open_bundle
from kvcast.runtimes.native.library import instruction_sets
from kvcast.runtimes.native.runtime import NativeRuntime

_LATENTS = DSA.latents
assert _LATENTS is not None
# Heads of the sizes that people run, of which several share keys, and one that fills no vector.
MODELS = {
    "llama": replace(LLAMA, heads=3, kv_heads=1, head_dim=64, attention_scale=64**-0.5),
    "wide": replace(LLAMA, heads=2, kv_heads=2, head_dim=128, attention_scale=128**-0.5),
    "odd": replace(LLAMA, heads=4, kv_heads=2, head_dim=20, attention_scale=20**-0.5),
    # Rings, scores with a softcap, and sinks beside them.
    "gemma": replace(GEMMA3, windows=(300, None), sinks=True),
    # Prompts are expanded, and steps absorbed.
    "youtu": YOUTU,
    # More positions than a query reads.
    "deepseek": replace(
        DSA, latents=replace(_LATENTS, indexer=Indexer(heads=3, dim=12, count=200, followers=(1,)))
    ),
}
PRECISIONS = {
    "fp32": {"quantize": "none"},
    "int8": {"quantize": "int8", "cache": "fp16"},
    "int4": {"quantize": "int4", "cache": "int8"},
}
LENGTH = 600
"""More than two of the parts in which attention is summed."""


def native(name: str, precision: str, instructions: str, threads: int = 1) -> NativeRuntime:
    folder = bundle(MODELS[name], runtime="native", **PRECISIONS[precision])
    manifest = read_bundle(folder)
    return NativeRuntime(manifest, open_bundle(folder, manifest, threads, instructions))


def tokens(length: int, seed: int = 0) -> Int64:
    return np.random.default_rng(seed).integers(0, 160, length)


def read(runtime: Runtime, tokens_s: Int64, sizes: Sequence[int], beside: int = 0) -> Float32:
    """The logits of the last token, [vocab], and of a step after it.

    It is read in chunks of these sizes, the last of them as often as it takes. `beside`: rows with
    other prompts that take part in each call.
    """
    cache: Any = runtime.new_cache(1 + beside, LENGTH + 1)
    others = [tokens(LENGTH, seed=1 + i) for i in range(beside)]
    first, left = 0, list(sizes)
    while first < len(tokens_s):
        size = left.pop(0) if len(left) > 1 else left[0]
        chunks = [row_s[first : first + size] for row_s in (tokens_s, *others)]
        logits_rpv, cache = runtime.prefill(chunks, cache)
        last_v = logits_rpv[0, -1].copy()
        first += size
    step_v = runtime.decode([tokens_s[:1]], cache, rows=[0])[0][0, -1]
    return np.stack([last_v, step_v])


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("llama", "int8"),
        ("gemma", "int8"),
        *(
            slow(name, precision)
            for name in MODELS
            for precision in PRECISIONS
            if (name, precision) not in {("llama", "int8"), ("gemma", "int8")}
        ),
    ],
)
def test_neither_chunks_nor_rows_nor_threads_change_a_bit(
    name: str, precision: str, instructions: str
) -> None:
    runtime, tokens_s = native(name, precision, instructions), tokens(LENGTH)
    expected = read(runtime, tokens_s, [LENGTH])
    for sizes in ([1, 1, 1, 7], [97], [256], [511, 1]):
        np.testing.assert_array_equal(read(runtime, tokens_s, sizes), expected)
    np.testing.assert_array_equal(read(runtime, tokens_s, [300], beside=2), expected)
    several = native(name, precision, instructions, threads=2)
    for sizes in ([LENGTH], [3, 200]):
        np.testing.assert_array_equal(read(several, tokens_s, sizes), expected)


@pytest.mark.parametrize("instructions", instruction_sets())
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["llama", slow("youtu")])
def test_prompts_are_near_to_steps_and_in_fp32_the_same(
    name: str, precision: str, instructions: str
) -> None:
    runtime, tokens_s = native(name, precision, instructions), tokens(LENGTH)
    prompt = read(runtime, tokens_s, [LENGTH])
    logits_rpv, cache = runtime.decode([tokens_s], runtime.new_cache(1, LENGTH + 1))
    last_v = logits_rpv[0, -1].copy()
    stepped = np.stack([last_v, runtime.decode([tokens_s[:1]], cache)[0][0, -1]])
    if not runtime.prompts_differ:
        np.testing.assert_array_equal(prompt, stepped)
    assert precision != "fp32" or not runtime.prompts_differ
    error = np.sqrt(np.mean((prompt - stepped) ** 2) / np.mean(stepped**2))
    assert error < 0.05  # random values nearly cancel each other, and roundings do not
