"""Verification's checks of caches pass on every runtime, for every kind of layer and of model.

`test_machines.py` holds caches against recomputation that shares no code with these checks.
"""

from dataclasses import replace
from itertools import product

import pytest

from kit.dimensions import (
    BERGAMOT,
    BLOCKS,
    CROSS_BIASED_T5,
    DECODERS,
    DSA,
    GEMMA3,
    GEMMA4,
    GPT_OSS,
    GRANITE4,
    KIMI,
    LFM2,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN3_5,
    ROFORMER,
    SHALLOW,
    SIMBERT,
    SMALL,
    SMALL_ROFORMER,
    SMALL_T5,
    T5GEMMA2,
    YOUTU,
)
from kit.marks import slow
from verification.subjects import assert_caches_are_right

RING = replace(GEMMA3, windows=(5, None))
STATE = replace(QWEN3_5, windows=(None, None), mixers=("delta", "attention"))
BY_CHANNEL = [
    replace(
        STATE, delta=replace(STATE.delta, by_channel=True, rank=12, gate="sigmoid", least=least)
    )
    for least in (0.0, -5.0)
]
QUICK = [
    (RING, "eager"),
    *product(
        (MISTRAL, GEMMA3, GPT_OSS, MIXTRAL, LFM2, QWEN3_5, GEMMA4, GRANITE4, YOUTU, DSA, KIMI),
        ("native",),
    ),
    *product((SMALL, SMALL_T5, CROSS_BIASED_T5, BERGAMOT, ROFORMER, SIMBERT), ("native",)),
    *product((LLAMA, MISTRAL, GEMMA3, MIXTRAL, LFM2, QWEN3_5), ("onnx",)),
    *product((SMALL, SMALL_T5, ROFORMER), ("onnx",)),
]
SLOW = [
    *product(
        (SMALL, SMALL_T5, BERGAMOT, ROFORMER, STATE, LFM2, GEMMA4, GPT_OSS, YOUTU, DSA, KIMI),
        ("eager",),
    ),
    *product((*DECODERS, *BLOCKS, SMALL_ROFORMER), ("onnx",)),
    *product((CROSS_BIASED_T5, *BY_CHANNEL), ("onnx",)),
    (T5GEMMA2, "eager"),
    # Compiling takes long: the models with the most kinds of layers and the most programs.
    *product((RING, LFM2, SHALLOW, replace(ROFORMER, layers=1)), ("aoti",)),
]


@pytest.mark.parametrize(
    ("dimensions", "runtime"),
    [*QUICK, *(slow(*each) for each in SLOW if each not in QUICK)],
    ids=lambda part: getattr(part, "architecture", part if isinstance(part, str) else "whisper"),
)
def test_checks_of_caches_pass(dimensions, runtime):
    assert_caches_are_right(dimensions, runtime)
