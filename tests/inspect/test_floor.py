"""Floors against figures worked out by hand: counted work, as bundles store it, over rates."""

from dataclasses import replace

import pytest

from kit.dimensions import SMOL, T5_SMALL, TINY_EN
from kvcast.inspect.roofline import Arithmetic, Cost
from kvcast.inspect.work import ModelWork, Work
from kvcast_bench.workloads.causal import Causal
from kvcast_bench.workloads.seq2seq import Seq2seq
from kvcast_bench.workloads.speech import SpeechWorkload

WHISPER = ModelWork(dimensions=TINY_EN)


def speech(work: Work, precision: str = "int8") -> Cost:
    return Arithmetic(precision=precision).cost(work, SpeechWorkload.stored, 384)


def causal(work: Work, precision: str = "int8") -> Cost:
    return Arithmetic(precision=precision).cost(work, Causal.stored, SMOL.width)


def seq2seq(work: Work, precision: str = "int8") -> Cost:
    return Arithmetic(precision=precision).cost(work, Seq2seq.stored, T5_SMALL.width)


class TestWhisper:
    matrices, head = 4 * 14 * 147_456, 51_864 * 384
    cross = 4 * 2 * 384 * 1500

    def test_encode_counts_what_is_multiplied_for_a_window(self):
        cost = speech(WHISPER.encode() + WHISPER.project())
        # Four layers of 12 d^2 weights and four cross projections of 2 d^2, 1500 positions each.
        weights = 4 * 12 * 147_456 + 4 * 2 * 147_456
        assert weights == 8_257_536
        assert cost.int8 == 2 * 1500 * weights == 24_772_608_000
        # 3000 positions of 80 x 3 inputs, 1500 of 384 x 3, 384 outputs; scores and their use.
        convolutions = 2 * 3000 * 240 * 384 + 2 * 1500 * 1152 * 384
        attention = 4 * (2 * 1500 * 1500 * 384 * 2)
        assert cost.fp32 == convolutions + attention == 15_704_064_000
        assert cost.bytes == weights

    def test_a_step_reads_weights_head_and_both_caches(self):
        cost = speech(WHISPER.call(9, 1))
        scales = 4 * 4 * 11 * 384
        own = 4 * 2 * 384 * 10 * 4
        weights = self.matrices + scales + self.head + 4 * self.head / 128
        assert cost.bytes == weights + self.cross + own
        assert cost.bytes == pytest.approx(33.6e6, rel=0.01)
        assert cost.int8 == 2 * (self.matrices + self.head)
        assert cost.fp32 == 4 * (2 * 1510 * 384 * 2)

    def test_beams_multiply_products_and_own_caches_but_not_weights_or_cross_caches(self):
        single, five = (speech(WHISPER.call(9, 1, rows=rows)) for rows in (1, 5))
        assert five.int8 == 5 * single.int8
        assert five.fp32 == 5 * single.fp32
        assert five.bytes - single.bytes == 4 * (4 * 2 * 384 * 10 * 4)

    def test_a_prompt_meets_the_head_only_where_logits_are_asked_for(self):
        prompt = speech(WHISPER.call(0, 4, asked=2))
        assert prompt.int8 == 2 * (4 * self.matrices + 2 * self.head)

    def test_fp32_bundles_read_four_bytes_a_weight_and_multiply_in_fp32(self):
        cost = speech(WHISPER.call(0, 1), "fp32")
        own = 4 * 2 * 384 * 1 * 4
        assert cost.bytes == 4 * (self.matrices + self.head) + 4 * self.cross + own
        assert cost.int8 == 0
        encode = WHISPER.encode() + WHISPER.project()
        assert speech(encode, "fp32").bytes == 4 * speech(encode).bytes
        assert speech(encode, "fp32").int8 == 0

    def test_int4_halves_the_decoder_and_leaves_the_encoder(self):
        own = 4 * 2 * 384 * 1 * 4
        weights = self.matrices / 2 + self.matrices / 8 + self.head / 2 + 4 * self.head / 128
        assert speech(WHISPER.call(0, 1), "int4").bytes == weights + self.cross + own
        encode = WHISPER.encode() + WHISPER.project()
        assert speech(encode, "int4") == speech(encode)


