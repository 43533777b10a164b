"""The floor of a T5 against numbers worked out by hand, for T5-small."""

from dataclasses import replace

from kvcast.bench.sources.floor import Floor
from kvcast.spec.t5 import T5Dimensions

SMALL = T5Dimensions(
    architecture="t5",
    vocab_size=32128,
    width=512,
    inner=2048,
    heads=8,
    head_dim=64,
    encoder_layers=6,
    decoder_layers=6,
)
SQUARE = 512 * 512
FEED_FORWARD = 2 * 512 * 2048
# Self-attention's query, key, value and output, and cross-attention's query and output.
DECODER = 6 * (6 * SQUARE + FEED_FORWARD)
HEAD = 32128 * 512
INT8 = Floor(dimensions=SMALL, quantize="int8")


def test_a_step_reads_the_decoder_the_head_and_both_caches():
    cost = INT8.decode(rows=1, new=1, held=9, inputs=1, source=128)
    assert DECODER == 22_020_096
    caches = 6 * 2 * 512 * 4 * (10 + 128)
    assert cost.bytes == DECODER + HEAD + 4 * HEAD / 128 + caches
    assert cost.int8 == 2 * (DECODER + HEAD)
    assert cost.fp32 == 6 * 4 * 512 * (10 + 128)


def test_beams_share_the_cross_cache_and_sources_do_not():
    one = INT8.decode(rows=1, new=1, held=9, inputs=1, source=128)
    beams = INT8.decode(rows=4, new=1, held=9, inputs=1, source=128)
    sources = INT8.decode(rows=4, new=1, held=9, inputs=4, source=128)
    self_cache = 6 * 2 * 512 * 4 * 10
    assert beams.bytes - one.bytes == 3 * self_cache
    assert sources.bytes - beams.bytes == 3 * 6 * 2 * 512 * 4 * 128
    assert beams.fp32 == sources.fp32 == 4 * one.fp32


def test_a_longer_source_costs_a_step_its_attention_and_nothing_else():
    short, long = (
        INT8.decode(rows=1, new=1, held=9, inputs=1, source=source) for source in (128, 512)
    )
    assert long.int8 == short.int8
    assert long.bytes - short.bytes == 6 * 2 * 512 * 4 * 384
    assert long.fp32 - short.fp32 == 6 * 4 * 512 * 384


def test_encoding_counts_the_encoder_and_the_cross_keys():
    cost = INT8.encode(inputs=2, source=128)
    encoder, cross = 6 * (4 * SQUARE + FEED_FORWARD), 6 * 2 * SQUARE
    assert cost.bytes == encoder + cross
    assert cost.int8 == 2 * 2 * 128 * (encoder + cross)
    assert cost.fp32 == 2 * 6 * 4 * 512 * 128 * 128
    assert INT8.cross_keys(inputs=2, source=128).int8 == 2 * 2 * 128 * cross


def test_an_int4_bundle_encodes_in_int8_and_keeps_its_table_in_8_bits():
    int4 = Floor(dimensions=SMALL, quantize="int4")
    assert int4.encode(inputs=1, source=128) == INT8.encode(inputs=1, source=128)
    step = int4.decode(rows=1, new=1, held=0, inputs=1, source=1)
    caches = 6 * 2 * 512 * 4 * 2
    assert step.bytes - caches == DECODER * (1 / 2 + 1 / 8) + HEAD + 4 * HEAD / 128


def test_a_gate_is_a_third_matrix():
    gated = Floor(dimensions=replace(SMALL, gated=True), quantize="none")
    plain = Floor(dimensions=SMALL, quantize="none")
    more = gated.encode(inputs=1, source=8).bytes - plain.encode(inputs=1, source=8).bytes
    assert more == 4 * 6 * 512 * 2048
