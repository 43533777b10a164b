"""The floor against numbers worked out by hand for Whisper tiny.en."""

import pytest

from kvcast.bench.cost import Cost, Rates, total
from kvcast.bench.speech.floor import Floor
from kvcast.spec.whisper import WhisperDimensions

TINY_EN = WhisperDimensions(
    n_mels=80,
    vocab_size=51864,
    d_model=384,
    encoder_layers=4,
    encoder_heads=6,
    decoder_layers=4,
    decoder_heads=6,
)
INT8 = Floor(dimensions=TINY_EN, quantize="int8")
FP32 = Floor(dimensions=TINY_EN, quantize="none")


def test_encode_counts_what_is_multiplied_for_a_window():
    cost = INT8.encode()
    # Four layers of 12 d^2 weights and four cross projections of 2 d^2, 1500 positions each.
    weights = 4 * 12 * 147_456 + 4 * 2 * 147_456
    assert weights == 8_257_536
    assert cost.int8 == 2 * 1500 * weights == 24_772_608_000
    # 3000 positions of 80 x 3 inputs, 1500 of 384 x 3, 384 outputs; scores and their use.
    convolutions = 2 * 3000 * 240 * 384 + 2 * 1500 * 1152 * 384
    attention = 4 * (2 * 1500 * 1500 * 384 * 2)
    assert cost.fp32 == convolutions + attention == 15_704_064_000
    assert cost.bytes == weights


def test_a_step_reads_weights_head_and_both_caches():
    cost = INT8.decode(rows=1, new=1, length=9)
    matrices = 4 * 14 * 147_456
    scales = 4 * 4 * 11 * 384
    head = 51_864 * 384
    cross = 4 * 2 * 384 * 1500
    own = 4 * 2 * 384 * 10 * 4
    assert cost.bytes == matrices + scales + head + 4 * head / 128 + cross + own
    assert cost.bytes == pytest.approx(33.6e6, rel=0.01)
    assert cost.int8 == 2 * (matrices + head)
    assert cost.fp32 == 4 * (2 * 1510 * 384 * 2)


def test_beams_multiply_products_and_own_caches_but_not_weights_or_cross_caches():
    one = INT8.decode(rows=1, new=1, length=9)
    five = INT8.decode(rows=5, new=1, length=9)
    assert five.int8 == 5 * one.int8
    assert five.fp32 == 5 * one.fp32
    assert five.bytes - one.bytes == 4 * (4 * 2 * 384 * 10 * 4)


def test_a_prompt_meets_the_head_only_where_logits_are_asked_for():
    prompt = INT8.decode(rows=1, new=4, length=0, asked=2)
    matrices, head = 4 * 14 * 147_456, 51_864 * 384
    assert prompt.int8 == 2 * (4 * matrices + 2 * head)


def test_fp32_bundles_read_four_bytes_a_weight_and_multiply_in_fp32():
    cost = FP32.decode(rows=1, new=1, length=0)
    matrices, head = 4 * 14 * 147_456, 51_864 * 384
    cross, own = 4 * 2 * 384 * 1500 * 4, 4 * 2 * 384 * 1 * 4
    assert cost.bytes == 4 * (matrices + head) + cross + own
    assert cost.int8 == 0
    assert FP32.encode().bytes == 4 * INT8.encode().bytes
    assert FP32.encode().int8 == 0


def test_int4_halves_the_decoder_and_leaves_the_encoder():
    int4 = Floor(dimensions=TINY_EN, quantize="int4")
    matrices, head = 4 * 14 * 147_456, 51_864 * 384
    cross, own = 4 * 2 * 384 * 1500, 4 * 2 * 384 * 1 * 4
    weights = matrices / 2 + matrices / 8 + head / 2 + 4 * head / 128
    assert int4.decode(rows=1, new=1, length=0).bytes == weights + cross + own
    assert int4.encode() == INT8.encode()


def test_time_is_the_longer_of_reading_and_multiplying():
    rates = Rates(read=10.0, int8=4.0, fp32=2.0)
    assert Cost(int8=8, fp32=4, bytes=30).seconds(rates) == pytest.approx(4)
    assert Cost(int8=8, fp32=4, bytes=50).seconds(rates) == pytest.approx(5)
    assert total([Cost(bytes=10), Cost(int8=8)], rates) == pytest.approx(3)
