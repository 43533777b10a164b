"""Steps that keep their state on the device: every variant writes the same tokens."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from torch.utils._pytree import tree_map

from kvcast.bench.gpu.models import RandomModel, random_model
from kvcast.bench.gpu.steps import compiled, make_step, slots_for, summed
from kvcast.bench.gpu.variants import GpuVariant, variants
from kvcast.bench.workloads.gpu import GpuSteps, TimedModel
from random_decoders import MISTRAL
from random_models import SMALL

NEW = 12
# Longer than the fewest slots, and a ring that goes round.
LINEAR = replace(MISTRAL, windows=(None, None), max_positions=300)
RING = TimedModel(dimensions=MISTRAL, prompt=5, new=NEW)
TIMED: Mapping[str, TimedModel] = {
    "whisper": TimedModel(dimensions=replace(SMALL, decoder_layers=1), prompt=4, new=NEW),
    "ring": RING,
    "linear": TimedModel(dimensions=LINEAR, prompt=122, new=NEW),
}


def made(name: str) -> RandomModel:
    return random_model(TIMED[name], torch.float32, "cpu")


@pytest.fixture(scope="module", params=list(TIMED))
def subject(request: pytest.FixtureRequest) -> RandomModel:
    return made(request.param)


@torch.no_grad()
def eager(subject: RandomModel) -> list[int]:
    """What kvcast's own operators write."""
    text = tree_map(torch.clone, subject.begun)
    tokens = []
    for _ in range(NEW):
        offsets = torch.zeros(1, dtype=torch.int64)
        logits, _ = subject.decode(text.token_rs, text.lengths, offsets, text.caches, *text.given)
        text.token_rs.copy_(logits[:, -1].argmax(-1)[:, None])
        text.lengths.add_(1)
        tokens.append(int(text.token_rs))
    return tokens


def uncompiled(module, arguments):
    return module


def ways(subject: RandomModel) -> dict[str, GpuVariant]:
    found = variants("x", subject, uncompiled, dtype="fp32")
    return {variant.name: variant for variant in found}


def test_every_variant_writes_what_the_eager_programs_write(subject: RandomModel):
    expected = eager(subject)
    assert len(set(expected)) > 3  # a text that says something
    found = ways(subject)
    # Without a graph, what one would replay.
    library = replace(found["x-graphs-library"], is_graph=False)
    for variant in (*found.values(), library):
        if variant.unfit() is not None:
            continue
        with torch.no_grad():
            variant.load()
            for _ in range(2):  # the second time over what the first has left
                seconds, tokens = variant.write()
                assert tokens == expected
                assert seconds > 0


def test_variants_that_need_a_cuda_device_say_so(subject: RandomModel):
    for name in ("x-graphs", "x-graphs-library"):
        assert ways(subject)[name].unfit() == "CUDA graphs need a CUDA device"


def test_whisper_has_the_variants_of_its_cross_keys():
    names = ["recompute", "cond", "programs", "graphs", "graphs-library"]
    assert list(ways(made("whisper"))) == [f"x-{name}" for name in names]
    assert list(ways(made("ring"))) == [f"x-{name}" for name in names[2:]]


def test_slots_are_powers_of_two_up_to_the_capacity():
    assert [slots_for(n, 448) for n in (1, 128, 129, 256, 257, 448)] == [
        128,
        128,
        256,
        256,
        448,
        448,
    ]


def test_a_sum_is_the_product():
    torch.manual_seed(0)
    weight, bias = torch.randn(6, 5), torch.randn(6)
    for shape in ((1, 1, 5), (2, 3, 5)):
        hidden = torch.randn(shape)
        expected = torch.nn.functional.linear(hidden, weight, bias)
        torch.testing.assert_close(summed(hidden, weight, bias), expected)


def test_a_step_reads_no_more_slots_than_it_was_made_for():
    subject = made("linear")
    with torch.no_grad():
        text = tree_map(torch.clone, subject.begun)
        step = make_step(subject.decode, text, 128, "sums")
        for key, value in text.caches:
            for cache in (key, value):
                cache[:, :, 128:] = torch.nan
        step(*text)
    assert int(text.token_rs) == eager(subject)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_step_writes_its_caches_in_place_and_the_same_tokens():
    from torch._inductor.utils import run_and_get_code

    subject = made("whisper")
    with torch.no_grad():
        text = tree_map(torch.clone, subject.begun)
        module = make_step(subject.decode, text, 32, "sums")
        step, (code,) = run_and_get_code(partial(compiled, module, tuple(text)))
        for _ in range(NEW):
            step(*text)
    assert text.written[5 : 5 + NEW].tolist() == eager(subject)
    shapes = re.findall(r"empty_strided_cpu\(\(([\d, ]+)\)", code)
    buffers = [prod(map(int, re.findall(r"\d+", shape))) for shape in shapes]
    assert buffers
    assert max(buffers) < text.caches[0][0].numel()  # so none is a copy of a cache


def test_bytes_of_a_step_are_counted():
    def step_bytes(prompt: int) -> float:
        models = {"x": replace(RING, prompt=prompt, new=1)}
        steps = GpuSteps(models=models, dtype="fp32", device={})
        return steps.step_bytes(steps.trials()[0])

    matrices = 2 * (64 * (64 + 64) + 64 * 64 + 64 * 192 + 96 * 64) + 160 * 64
    norms = 5 * 64
    assert step_bytes(2) == 4 * (matrices + norms + 2 * 2 * 2 * 3 * 16)
    assert step_bytes(49) == step_bytes(6)  # the ring holds no more
