"""Random inputs, admits, steps, resets and reorders of a cache against plain full recomputation."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.dimensions import SMALL, SMALL_T5
from kit.models import VOCAB, Source, Subject, encoded, input_at, opened, speech, text
from kvcast.runtimes.base import EncoderDecoder
from runtimes.examples import EXAMPLES, EXAMPLES_OF_INT8

SLOTS, CAPACITY, ROWS = 3, 32, 4
BATCHES = (1, 2)  # inputs that are encoded together


class CacheMachine(RuleBasedStateMachine):
    """`histories[row]` is what each row should have seen of the input in slot `reads[row]`."""

    runtime: EncoderDecoder
    sources: list[Source]

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.runtime.new_cache(ROWS, CAPACITY, inputs=SLOTS)
        self.filled: dict[int, Source] = {}
        self.reads: list[int | None] = [None] * ROWS
        self.histories: list[list[int]] = [[] for _ in range(ROWS)]

    @property
    def free_slots(self) -> list[int]:
        return [slot for slot in range(SLOTS) if slot not in self.reads]

    @property
    def reading(self) -> list[int]:
        return [row for row, slot in enumerate(self.reads) if slot is not None]

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Left to chance, most runs would have no input that a row could read."""
        self.encode(data)
        self.admit(data)

    @precondition(lambda self: self.free_slots)
    @rule(data=st.data())
    def encode(self, data: st.DataObject) -> None:
        """Inputs come to slots that no row reads, one alone or several together."""
        batch = data.draw(st.sampled_from(self.sources))
        count = len(batch[0])
        free = data.draw(st.permutations(self.free_slots))[:count]
        several = tuple(part[: len(free)] for part in batch)
        if len(several) == 2:  # no longer than the longest that is left
            several = several[0][:, : several[1].max()], several[1]
        self.cache = self.runtime.encode(self.cache, free, *several)
        self.filled |= {slot: input_at(several, i) for i, slot in enumerate(free)}

    @precondition(lambda self: self.filled)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Rows begin to read inputs, over what others left in their positions."""
        rows = sorted(data.draw(st.sets(st.integers(0, ROWS - 1), min_size=1)))
        slots = [data.draw(st.sampled_from(sorted(self.filled))) for _ in rows]
        self.cache = self.runtime.reset(self.cache, rows, slots)
        for row, slot in zip(rows, slots, strict=True):
            self.reads[row], self.histories[row] = slot, []

    @precondition(lambda self: self.reading)
    @rule(rows=st.sets(st.integers(0, ROWS - 1), min_size=1, max_size=2))
    def leave(self, rows: set[int]) -> None:
        """Rows end, and read nothing."""
        self.cache = self.runtime.reset(self.cache, sorted(rows))
        for row in rows:
            self.reads[row], self.histories[row] = None, []

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), seed=st.integers(0, 1000))
    def append(self, data: st.DataObject, seed: int) -> None:
        """Some rows take a chunk of a length of their own."""
        rows = sorted(data.draw(st.sets(st.sampled_from(self.reading), min_size=1)))
        generator = np.random.default_rng(seed)
        self.check(rows, [generator.integers(0, VOCAB, data.draw(st.integers(1, 4))) for _ in rows])

    @precondition(lambda self: self.reading)
    @rule(seed=st.integers(0, 1000))
    def step(self, seed: int) -> None:
        """All rows take one token, few of them different, so that rows often begin alike."""
        generator = np.random.default_rng(seed)
        self.check(self.reading, [generator.integers(0, 2, 1) for _ in self.reading])

    @precondition(lambda self: any(self.histories))
    @rule(parents=st.lists(st.integers(0, ROWS - 1), min_size=ROWS, max_size=ROWS))
    def reorder(self, parents: list[int]) -> None:
        """Rows continue others, of their own input or of another one."""
        self.follow(parents)

    @precondition(lambda self: any(self.histories))
    @rule()
    def turn_round(self) -> None:
        """Rows change places and none leaves; what chance seldom picks among all reorders."""
        self.follow(list(reversed(range(ROWS))))

    @precondition(lambda self: self.reading)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Rows lose the end of what they hold, or all of it, and read on."""
        rows = sorted(data.draw(st.sets(st.sampled_from(self.reading), min_size=1)))
        lengths = [data.draw(st.integers(0, len(self.histories[row]))) for row in rows]
        self.cache = self.runtime.truncate(self.cache, rows, lengths)
        for row, length in zip(rows, lengths, strict=True):
            del self.histories[row][length:]

    def follow(self, parents: list[int]) -> None:
        self.cache = self.runtime.reorder(self.cache, parents)
        self.reads = [self.reads[parent] for parent in parents]
        self.histories = [list(self.histories[parent]) for parent in parents]

    def check(self, rows: list[int], tokens: list[Any]) -> None:
        if max(len(self.histories[row]) for row in rows) + 4 > CAPACITY:
            return
        logits, self.cache = self.runtime.decode(tokens, self.cache, rows)
        kept = logits.copy()
        for row, new, seen in zip(rows, tokens, kept, strict=True):
            self.histories[row] += new.tolist()
            slot = self.reads[row]
            assert slot is not None
            fresh = encoded(self.runtime, self.filled[slot])
            expected, _ = self.runtime.decode([np.array(self.histories[row])], fresh)
            np.testing.assert_allclose(seen, expected[0], atol=1e-3)

    @invariant()
    def lengths_are_what_was_seen(self) -> None:
        assert self.cache.lengths.tolist() == [len(history) for history in self.histories]