class TestDecoder:
    # Query and output 576 x 576, key and value 192 x 576; gate, up and down 1536 x 576.
    matrices = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    head = 49152 * 576
    model = ModelWork(dimensions=SMOL)

    def test_a_step_reads_all_weights_and_the_cache(self):
        cost = causal(self.model.call(99, 1))
        assert self.matrices == 106_168_320
        cache = 30 * 2 * 192 * 4 * 100
        assert cost.bytes == self.matrices + self.head + 4 * self.head / 64 + cache
        assert cost.int8 == 2 * (self.matrices + self.head)
        assert cost.fp32 == 30 * 4 * 576 * 100

    def test_rows_share_weights_but_not_caches(self):
        single, eight = (causal(self.model.call(99, 1, rows=rows)) for rows in (1, 8))
        assert eight.bytes - single.bytes == 7 * 30 * 2 * 192 * 4 * 100
        assert eight.int8 == 8 * single.int8

    def test_a_prompt_meets_the_head_once_and_each_token_those_before_it(self):
        cost = causal(self.model.call(0, 4))
        # Three positions are spared the last layer's matrices behind attention.
        behind = 576 * 576 + 3 * 576 * 1536
        assert cost.int8 == 2 * (4 * self.matrices - 3 * behind + self.head)
        assert cost.fp32 == 30 * 4 * 576 * (1 + 2 + 3 + 4)

    def test_a_window_bounds_what_a_step_costs(self):
        ring = ModelWork(dimensions=replace(SMOL, windows=(512,) * 30))
        near, far = (causal(ring.call(held, 1)) for held in (512, 8000))
        assert near == far
        assert causal(self.model.call(511, 1)) == near
        # A chunk's first query sees 511 positions before it.
        chunk = causal(ring.call(600, 2))
        assert chunk.bytes - near.bytes == 30 * 2 * 192 * 4

    def test_precisions_change_the_bytes_of_weights(self):
        cache = 30 * 2 * 192 * 4
        int4, fp32, bf16 = (causal(self.model.call(0, 1), p) for p in ("int4", "fp32", "bf16"))
        table = self.head + 4 * self.head / 64
        assert int4.bytes - cache == pytest.approx(self.matrices * (1 / 2 + 1 / 8) + table)
        assert fp32.bytes - cache == 4 * (self.matrices + self.head)
        assert fp32.int8 == 0
        assert bf16.bytes == fp32.bytes / 2

    def test_products_in_bf16_are_charged_as_int8(self):
        bf16 = Arithmetic(precision="bf16", bf16_products=True)
        cost = bf16.cost(self.model.call(0, 1), Causal.stored, SMOL.width)
        assert (cost.int8, cost.fp32) == (causal(self.model.call(0, 1), "fp32").fp32, 0)

    def test_experts_are_read_where_they_are_chosen(self):
        mixed = ModelWork(dimensions=replace(SMOL, experts=8, experts_per_token=2, tied=False))
        single, many = (causal(mixed.call(0, 1, rows=rows)) for rows in (1, 9))
        expert = 30 * 3 * 1536 * 576
        assert single.int8 == 2 * (self.matrices + expert + 30 * 8 * 576 + self.head)
        assert many.bytes - single.bytes == 6 * expert + 8 * 30 * 2 * 192 * 4


class TestT5:
    square, feed_forward = 512 * 512, 2 * 512 * 2048
    # Self-attention's query, key, value and output, and cross-attention's query and output.
    decoder = 6 * (6 * square + feed_forward)
    head = 32128 * 512
    model = ModelWork(dimensions=T5_SMALL, source=128)

    def test_a_step_reads_the_decoder_the_head_and_both_caches(self):
        cost = seq2seq(self.model.call(9, 1))
        assert self.decoder == 22_020_096
        caches = 6 * 2 * 512 * 4 * (10 + 128)
        assert cost.bytes == self.decoder + self.head + 4 * self.head / 128 + caches
        assert cost.int8 == 2 * (self.decoder + self.head)
        assert cost.fp32 == 6 * 4 * 512 * (10 + 128)

    def test_beams_share_the_cross_cache_and_sources_do_not(self):
        single, beams, sources = (
            seq2seq(self.model.call(9, 1, rows=rows, inputs=inputs))
            for rows, inputs in ((1, 1), (4, 1), (4, 4))
        )
        self_cache = 6 * 2 * 512 * 4 * 10
        assert beams.bytes - single.bytes == 3 * self_cache
        assert sources.bytes - beams.bytes == 3 * 6 * 2 * 512 * 4 * 128
        assert beams.fp32 == sources.fp32 == 4 * single.fp32

    def test_a_longer_source_costs_a_step_its_attention_and_nothing_else(self):
        short, long = (
            seq2seq(ModelWork(dimensions=T5_SMALL, source=source).call(9, 1))
            for source in (128, 512)
        )
        assert long.int8 == short.int8
        assert long.bytes - short.bytes == 6 * 2 * 512 * 4 * 384
        assert long.fp32 - short.fp32 == 6 * 4 * 512 * 384

    def test_encoding_counts_the_encoder_and_the_cross_keys(self):
        cost = seq2seq(self.model.encode(2) + self.model.project(2))
        encoder, cross = 6 * (4 * self.square + self.feed_forward), 6 * 2 * self.square
        assert cost.bytes == encoder + cross
        assert cost.int8 == 2 * 2 * 128 * (encoder + cross)
        assert cost.fp32 == 2 * 6 * 4 * 512 * 128 * 128
        assert seq2seq(self.model.project(2)).int8 == 2 * 2 * 128 * cross

    def test_an_int4_bundle_encodes_in_int8_and_keeps_its_table_in_8_bits(self):
        assert seq2seq(self.model.encode(), "int4") == seq2seq(self.model.encode())
        short = ModelWork(dimensions=T5_SMALL, source=1)
        caches = 6 * 2 * 512 * 4 * 2
        table = self.head + 4 * self.head / 128
        step = seq2seq(short.call(0, 1), "int4")
        assert step.bytes - caches == self.decoder * (1 / 2 + 1 / 8) + table

    def test_a_gate_is_a_third_matrix(self):
        gated = ModelWork(dimensions=replace(T5_SMALL, gated=True))
        more = seq2seq(gated.encode(), "fp32").bytes - seq2seq(self.model.encode(), "fp32").bytes
        assert more == 4 * 6 * 512 * 2048


def test_time_is_the_longer_of_reading_and_multiplying():
    rates = {"read": 10.0, "read_again": 5.0, "int8": 4.0, "fp32": 2.0}
    assert Cost(int8=8, fp32=4, bytes=30).seconds(rates) == pytest.approx(4)
    assert Cost(int8=8, fp32=4, bytes=50).seconds(rates) == pytest.approx(5)


def test_a_floor_charges_the_better_rate_of_reading():
    rates = {"read": 1.0, "read_again": 3.0, "int8": 4.0, "fp32": 2.0}
    assert Cost(bytes=30).seconds(rates) == 10
    assert Cost(bytes=30).seconds({**rates, "read": 5.0}) == 6
