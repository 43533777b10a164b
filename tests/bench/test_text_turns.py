"""Turns of contenders that generate, with ones that only follow a script."""

from dataclasses import asdict

import numpy as np
import pytest

from kvcast.bench.text import contestant
from kvcast.bench.text.breakdown import TimedRuntime
from kvcast.bench.text.contestant import Generator
from kvcast.bench.text.peers.base import Task
from kvcast.bench.text.peers.ours import generate
from kvcast.bench.text.trials import Ticks, Trial
from kvcast.errors import KvcastError

TASK = Task(model="demo-chat", folder="nowhere", threads=1, vocab_size=50, window=4)
TRIAL = Trial(rows=2, prompt=5, steps=3)
VOCAB = 7


class Scripted:
    """Continues each prompt with its own tokens, in the order given; forgets some on demand."""

    modules = ("json",)

    def __init__(self, missing: int = 0, unticked: int = 0) -> None:
        self._missing, self._unticked = missing, unticked

    def load(self) -> None:
        pass

    def generate(self, prompts, new, tick):
        for _ in range(new - self._unticked):
            tick()
        return [prompt[: new - self._missing] for prompt in prompts]


def generator(monkeypatch: pytest.MonkeyPatch, **faults: int) -> Generator:
    monkeypatch.setattr(contestant, "CONTENDERS", {"scripted": lambda _: Scripted(**faults)})
    return Generator("scripted", asdict(TASK))


def test_a_turn_answers_with_times_tokens_and_memory(monkeypatch):
    answer = generator(monkeypatch).take(**TRIAL.to_json())
    assert answer["tokens"] == TRIAL.prompts(50)[0][:4]
    assert answer["peak_bytes"] > 1e6
    assert answer["first"] > 0
    assert answer["step"] > 0


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"missing": 1}, r"gave \[3, 3\] tokens where 2 x 4 were asked"),
        ({"unticked": 2}, "took 2 steps to 4 tokens"),
    ],
)
def test_who_does_less_than_was_asked_fails(faults, message, monkeypatch):
    with pytest.raises(KvcastError, match=message):
        generator(monkeypatch, **faults).take(**TRIAL.to_json())


def test_prompts_are_the_same_for_everybody_and_for_any_number_of_rows():
    one, three = Trial(rows=1, prompt=8, steps=1), Trial(rows=3, prompt=8, steps=1)
    assert one.prompts(100) == three.prompts(100)[:1]
    assert len({tuple(prompt) for prompt in three.prompts(100)}) == 3
    assert Trial(rows=1, prompt=4, steps=1).prompts(100)[0] == one.prompts(100)[0][:4]
    assert max(max(prompt) for prompt in three.prompts(5)) < 5


def test_the_first_token_the_mean_and_the_median_of_steps_come_from_ticks():
    figures = Ticks(began=1.0, times=[3.0, 4.0, 5.0, 9.0]).figures()
    assert figures == {"first": 2.0, "step": 2.0, "median_step": 1.0}


class Cache:
    def __init__(self, lengths):
        self.lengths = lengths
        self.capacity = 99


class Successor:
    """A runtime whose likeliest token is the last one's successor."""

    def new_cache(self, rows, capacity):
        return Cache(np.zeros(rows, np.int32))

    def decode(self, tokens, cache, rows=None, positions=(-1,)):
        taking = list(range(len(cache.lengths)) if rows is None else rows)
        lengths = cache.lengths.copy()
        lengths[taking] += [len(new) for new in tokens]
        logits = np.zeros((len(tokens), 1, VOCAB), np.float32)
        for row, new in enumerate(tokens):
            logits[row, 0, (new[-1] + 1) % VOCAB] = 5
        return logits, Cache(lengths)


class Silent:
    """A tokenizer to whom every token is an end token without a text."""

    vocab_size = VOCAB
    end_tokens = tuple(range(VOCAB))

    def stream(self):
        return self

    def push(self, token):
        return ""

    def finish(self):
        return ""


def test_kvcast_goes_on_past_end_tokens_and_ticks_once_a_step():
    ticks = []
    texts = generate(Successor(), Silent(), [[1, 2], [4, 5]], 4, lambda: ticks.append(None))
    assert texts == [[3, 4, 5, 6], [6, 0, 1, 2]]
    assert len(ticks) == 4


def test_the_breakdown_sees_prefill_and_steps():
    timed = TimedRuntime(Successor())
    generate(timed, Silent(), [[1, 2, 3], [4, 5, 6]], 3, lambda: None)
    assert timed.decodes == [("prefill", 2, 3, 0), ("step", 2, 1, 3), ("step", 2, 1, 4)]
    assert timed.seconds.keys() == {"prefill", "step"}
    assert all(seconds > 0 for seconds in timed.seconds.values())
