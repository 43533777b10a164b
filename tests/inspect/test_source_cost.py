"""Counts of a T5's and a UniLM's work: published sizes, and definitions the long way."""

from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest

from kit.dimensions import SIMBERT, T5_SMALL, T5GEMMA, T5GEMMA2
from kvcast.errors import UsageError
from kvcast.families.t5 import T5
from kvcast.families.t5gemma import T5GEMMA as FAMILY_OF_T5GEMMA
from kvcast.families.unilm import UNILM
from kvcast.inspect.cost import CostQuery, document, open_work
from kvcast.inspect.work import ModelWork

CONFIGS = Path(__file__).parents[1] / "data" / "configs"


def t5(*, source: int = 7, **changes: object) -> ModelWork:
    sizes = {
        "vocab_size": 50,
        "width": 24,
        "inner": 40,
        "heads": 4,
        "head_dim": 8,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "logit_scale": 1.0,
    }
    return ModelWork(dimensions=replace(T5_SMALL, **(sizes | changes)), source=source)


def unilm(**changes: object) -> ModelWork:
    sizes = {
        "vocab_size": 50,
        "width": 24,
        "embedding_width": 16,
        "inner": 40,
        "heads": 4,
        "layers": 3,
        "max_positions": 100,
        "pooled": False,
    }
    return ModelWork(dimensions=replace(SIMBERT, **(sizes | changes)))


def matrices(shapes: dict[str, tuple[int, ...]], start: str, without: str = " ") -> int:
    return sum(
        prod(shape)
        for name, shape in shapes.items()
        if len(shape) == 2 and name.startswith(start) and without not in name
    )


def test_t5_small_has_its_published_size():
    assert open_work(str(CONFIGS / "t5-small")).parameters == 60_506_624


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_a_t5_multiplies_every_matrix_with_every_token(gated: bool, tied: bool):
    model = t5(gated=gated, tied=tied)
    shapes = T5.tensor_shapes(model.dimensions)
    assert model.parameters == sum(map(prod, shapes.values()))
    attention = 2 * 2 * 7 * 7 * 32
    encoder = model.encode()
    assert encoder.flop["encoder"] == 2 * 7 * matrices(shapes, "encoder.layers.") + 2 * attention
    call, cross = model.call(4, 5), model.project().cross_keys_values
    own = matrices(shapes, "decoder.layers.", "cross_attention.key_value")
    assert call.keys_values + call.linear == 2 * 5 * own
    assert cross == 2 * 7 * (matrices(shapes, "decoder.layers.") - own)
    # Of 5 new positions after 4, each over those up to itself and over the source.
    assert call.attention == 3 * 2 * 2 * 32 * (5 + 6 + 7 + 8 + 9 + 5 * 7)
    assert call.head == 2 * 50 * 24
    assert call.cached == 3 * 2 * 32 * (4 + 7)


@pytest.mark.parametrize("tied", [False, True])
def test_a_t5_reads_each_weight_once_but_for_what_is_looked_up(tied: bool):
    model = t5(tied=tied)
    read = model.encode().weights + model.project().weights + model.call(0, 1).weights
    looked_up = 2 * 32 * 4 + (0 if tied else 50 * 24)
    assert read == model.parameters - looked_up


@pytest.mark.parametrize("dimensions", [T5GEMMA, T5GEMMA2], ids=["apart", "merged"])
def test_a_t5gemma_multiplies_every_matrix_of_its_decoder_with_every_token(dimensions):
    model = ModelWork(dimensions=dimensions, source=7)
    shapes, of = FAMILY_OF_T5GEMMA.tensor_shapes(dimensions), dimensions.decoder
    assert model.parameters == sum(map(prod, shapes.values()))
    call, once = model.call(4, 5), model.project()
    of_source = sum(
        prod(shape)
        for name, shape in shapes.items()
        if name.startswith("decoder.layers.") and name.endswith("attention.key_value.weight")
    )
    # The merged attention's own keys and values are made by the same matrices.
    own = matrices(shapes, "decoder.layers.") - (0 if dimensions.merged else of_source)
    assert call.keys_values + call.linear == 2 * 5 * own
    assert once.cross_keys_values == 2 * 7 * of.layers * 2 * of.keys * dimensions.encoder.width
    seen = sum(min(end, window or end) for window in of.windows for end in (5, 6, 7, 8, 9))
    assert call.attention == 2 * 2 * of.mixed * (seen + of.layers * 5 * 7)
    assert call.cached == of.layers * 2 * of.keys * (4 + 7)
    # Merged attention norms keys, and both stacks have one embedding of ends of images.
    assert once.weights == of_source + dimensions.merged * (of.layers * of.head_dim + of.width)


def test_what_keeping_a_t5s_cross_keys_is_worth_grows_with_the_source():
    steps = []
    for source in (10, 20):
        costs = document("t5", t5(source=source), CostQuery(prompt=1, new=3), None)
        steps.append(costs["calls"]["next"])
        (cross,) = (kind for kind in costs["cache"] if kind["kind"] == "cross")
        assert (cross["positions"], cross["layers"]) == (source, 3)
        assert cross["bytes"] == 2 * 3 * 2 * 32 * source
    assert all(step["cached"]["flop"]["cross_keys_values"] == 0 for step in steps)
    short, long = (step["recomputed"]["flop"]["cross_keys_values"] for step in steps)
    assert 2 * short == long == 2 * 20 * 3 * 2 * 32 * 24


def test_a_source_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match="a source of 8 tokens is too long: the model has 7"):
        t5(source=8, source_positions=7)


@pytest.mark.parametrize("embedding_width", [16, 24])
def test_a_unilm_multiplies_every_matrix_with_every_token(embedding_width: int):
    model = unilm(embedding_width=embedding_width, pooled=True)
    shapes = UNILM.tensor_shapes(model.dimensions)
    assert model.parameters == sum(map(prod, shapes.values()))
    call = model.call(0, 5)
    assert call.keys_values + call.linear == 2 * 5 * (
        matrices(shapes, "layers.") + matrices(shapes, "projection.")
    )
    assert call.keys_values == 2 * 5 * 3 * 2 * 24 * 24
    assert call.head == 2 * (matrices(shapes, "head.") + matrices(shapes, "embedding."))
    idle = [prod(shapes[f"{name}.weight"]) for name in ("segments", "positions", "pooler")]
    assert call.weights == model.parameters - sum(idle) - 24


def test_a_unilm_attends_where_its_mask_says():
    model = unilm()
    sums = np.cumsum([0] * 5 + [1] * 3)
    seen = sums[None, :] <= sums[:, None]
    each = 3 * 2 * 2 * 24
    assert model.call(0, 5).attention == each * seen[:5].sum()
    assert model.call(6, 1).attention == each * seen[6].sum()
    assert model.recompute(5, 3).attention == each * seen.sum()
    assert model.recompute(5, 3).linear == model.call(0, 5).linear + 3 * model.call(5, 1).linear
    assert model.call(6, 1).cached == 3 * 2 * 24 * 6


def test_a_unilms_whole_cost_is_one_cache_for_source_and_target():
    costs = document("unilm", unilm(), CostQuery(prompt=5, new=3), None)
    (cache,) = costs["cache"]
    assert (cache["kind"], cache["layers"], cache["positions"]) == ("linear", 3, 7)
    assert cache["bytes"] == 2 * 3 * 2 * 24 * 7
    whole = costs["calls"]["all"]["recomputed"]["flop"]["total"]
    model = unilm()
    assert whole == sum(model.recompute(5, new).operations for new in range(3))
