"""Clocks around a runtime: what is a prefill, what a step, and what was called."""

import numpy as np
import pytest

from kvcast_bench.probes import Clock, TimedRuntime


class Cache:
    def __init__(self, lengths):
        self.lengths = np.array(lengths)


class Idle:
    vocabulary = 3

    def new_cache(self, rows, capacity, inputs=0):
        return Cache([0] * rows)

    def encode(self, cache, slots, *source):
        return cache

    def decode(self, tokens, cache, rows=None, positions=(-1,)):
        taking = list(range(len(cache.lengths)) if rows is None else rows)
        lengths = cache.lengths.copy()
        lengths[taking] += [len(new) for new in tokens]
        return np.zeros((len(tokens), 1, 3), np.float32), Cache(lengths)

    def reorder(self, cache, parents):
        return Cache(cache.lengths[list(parents)])


def test_the_clock_tells_encode_prefill_step_and_reorder_apart():
    clock = Clock()
    timed = TimedRuntime(Idle(), clock)
    assert timed.vocabulary == 3
    cache = timed.new_cache(4, 9, 2)
    cache = timed.encode(cache, [0, 1], np.zeros((2, 5)), np.array([5, 5]))
    _, cache = timed.decode([np.zeros(3)] * 2, cache, [0, 2], positions=(0, -1))
    cache = timed.reorder(cache, [0, 0, 2, 2])
    timed.decode([np.zeros(1)] * 4, cache)
    assert clock.calls == [
        {"part": "encode", "inputs": 2},
        {"part": "prefill", "rows": 2, "new": 3, "held": 0, "asked": 2},
        {"part": "step", "rows": 4, "new": 1, "held": 3, "asked": 1},
    ]
    parts = ("encode", "prefill", "step", "reorder", "loop")
    seconds = clock.answer(parts, 1.0)
    assert list(seconds) == ["whole", *parts, "calls"]
    assert all(seconds[part] > 0 for part in parts)
    assert sum(seconds[part] for part in parts) == seconds["whole"] == pytest.approx(1.0)


def test_a_later_chunk_of_a_prompt_is_prefill():
    clock = Clock()
    timed = TimedRuntime(Idle(), clock)
    _, cache = timed.decode([np.zeros(2)], timed.new_cache(1, 9))
    timed.decode([np.zeros(2)], cache)
    assert [call["part"] for call in clock.calls] == ["prefill", "prefill"]


def test_what_no_part_is_shown_of_belongs_to_the_loop():
    clock = Clock()
    clock.seconds |= {"step": 0.5, "reorder": 0.2}
    assert clock.answer(("step", "loop"), 1.0) == {
        "whole": 1.0,
        "step": 0.5,
        "loop": 0.5,
        "calls": [],
    }
