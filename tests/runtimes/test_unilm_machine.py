"""Random sources, steps, resets, forks and reorders of UniLM caches against recomputation.

Tokens are few, so that rows often begin alike without being alike.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kit.dimensions import ROFORMER
from kit.models import opened, random_programs, whole_logits
from kvcast.models.executor import TorchModel
from kvcast.runtimes.base import Runtime
from runtimes.examples import EXAMPLES

CAPACITY, ROWS = 24, 3
TOKENS = st.integers(0, 1)
ORDERS = st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS)


class UnilmMachine(RuleBasedStateMachine):
    """`sources[row]` and `targets[row]` are what each row should have seen."""

    runtime: Runtime
    programs: TorchModel

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.runtime.new_cache(ROWS, CAPACITY)
        self.sources: list[list[int]] = [[] for _ in range(ROWS)]
        self.targets: list[list[int]] = [[] for _ in range(ROWS)]

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        """Empty rows take sources, others go on, each with a number of tokens of its own."""
        lengths = self.cache.lengths
        open_rows = [row for row in range(ROWS) if lengths[row] + 4 <= CAPACITY]
        if not open_rows:
            return
        rows = sorted(data.draw(st.sets(st.sampled_from(open_rows), min_size=1)))
        chunk = st.lists(TOKENS, min_size=1, max_size=4)
        self.check(rows, data.draw(st.lists(chunk, min_size=len(rows), max_size=len(rows))))

    @precondition(lambda self: any(self.cache.lengths < CAPACITY))
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """All rows that have room take one token."""
        rows = np.flatnonzero(self.cache.lengths < CAPACITY).tolist()
        self.check(rows, [[data.draw(TOKENS)] for _ in rows])

    @rule(order=ORDERS)
    def reorder(self, order: list[int]) -> None:
        """Rows continue other rows, as beams do."""
        self.cache = self.runtime.reorder(self.cache, order)
        self.follow(order)

    @rule(order=ORDERS)
    def fork(self, order: list[int]) -> None:
        """Another cache continues rows of this one."""
        self.cache = self.runtime.fork(self.cache, order)
        self.follow(order)

    @rule(rows=st.sets(st.integers(0, ROWS - 1)))
    def reset(self, rows: set[int]) -> None:
        """Rows end, and their place is free."""
        self.cache = self.runtime.reset(self.cache, sorted(rows))
        for row in rows:
            self.sources[row], self.targets[row] = [], []

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Rows lose the end of their targets."""
        for row in range(ROWS):
            kept = data.draw(st.integers(0, len(self.targets[row])))
            length = len(self.sources[row]) + kept
            self.cache = self.runtime.truncate(self.cache, [row], [length])
            del self.targets[row][kept:]

    def follow(self, order: list[int]) -> None:
        self.sources = [list(self.sources[row]) for row in order]
        self.targets = [list(self.targets[row]) for row in order]

    def check(self, rows: list[int], tokens: list[Any]) -> None:
        chunks = [np.array(chunk) for chunk in tokens]
        logits, self.cache = self.runtime.decode(chunks, self.cache, rows=rows)
        for row, chunk, row_logits in zip(rows, tokens, logits, strict=True):
            if self.sources[row]:
                self.targets[row] += chunk
            else:
                self.sources[row] = list(chunk)
            pasts = (np.array(past[row], np.int64) for past in (self.sources, self.targets))
            np.testing.assert_allclose(
                row_logits[0], whole_logits(self.programs, *pasts)[-1], atol=1e-4
            )


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["eager", "onnx", "native"])
def test_no_sequence_of_calls_leads_to_other_logits(name, examples):
    class Machine(UnilmMachine):
        runtime = opened(ROFORMER, runtime=name)
        programs = random_programs(ROFORMER)

    Machine.TestCase.settings = settings(
        max_examples=examples,
        stateful_step_count=15,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    Machine.TestCase("runTest").runTest()
