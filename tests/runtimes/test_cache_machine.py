"""Random admits, steps, resets and reorders of a cache against plain full recomputation."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from kvcast.runtimes.base import EncoderDecoder
from random_models import Subject

INPUTS, VOCAB, CAPACITY, MOST_ROWS = 2, 300, 32, 3


class CacheMachine(RuleBasedStateMachine):
    """`histories[input][row]` is what each row of each input should have seen."""

    runtime: EncoderDecoder
    source: tuple[NDArray[Any], ...]

    def __init__(self) -> None:
        super().__init__()
        self.cross = self.runtime.encode(*self.source)
        self.singles = [
            self.runtime.encode(*(part[i : i + 1] for part in self.source)) for i in range(INPUTS)
        ]
        self.cache = self.runtime.new_cache(self.cross, INPUTS)
        self.histories: list[list[list[int]]] = [[[]] for _ in range(INPUTS)]
        self.logits: Any = None

    @property
    def rows_each(self) -> int:
        return len(self.histories[0])

    @property
    def longest(self) -> int:
        return max(len(history) for rows in self.histories for history in rows)

    @precondition(lambda self: self.longest + 4 <= CAPACITY)
    @rule(new=st.integers(1, 4), seed=st.integers(0, 1000))
    def step(self, new: int, seed: int) -> None:
        rows = INPUTS * self.rows_each
        tokens_rs = np.random.default_rng(seed).integers(0, VOCAB, (rows, new))
        self.logits, self.cache = self.runtime.decode(tokens_rs, self.cache)
        for row, tokens_s in enumerate(tokens_rs.tolist()):
            self.histories[row // self.rows_each][row % self.rows_each] += tokens_s

    @rule(data=st.data(), rows=st.integers(1, MOST_ROWS))
    def reorder(self, data: st.DataObject, rows: int) -> None:
        """Rows leave, are admitted as copies of others, or change places."""
        picks = st.lists(st.integers(0, self.rows_each - 1), min_size=rows, max_size=rows)
        chosen = [data.draw(picks) for _ in range(INPUTS)]
        sources = [i * self.rows_each + row for i, picked in enumerate(chosen) for row in picked]
        self.cache = self.runtime.reorder(self.cache, sources)
        self.histories = [
            [list(self.histories[i][row]) for row in picked] for i, picked in enumerate(chosen)
        ]
        self.logits = None

    @precondition(lambda self: self.rows_each > 1 and self.longest > 0)
    @rule()
    def turn_round(self) -> None:
        """Beams change places and none leaves; what chance seldom picks among all reorders."""
        each = self.rows_each
        sources = [i * each + row for i in range(INPUTS) for row in reversed(range(each))]
        self.cache = self.runtime.reorder(self.cache, sources)
        self.histories = [rows[::-1] for rows in self.histories]
        self.logits = None

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        """A row starts anew over what others left in its slots."""
        rows = st.integers(0, INPUTS * self.rows_each - 1)
        emptied = data.draw(st.lists(rows, unique=True))
        self.cache = self.runtime.reset(self.cache, emptied)
        for row in emptied:
            self.histories[row // self.rows_each][row % self.rows_each] = []
        self.logits = None

    @invariant()
    def lengths_are_what_was_seen(self) -> None:
        seen = [len(history) for rows in self.histories for history in rows]
        assert self.cache.lengths.tolist() == seen

    @invariant()
    def logits_equal_recomputation(self) -> None:
        if self.logits is None:
            return
        for i, rows in enumerate(self.histories):
            for j, history in enumerate(rows):
                fresh = self.runtime.new_cache(self.singles[i], 1)
                expected, _ = self.runtime.decode(np.array([history]), fresh)
                seen = self.logits[i * len(rows) + j]
                np.testing.assert_allclose(seen, expected[0], atol=1e-3)


def _drive(runtime: object, source: tuple[NDArray[Any], ...], examples: int) -> None:
    case = type("Machine", (CacheMachine,), {"runtime": runtime, "source": source}).TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # shrinking a failure takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


@pytest.mark.parametrize("examples", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_cache_follows_recomputation(subject: Subject, examples: int) -> None:
    _drive(subject.runtime, subject.source(INPUTS, 0), examples)


class Forgetful:
    """A runtime with the defect that beams never move."""

    def __init__(self, runtime: EncoderDecoder) -> None:
        self.runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def reorder(self, cache: Any, sources: list[int]) -> Any:
        if len(sources) != len(cache.lengths):
            return self.runtime.reorder(cache, sources)
        return cache


def test_the_machine_finds_a_runtime_that_forgets_to_reorder(
    subject: Subject,
) -> None:
    with pytest.raises(AssertionError):
        _drive(Forgetful(subject.runtime), subject.source(INPUTS, 0), examples=300)
