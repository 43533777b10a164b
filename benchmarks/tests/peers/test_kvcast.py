"""kvcast as a backend: texts are given as ids, and each token's time is known."""

from dataclasses import replace

import numpy as np
import pytest

from kit.models import random_programs
from kit.small_tokenizers import Numbers
from kvcast.families.decoder import DECODER
from kvcast.models.executor import TorchModel
from kvcast.runtimes.eager.runtime import EagerDecoderOnly
from kvcast.text.model import TextModel
from kvcast_bench.backend import Ticks
from kvcast_bench.models import CausalModel
from kvcast_bench.peers.kvcast import Kvcast, _Clocked, windowed
from kvcast_bench.probes import Clock, timed_model
from tiny_models import TINY, tiny_checkpoint

VOCAB = TINY.vocab_size


def silent():
    tokenizer = Numbers(VOCAB, end=0, special=range(VOCAB))
    tokenizer.end_tokens = tuple(range(VOCAB))
    return tokenizer


@pytest.fixture
def ours():
    backend = Kvcast(CausalModel(folder="", threads=1), "eager", "fp32")
    programs: TorchModel = random_programs(TINY)
    backend.engine = TextModel(EagerDecoderOnly(programs), silent(), TINY)
    return backend


def likeliest(model: TextModel, prompt: list[int], new: int) -> list[int]:
    """Greedy, a row alone, everything computed again for each token."""
    tokens = list(prompt)
    for _ in range(new):
        cache = model.runtime.new_cache(1, 40)
        logits, _ = model.runtime.decode([np.array(tokens)], cache)
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_it_goes_on_past_end_tokens_and_tells_each_step(ours):
    prompts, ticks = [[1, 2, 3], [4, 5, 6]], Ticks()
    texts = ours.generate(prompts, 5, ticks)
    assert texts == [likeliest(ours.engine, prompt, 5) for prompt in prompts]
    assert len(ticks.times) == 5
    assert ticks.began < ticks.times[0]
    assert ticks.times == sorted(ticks.times)


def test_a_clock_sees_prefill_and_steps(ours):
    clock = Clock()
    with timed_model(ours.engine, clock) as ours.engine:
        ours.generate([[1, 2, 3], [4, 5, 6]], 3, Ticks())
    calls = [(call["part"], call["rows"], call["new"]) for call in clock.calls]
    assert calls == [("prefill", 2, 3), ("step", 2, 1), ("step", 2, 1)]
    assert {"prefill", "step"} <= clock.seconds.keys()


def test_a_clocked_tokenizer_is_the_same_without_end_tokens():
    clocked = _Clocked(Numbers(VOCAB, end=1))
    assert clocked.end_tokens == ()
    assert clocked.decode([5]) == "5"


def test_the_ring_has_the_models_sizes_and_matrices():
    checkpoint = tiny_checkpoint(replace(TINY, architecture="qwen2", qkv_bias=True))
    ring = windowed(checkpoint, 5)
    assert ring.dimensions == replace(TINY, architecture="mistral", windows=(5, 5))
    assert ring.tensors.keys() == DECODER.tensor_shapes(TINY).keys()
    for name in ring.tensors:
        np.testing.assert_array_equal(ring.tensors[name], checkpoint.tensors[name])
