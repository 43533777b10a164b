"""The floor of a decoder-only model against numbers worked out by hand, for SmolLM2-135M."""

from dataclasses import replace

import pytest

from kvcast.bench.text.floor import Floor
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.rotary import Rotary

SMOL = DecoderDimensions(
    architecture="llama",
    vocab_size=49152,
    width=576,
    inner=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    windows=(None,) * 30,
    max_positions=8192,
    rotary=Rotary(base=1e5),
    norm_eps=1e-5,
    attention_scale=0.125,
)
# Query and output 576 x 576, key and value 192 x 576; gate, up and down 1536 x 576.
MATRICES = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
HEAD = 49152 * 576
INT8 = Floor(dimensions=SMOL, quantize="int8")


def test_a_step_reads_all_weights_and_the_cache():
    cost = INT8.decode(rows=1, new=1, held=99)
    assert MATRICES == 106_168_320
    cache = 30 * 2 * 192 * 4 * 100
    assert cost.bytes == MATRICES + HEAD + 4 * HEAD / 64 + cache
    assert cost.int8 == 2 * (MATRICES + HEAD)
    assert cost.fp32 == 30 * 4 * 576 * 100


def test_rows_share_weights_but_not_caches():
    one, eight = (INT8.decode(rows=rows, new=1, held=99) for rows in (1, 8))
    assert eight.bytes - one.bytes == 7 * 30 * 2 * 192 * 4 * 100
    assert eight.int8 == 8 * one.int8


def test_a_prompt_meets_the_head_once_and_each_token_those_before_it():
    cost = INT8.decode(rows=1, new=4, held=0)
    assert cost.int8 == 2 * (4 * MATRICES + HEAD)
    assert cost.fp32 == 30 * 4 * 576 * (1 + 2 + 3 + 4)


def test_a_window_bounds_what_a_step_costs():
    ring = Floor(dimensions=replace(SMOL, windows=(512,) * 30), quantize="int8")
    near, far = (ring.decode(rows=1, new=1, held=held) for held in (512, 8000))
    assert near == far
    assert INT8.decode(rows=1, new=1, held=511) == near
    # A chunk's first query sees 511 positions before it.
    chunk = ring.decode(rows=1, new=2, held=600)
    assert chunk.bytes - near.bytes == 30 * 2 * 192 * 4


def test_int4_and_fp32_change_the_bytes_of_weights():
    int4 = Floor(dimensions=SMOL, quantize="int4").decode(rows=1, new=1, held=0)
    fp32 = Floor(dimensions=SMOL, quantize="none").decode(rows=1, new=1, held=0)
    cache = 30 * 2 * 192 * 4
    assert int4.bytes - cache == pytest.approx(MATRICES * (1 / 2 + 1 / 8) + HEAD + 4 * HEAD / 64)
    assert fp32.bytes - cache == 4 * (MATRICES + HEAD)
    assert fp32.int8 == 0


def test_experts_are_read_where_they_are_chosen():
    mixed = Floor(
        dimensions=replace(SMOL, experts=8, experts_per_token=2, tied=False), quantize="int8"
    )
    one, many = (mixed.decode(rows=rows, new=1, held=0) for rows in (1, 9))
    expert = 30 * 3 * 1536 * 576
    assert one.int8 == 2 * (MATRICES + expert + 30 * 8 * 576 + HEAD)
    assert many.bytes - one.bytes == 6 * expert + 8 * 30 * 2 * 192 * 4
