"""Random admits, steps, resets, forks and reorders of decoder-only caches against recomputation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kit.dimensions import GEMMA3, GEMMA4, LFM2, QWEN3_5
from kit.models import opened
from kvcast.runtimes.base import Runtime
from runtimes.examples import EXAMPLES, EXAMPLES_OF_INT8

VOCAB, CAPACITY, ROWS = 160, 40, 3


class DecoderMachine(RuleBasedStateMachine):
    """`histories[row]` is what each row should have seen. Rings of 5 slots and linear layers."""

    runtime: Runtime
    reference: Runtime

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.runtime.new_cache(ROWS, CAPACITY)
        self.histories: list[list[int]] = [[] for _ in range(ROWS)]
        self.kept = self.runtime.new_cache(1, CAPACITY // 2)
        self.prefix: list[int] = []

    @rule(data=st.data(), seed=st.integers(0, 1000))
    def append(self, data: st.DataObject, seed: int) -> None:
        """Some rows take a chunk of a length of their own."""
        open_rows = [row for row in range(ROWS) if len(self.histories[row]) + 9 <= CAPACITY]
        if not open_rows:
            return
        rows = sorted(data.draw(st.sets(st.sampled_from(open_rows), min_size=1)))
        counts = data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
        generator = np.random.default_rng(seed)
        self.check(rows, [generator.integers(0, VOCAB, count) for count in counts])

    @precondition(lambda self: any(len(history) < CAPACITY for history in self.histories))
    @rule(seed=st.integers(0, 1000))
    def step(self, seed: int) -> None:
        """All rows that have room take one token."""
        rows = [row for row in range(ROWS) if len(self.histories[row]) < CAPACITY]
        generator = np.random.default_rng(seed)
        self.check(rows, [generator.integers(0, VOCAB, 1) for _ in rows])

    @rule(parents=st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS))
    def reorder(self, parents: list[int]) -> None:
        """Rows continue other rows, as beams do."""
        self.cache = self.runtime.reorder(self.cache, parents)
        self.histories = [list(self.histories[parent]) for parent in parents]

    @rule(parents=st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS))
    def fork(self, parents: list[int]) -> None:
        """Another cache continues rows of this one."""
        self.cache = self.runtime.fork(self.cache, parents)
        self.histories = [list(self.histories[parent]) for parent in parents]

    @rule(new=st.integers(1, 7), seed=st.integers(0, 1000))
    def compute_a_prefix(self, new: int, seed: int) -> None:
        """A cache of its own holds some tokens, of which no row knows yet."""
        tokens = np.random.default_rng(seed).integers(0, VOCAB, new)
        self.kept = self.runtime.new_cache(1, CAPACITY // 2)
        _, self.kept = self.runtime.decode([tokens], self.kept)
        self.prefix = tokens.tolist()

    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def adopt(self, rows: set[int]) -> None:
        """Rows begin with the prefix, over what they held."""
        self.cache = self.runtime.adopt(self.cache, sorted(rows), self.kept, [0] * len(rows))
        for row in rows:
            self.histories[row] = list(self.prefix)

    @rule(rows=st.sets(st.integers(0, ROWS - 1)))
    def reset(self, rows: set[int]) -> None:
        """Rows end, and their place is free."""
        self.cache = self.runtime.reset(self.cache, sorted(rows))
        for row in rows:
            self.histories[row] = []

    @rule(row=st.integers(0, ROWS - 1), kept=st.integers(1, 2), data=st.data())
    def append_on_trial(self, row: int, kept: int, data: st.DataObject) -> None:
        """A row takes tokens of which only the first stay, as drafts that are rejected."""
        if len(self.histories[row]) + kept > CAPACITY:
            return
        room = self.cache.revocable(row, kept, 7)
        fed = np.array(data.draw(st.lists(st.integers(0, 9), min_size=kept, max_size=kept + room)))
        held = len(self.histories[row])
        self.check([row], [fed])
        length = held + data.draw(st.integers(kept, len(fed)))
        self.cache = self.runtime.truncate(self.cache, [row], [length])
        del self.histories[row][length:]

    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1))
    def take_snapshots(self, rows: set[int]) -> None:
        """Rows can be cut back to what they hold."""
        self.cache = self.runtime.take_snapshots(self.cache, sorted(rows))
        for row in rows:
            held = len(self.histories[row])
            assert self.cache.reachable(row, held) == held

    @rule(row=st.integers(0, ROWS - 1), most=st.integers(0, CAPACITY))
    def cut(self, row: int, most: int) -> None:
        """A row goes back as far as it can, and may be copied before it goes on."""
        length = self.cache.reachable(row, min(most, len(self.histories[row])))
        if length:
            self.cache = self.runtime.truncate(self.cache, [row], [length])
            del self.histories[row][length:]

    def check(self, rows: list[int], tokens: list[Any]) -> None:
        logits, self.cache = self.runtime.decode(tokens, self.cache, rows=rows)
        for row, new in zip(rows, tokens, strict=True):
            self.histories[row] += new.tolist()
        assert self.cache.lengths.tolist() == [len(history) for history in self.histories]
        for row, row_logits in zip(rows, logits, strict=True):
            fresh = self.reference.new_cache(1, CAPACITY)
            whole, _ = self.reference.decode([np.array(self.histories[row])], fresh)
            np.testing.assert_allclose(row_logits, whole[0], atol=1e-4)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(
    ("dimensions", "name"),
    [
        (GEMMA3, "eager"),
        (GEMMA3, "onnx"),
        (GEMMA3, "native"),
        (LFM2, "native"),
        (QWEN3_5, "native"),
        (GEMMA4, "native"),
    ],
    ids=lambda part: getattr(part, "architecture", part),
)
def test_no_sequence_of_calls_leads_to_other_logits(dimensions, name, examples):
    drive(opened(dimensions, runtime=name), opened(dimensions, runtime="eager"), examples)


@pytest.mark.parametrize("examples", EXAMPLES_OF_INT8)
def test_int8_caches_hold_what_they_were_given(examples):
    """On kvcast's own kernels chunks and neighbours round alike: a fresh cache is the reference."""
    runtime = opened(GEMMA3, runtime="native", cache="int8")
    drive(runtime, runtime, examples)


def drive(subject, expected, examples):
    class Machine(DecoderMachine):
        runtime = subject
        reference = expected

    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    Machine.TestCase("runTest").runTest()
