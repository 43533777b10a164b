"""Every variant of a model writes the same tokens."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from kit.dimensions import MISTRAL, SMALL
from kvcast_bench.gpu import GpuVariant, RandomModel, random_model, variants
from kvcast_bench.workloads.gpu import GpuSteps, TimedModel
from tiny_models import written_eagerly

NEW = 12
# Longer than the fewest slots, and a ring that goes round.
LINEAR = replace(MISTRAL, windows=(None, None), max_positions=300)
RING = TimedModel(dimensions=MISTRAL, prompt=5, new=NEW)
TIMED: Mapping[str, TimedModel] = {
    "whisper": TimedModel(
        dimensions=replace(SMALL, decoder_layers=1, alignment_heads=()), prompt=4, new=NEW
    ),
    "ring": RING,
    "linear": TimedModel(dimensions=LINEAR, prompt=122, new=NEW),
}


def made(name: str) -> RandomModel:
    return random_model(TIMED[name], torch.float32, "cpu")


@pytest.fixture(scope="module", params=list(TIMED))
def subject(request: pytest.FixtureRequest) -> RandomModel:
    return made(request.param)


def uncompiled(module, arguments):
    return module


def ways(subject: RandomModel) -> dict[str, GpuVariant]:
    listed = variants("x", subject, uncompiled, dtype="fp32")
    return {variant.name: variant for variant in listed}


def test_every_variant_writes_what_the_eager_programs_write(subject: RandomModel):
    expected = written_eagerly(subject.programs["decode"], subject.begun, NEW)
    assert len(set(expected)) > 3  # a text that says something
    by_name = ways(subject)
    # Without a graph, what one would replay.
    library = replace(by_name["x-graphs-library"], is_graph=False)
    for variant in (*by_name.values(), library):
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


def test_bytes_of_a_step_are_counted():
    def step_bytes(prompt: int) -> float:
        models = {"x": replace(RING, prompt=prompt, new=1)}
        steps = GpuSteps(models=models, dtype="fp32", device={})
        return steps.step_bytes(steps.trials()[0])

    matrices = 2 * (64 * (64 + 64) + 64 * 64 + 64 * 192 + 96 * 64) + 160 * 64
    norms = 5 * 64
    assert step_bytes(2) == 4 * (matrices + norms + 2 * 2 * 2 * 3 * 16)
    assert step_bytes(49) == step_bytes(6)  # the ring holds no more