def _drive(runtime: object, sources: list[Source], examples: int) -> None:
    case = type("Machine", (CacheMachine,), {"runtime": runtime, "sources": sources}).TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=16,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # shrinking a failure takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
    case().runTest()


def _sources(subject: Subject) -> list[Source]:
    return [subject.source(batch, seed) for seed in range(3) for batch in BATCHES]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_cache_follows_recomputation(subject: Subject, examples: int) -> None:
    _drive(subject.runtime, _sources(subject), examples)


@pytest.mark.parametrize("examples", EXAMPLES_OF_INT8)
@pytest.mark.parametrize("dimensions", [SMALL, SMALL_T5], ids=["whisper", "t5"])
def test_int8_caches_follow_recomputation_as_well(dimensions: Any, examples: int) -> None:
    """On kvcast's own kernels a row does not round otherwise for its neighbours."""
    source = {SMALL: speech, SMALL_T5: text}[dimensions]
    runtime = opened(dimensions, runtime="native", cache="int8")
    _drive(runtime, [source(batch, seed) for seed in range(3) for batch in BATCHES], examples)


class Defective:
    """A runtime with a defect in one method."""

    def __init__(self, runtime: EncoderDecoder) -> None:
        self.runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)


class Forgetful(Defective):
    """Beams never move: lengths and inputs follow, what was written stays where it is."""

    def reorder(self, cache: Any, parents: list[int]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache.memory, "copy", lambda _: None)
            return self.runtime.reorder(cache, parents)


class Stubborn(Defective):
    """What was encoded into a slot first stays there, whatever comes."""

    def __init__(self, runtime: EncoderDecoder) -> None:
        super().__init__(runtime)
        self.filled: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()

    def encode(self, cache: Any, slots: list[int], *source: Any) -> Any:
        filled = self.filled.setdefault(cache.memory, set())
        if filled.issuperset(slots):
            return cache
        filled.update(slots)
        return self.runtime.encode(cache, slots, *source)


@pytest.mark.parametrize("defect", [Forgetful, Stubborn])
def test_the_machine_finds_a_runtime_with_a_defect(
    subject: Subject, defect: type[Defective]
) -> None:
    with pytest.raises(AssertionError):
        _drive(defect(subject.runtime), _sources(subject), examples=1000)
