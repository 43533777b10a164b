"""Turns of contenders that write targets, and the clock, with ones that follow a script."""

from dataclasses import asdict

import numpy as np
import pytest
from tiny_sources import TINY, task

from kvcast.bench.sources import contestant
from kvcast.bench.sources.contestant import Writer
from kvcast.bench.sources.peers.ours import NumbersAsText
from kvcast.bench.sources.trials import Trial
from kvcast.bench.timed import Clock, TimedRuntime
from kvcast.errors import KvcastError

TRIAL = Trial(rows=2, source=5, beams=3, target=4)


class Scripted:
    """Writes each source's own tokens; forgets some on demand."""

    modules = ("json",)

    def __init__(self, missing: int = 0) -> None:
        self._missing = missing
        self.asked: list[tuple[int, int]] = []

    def load(self) -> None:
        pass

    def write(self, sources, beams, tokens):
        self.asked.append((beams, tokens))
        return [source[: tokens - self._missing] for source in sources]


def writer(monkeypatch, tmp_path, scripted: Scripted) -> Writer:
    monkeypatch.setattr(contestant, "CONTENDERS", {"scripted": lambda _: scripted})
    return Writer("scripted", asdict(task(tmp_path)))


def test_a_turn_asks_for_one_token_and_for_all(monkeypatch, tmp_path):
    scripted = Scripted()
    answer = writer(monkeypatch, tmp_path, scripted).take(**TRIAL.to_json())
    assert scripted.asked == [(3, 1), (3, 1), (3, 4)]
    assert answer["tokens"] == TRIAL.sources(TINY.vocab_size)[0][:4]
    assert answer["peak_bytes"] > 1e6
    assert answer["step"] == (answer["seconds"] - answer["first"]) / 3


def test_who_writes_less_than_was_asked_fails(monkeypatch, tmp_path):
    with pytest.raises(KvcastError, match=r"wrote \[0, 0\] tokens where 2 x 1 were asked"):
        writer(monkeypatch, tmp_path, Scripted(missing=1)).take(**TRIAL.to_json())


def test_sources_are_the_same_for_everybody_and_for_any_number_of_rows():
    one, three = (Trial(rows=rows, source=8, beams=1, target=2) for rows in (1, 3))
    assert one.sources(100) == three.sources(100)[:1]
    assert len({tuple(source) for source in three.sources(100)}) == 3
    assert max(max(source) for source in three.sources(5)) < 5


class Echo:
    """A tokenizer that tells what it was asked for."""

    vocab_size = 50
    end_tokens = (1,)

    def decode(self, tokens):
        return f"decoded {tokens}"

    def stream(self):
        return "a stream"


def test_sources_are_numbers_and_targets_have_their_text():
    tokenizer = NumbersAsText(Echo())
    assert tokenizer.encode("5 0 49") == [5, 0, 49]
    assert tokenizer.encode("") == []
    assert tokenizer.decode([5]) == "decoded [5]"
    assert tokenizer.stream() == "a stream"
    assert (tokenizer.vocab_size, tokenizer.end_tokens) == (50, (1,))


class Cache:
    def __init__(self, lengths):
        self.lengths = np.array(lengths)


class Quiet:
    """An encoder-decoder runtime that does nothing."""

    def encode(self, *source):
        return "cross"

    def new_cache(self, cross, rows, capacity=None):
        return Cache([0] * rows)

    def decode(self, tokens_rs, cache, positions=(-1,)):
        return np.zeros((len(tokens_rs), 1, 3), np.float32), Cache(cache.lengths + 1)

    def reorder(self, cache, sources):
        return Cache(cache.lengths[list(sources)])


def test_the_clock_tells_encode_prefill_step_and_reorder_apart():
    clock = Clock()
    timed = TimedRuntime(Quiet(), clock)
    cache = timed.new_cache(timed.encode(np.zeros((2, 5)), np.array([5, 5])), 2)
    _, cache = timed.decode(np.zeros((2, 1)), cache)
    cache = timed.reorder(cache, [0, 0, 1, 1])
    timed.decode(np.zeros((4, 1)), cache)
    assert clock.inputs == 2
    assert clock.decodes == [(2, 1, 0, 1), (4, 1, 1, 1)]
    parts = ("encode", "prefill", "step", "reorder", "loop")
    found = clock.answer(parts, 1.0)
    assert list(found["parts"]) == list(parts)
    assert all(seconds > 0 for seconds in found["parts"].values())
    assert sum(found["parts"].values()) == pytest.approx(1.0)
