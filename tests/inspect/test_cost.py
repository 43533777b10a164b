"""Counts of work: published figures, definitions worked out the long way, and times from rates."""

import json
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.dimensions import DSA, LLAMA, TINY_EN
from kvcast.errors import UsageError
from kvcast.families.decoder import DECODER
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.mixers import DeltaNet, StateSpace
from kvcast.inspect.cost import CostQuery, document, open_work, render
from kvcast.inspect.roofline import MachineRates
from kvcast.inspect.units import duration, size, with_prefix
from kvcast.inspect.work import PARTS, ModelWork

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
MISTRAL = open_work(str(CONFIGS / "mistral-7b"))
TURBO = open_work(str(CONFIGS / "whisper-large-v3-turbo"))


def decoder(**changes: object) -> DecoderDimensions:
    sizes = {"vocab_size": 50, "width": 24, "inner": 40, "head_dim": 8, "windows": (3, None, 3)}
    return replace(LLAMA, **(sizes | {"max_positions": 100} | changes))


def test_mistral_7b_saves_2_68e16_flop_over_10_000_tokens_by_keeping_keys_and_values():
    costs = document("mistral", MISTRAL, CostQuery(prompt=1, new=10_000), None)
    cached, recomputed = (costs["calls"]["all"][way]["flop"] for way in ("cached", "recomputed"))
    saved = recomputed["keys_values"] - cached["keys_values"]
    assert saved == pytest.approx(2.68e16, rel=2e-3)
    assert saved / 312e12 == pytest.approx(86, abs=0.1)
    # By hand: 32 layers, keys and values of 8 x 128, a product of 4096 each, all earlier tokens.
    assert saved == 32 * 2 * 2 * 4096 * 1024 * (10_000 * 9_999 // 2)


def test_recomputing_all_of_mistral_7b_costs_7_0e17_flop():
    costs = document("mistral", MISTRAL, CostQuery(prompt=1, new=10_000), None)
    flop = costs["calls"]["all"]["recomputed"]["flop"]
    assert flop["keys_values"] + flop["linear"] == pytest.approx(7.0e17, rel=5e-3)


def test_mistral_7b_has_its_published_size_in_either_layout():
    assert MISTRAL.parameters == 7_241_732_096
    assert open_work(str(CONFIGS / "mistral-7b-params")).parameters == 7_241_732_096


def test_turbo_recomputes_113_times_the_rest_of_its_decoder_for_cross_keys_and_values():
    step = document("turbo", TURBO, CostQuery(prompt=1, new=2), None)["calls"]["next"]
    cross = step["recomputed"]["flop"]["cross_keys_values"]
    rest = step["cached"]["flop"]["total"]
    assert step["cached"]["flop"]["cross_keys_values"] == 0
    assert cross / 4 == pytest.approx(9.83e9, rel=1e-3)
    assert cross == pytest.approx(39.3e9, rel=1e-3)
    assert rest == pytest.approx(0.35e9, rel=0.02)
    assert cross / rest == pytest.approx(113, abs=0.5)


def test_turbos_cross_keys_and_values_take_29_3_mib_in_bf16():
    costs = document("turbo", TURBO, CostQuery(prompt=4, new=100), None)
    (cross,) = (kind for kind in costs["cache"] if kind["kind"] == "cross")
    assert (cross["layers"], cross["positions"]) == (4, 1500)
    assert cross["bytes"] / 2**20 == pytest.approx(29.3, abs=0.01)


def test_the_published_figures_are_printed():
    mistral = render(document("mistral", MISTRAL, CostQuery(prompt=1, new=10_000), None))
    assert "Not projecting keys and values again saves 26.8 PFLOP" in mistral
    turbo = render(document("turbo", TURBO, CostQuery(prompt=4, new=100), None))
    assert "29.3 MiB" in turbo
    assert "39.3 G" in turbo


@given(length=st.integers(0, 20), new=st.integers(1, 20), window=st.none() | st.integers(1, 12))
def test_attention_counts_each_pair_that_is_seen_and_a_step_reads_what_was_there(
    length: int, new: int, window: int | None
):
    work = ModelWork(dimensions=decoder(windows=(window,))).call(length, new)
    seen = [range(max(0, q + 1 - (window or 99)), q + 1) for q in range(length, length + new)]
    assert work.attention == 2 * 2 * 4 * 8 * sum(map(len, seen))
    old = {p for positions in seen for p in positions if p < length}
    assert work.cached == 2 * 2 * 8 * len(old)


STATE = {"key_heads": 2, "value_heads": 4, "key_dim": 8, "value_dim": 5, "convolution": 4}
OTHERS: list[dict[str, Any]] = [
    {},
    {"mixers": ("convolution", "attention", "attention"), "convolution": 4},
    {
        "mixers": ("delta", "attention", "attention"),
        "delta": DeltaNet(**STATE),
        "attention_gate": True,
    },
    {
        "mixers": ("state_space", "attention", "attention"),
        "state_space": StateSpace(**STATE, norm_eps=1e-5),
    },
]


@pytest.mark.parametrize("others", OTHERS)
def test_products_are_those_of_every_matrix_with_every_token(others: dict[str, Any]):
    sizes = decoder(tied=False, qkv_bias=True, windows=(None, None, 3), **others)
    model = ModelWork(dimensions=sizes)
    work = model.call(0, 7, asked=7)
    matrices = {
        name: prod(shape)
        for name, shape in DECODER.tensor_shapes(sizes).items()
        if len(shape) == 2 and name.startswith("decoder.layers.") and "kernel" not in name
    }
    assert work.keys_values + work.linear == 2 * 7 * sum(matrices.values())
    attending = 2 if others else 3
    assert work.keys_values == 2 * 7 * attending * (2 * 2 * 8 * 24)
    # A convolution's inputs, or those of a layer with matrices, which are written once.
    channels, matrices = (2 * 16 + 20, 4 * 8 * 5) if sizes.state(0) else ((3 - attending) * 24, 0)
    assert work.written == 7 * (2 * attending * 2 * 8 + channels) + matrices
    # The last token alone meets the head, and so what lies between it and the last cache.
    last = model.call(0, 7)
    spared = ("out.weight", "feed_forward.gate_up.weight", "feed_forward.down.weight")
    behind = sum(
        prod(shape)
        for name, shape in DECODER.tensor_shapes(sizes).items()
        if name.startswith("decoder.layers.2.") and name.endswith(spared)
    )
    assert (last.head, work.linear - last.linear) == (2 * 50 * 24, 2 * 6 * behind)


def test_a_call_reads_every_weight_once_but_for_an_embedding_that_is_only_looked_up():
    tied, untied = (ModelWork(dimensions=decoder(tied=tied)) for tied in (True, False))
    assert tied.call(5, 1).weights == tied.parameters
    assert untied.call(5, 1).weights == tied.parameters == untied.parameters - 50 * 24


def test_a_token_multiplies_its_experts_and_a_prompt_reads_them_all():
    mixed = ModelWork(dimensions=decoder(experts=8, experts_per_token=2))
    dense = ModelWork(dimensions=decoder())
    expert = 3 * 24 * 40
    assert mixed.call(5, 1).linear - dense.call(5, 1).linear == 2 * 3 * (expert + 8 * 24)
    assert mixed.parameters - mixed.call(5, 1).weights == 3 * 6 * expert
    assert mixed.parameters - mixed.call(5, 3).weights == 3 * 2 * expert
    assert mixed.parameters == mixed.call(5, 4).weights == mixed.call(5, 9).weights


@pytest.mark.parametrize("model", [ModelWork(dimensions=decoder()), TURBO])
def test_a_prompt_and_its_steps_multiply_what_the_whole_does_at_once(model: ModelWork | ModelWork):
    whole = model.call(0, 12, asked=12)
    parts = [model.call(0, 5, asked=5), *(model.call(length, 1) for length in range(5, 12))]
    for part in ("keys_values", "linear", "attention"):
        assert sum(getattr(work, part) for work in parts) == getattr(whole, part)


def test_cache_layers_are_sized_by_kind_and_a_ring_stops_growing():
    model = ModelWork(dimensions=decoder())
    short, long = model.cache(2), model.cache(90)
    assert [(kind.kind, kind.layers, kind.positions) for kind in short] == [
        ("ring", 2, 2),
        ("linear", 1, 2),
    ]
    assert [kind.positions for kind in long] == [3, 90]
    assert long[0].values == 2 * 2 * 2 * 8 * 3


def test_a_convolution_reads_its_earlier_inputs_and_holds_no_more():
    mixers = ("convolution", "attention", "convolution")
    model = ModelWork(dimensions=decoder(windows=(None,) * 3, mixers=mixers, convolution=4))
    for length, earlier in ((0, 0), (2, 2), (50, 3)):
        assert model.call(length, 1).cached == 2 * 24 * earlier + 2 * 2 * 8 * length
    inputs = model.cache(50)[-1]
    assert (inputs.kind, inputs.layers, inputs.positions) == ("inputs", 2, 3)
    assert inputs.values == 2 * 24 * 3


def test_layers_that_read_the_caches_of_others_compute_the_asked_positions_alone():
    sizes = decoder(
        windows=(None, 3, None, 3),
        sources=(0, 1, 0, 1),
        layer_head_dims=(8, 6, 8, 6),
        layer_inners=(40, 40, 80, 80),
        layer_embedding=4,
    )
    model = ModelWork(dimensions=sizes)
    work = model.call(5, 7, rows=2)
    early = late = 0
    for name, shape in DECODER.tensor_shapes(sizes).items():
        last_of_all = name == "decoder.layers.1.attention.qkv.weight"
        if last_of_all or name.startswith(("decoder.layers.0.", "decoder.layer_projection.w")):
            early += prod(shape) if len(shape) == 2 else 0
        elif name.startswith("decoder.layers."):
            late += prod(shape) if len(shape) == 2 else 0
    assert work.keys_values + work.linear == 2 * 2 * (7 * early + late)
    assert work.written == 2 * 7 * 2 * 2 * (8 + 6)
    seen = 8 * sum(range(6, 13)) + 6 * 7 * 3, 8 * 12 + 6 * 3
    assert work.attention == 2 * 2 * 2 * 4 * sum(seen)
    # A window's cache that is read again is no ring.
    (linear,) = model.cache(50)
    assert (linear.kind, linear.layers, linear.values) == ("linear", 2, 50 * 2 * 2 * (8 + 6))


def test_layers_that_read_the_latents_of_others_write_none():
    model = ModelWork(dimensions=DSA)
    latents, index = 56 + 48, 3 * 12  # of two layers, of which one does not rotate; of three
    assert model.call(3, 2, rows=2).written == 2 * 2 * (latents + index)
    kinds = [(kind.kind, kind.layers, kind.values) for kind in model.cache(30)]
    assert kinds == [("latent", 2, 30 * (latents + 2 * 12)), ("index", 1, 30 * 12)]


def test_a_tiny_whisper_counts_as_by_hand():
    model = ModelWork(dimensions=TINY_EN)
    d2 = 384 * 384
    convolutions = 2 * 3000 * 240 * 384 + 2 * 1500 * 1152 * 384
    attention = 4 * (2 * 1500 * 1500 * 384 * 2)
    assert model.encode().flop["encoder"] == convolutions + attention + 4 * 2 * 12 * 1500 * d2
    assert model.project().cross_keys_values == 4 * 2 * 2 * 1500 * d2
    step = model.call(9, 1)
    assert step.linear + step.keys_values == 2 * 4 * 14 * d2
    assert step.attention == 4 * 2 * 2 * 384 * (1500 + 10)
    assert step.cached == 4 * 2 * 384 * (1500 + 9)
    biases_and_norms = 4 * (11 * 384 + 3 * 2 * 384) + 2 * 384
    assert step.weights == 4 * 14 * d2 + 51864 * 384 + biases_and_norms


def test_a_call_takes_the_longer_of_reading_and_multiplying():
    machine = MachineRates(bandwidth=10.0, rate=4.0)
    assert machine.seconds(8, 30) == 3
    assert machine.seconds(40, 30) == 10


def test_times_are_the_sums_of_their_calls():
    model, question = ModelWork(dimensions=decoder()), CostQuery(prompt=5, new=3)
    machine = MachineRates(bandwidth=1e3, rate=1e4)
    costs = document("m", model, question, machine)["calls"]
    works = [model.call(0, 5), model.call(5, 1), model.call(6, 1)]
    times = [max(w.operations / 1e4, 2 * (w.weights + w.cached) / 1e3) for w in works]
    assert costs["first"]["cached"]["seconds"] == times[0]
    assert costs["next"]["cached"]["seconds"] == times[1]
    assert costs["last"]["cached"]["seconds"] == times[2]
    assert costs["all"]["cached"]["seconds"] == pytest.approx(sum(times))
    again = [model.recompute(5, new) for new in range(3)]
    slow = [max(w.operations / 1e4, 2 * w.weights / 1e3) for w in again]
    assert costs["all"]["recomputed"]["seconds"] == pytest.approx(sum(slow))


def test_bytes_follow_what_a_number_is_said_to_take():
    model = ModelWork(dimensions=decoder())
    question = CostQuery(prompt=5, new=2, bytes_per_weight=0.5, bytes_per_cached=4.0)
    told = document("m", model, question, None)["calls"]["next"]["cached"]
    work = model.call(5, 1)
    assert told["bytes"] == {"weights": work.weights / 2, "cache": work.cached * 4}
    assert told["seconds"] is None
    assert question.step_bytes(model) == work.weights / 2 + work.cached * 4


def test_a_single_new_token_is_the_first_call_alone():
    costs = document("m", TURBO, CostQuery(prompt=448, new=1), None)
    assert costs["calls"]["next"] is costs["calls"]["last"] is None
    assert costs["calls"]["all"] == costs["calls"]["first"]
    assert "next" not in render(costs)


def test_a_sequence_longer_than_the_model_is_refused():
    message = "a prompt of 448 tokens and 2 new ones take 449 positions, and the model has 448"
    with pytest.raises(UsageError, match=message):
        document("m", TURBO, CostQuery(prompt=448, new=2), None)


def test_the_document_is_json_and_all_parts_are_in_it():
    costs = document("m", TURBO, CostQuery(prompt=4, new=2), MachineRates(bandwidth=1e9, rate=1e9))
    assert json.loads(json.dumps(costs)) == costs
    flop = costs["calls"]["all"]["recomputed"]["flop"]
    assert flop.keys() == {*PARTS, "total"}
    assert flop["total"] == sum(flop[part] for part in PARTS)
    assert costs["machine"] == {
        "bandwidth": 1e9,
        "rate": 1e9,
        "bandwidth_from": "given",
        "rate_from": "given",
    }


def test_tables_line_up():
    costs = document("m", TURBO, CostQuery(prompt=4, new=2), MachineRates(bandwidth=1e9, rate=1e9))
    table = render(costs).split("\n\n")[2].splitlines()
    assert {len(line) for line in table} == {len(table[0])}
    assert table[-1].startswith("least time")


@given(st.floats(0, 1e26, allow_nan=False))
def test_prefixed_numbers_keep_three_digits(value: float):
    number, _, prefix = with_prefix(value).partition(" ")
    assert float(number) < 1000 or prefix == "Y"
    power = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"].index(prefix)
    assert float(number) * 1000**power == pytest.approx(value, rel=6e-3, abs=0.006)


def test_units_as_people_read_them():
    assert with_prefix(2.6841e16) == "26.8 P"
    assert (with_prefix(999.6), with_prefix(0), with_prefix(39.3216e9)) == (
        "1.00 k",
        "0 ",
        "39.3 G",
    )
    assert size(30_720_000) == "30.7 MB"
    times = (12e-6, 0.0123, 1.5, 700, 40_000)
    assert [duration(time) for time in times] == ["12 µs", "12.3 ms", "1.50 s", "12 min", "11 h"]
    assert all(a != b for a, b in pairwise(map(duration, (0.00099949, 0.000999501))))
