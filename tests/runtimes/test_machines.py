"""Random calls of caches of each interface against recomputation without a cached position."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kit.dimensions import (
    DSA,
    GEMMA3,
    GEMMA4,
    KIMI,
    LFM2,
    QWEN3_5,
    ROFORMER,
    SMALL,
    SMALL_T5,
    YOUTU,
)
from kit.marks import slow, soak
from kit.models import (
    Source,
    Subject,
    encoded,
    input_at,
    opened,
    random_programs,
    speech,
    text,
    whole_logits,
)
from kit.rounding import assert_logits_equal
from kvcast.models.executor import TorchModel
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64
from verification.faults import Around, KeepsEarlierInput

EXAMPLES = [8, slow(20), soak(400)]
EXAMPLES_OF_INT8 = [4, slow(15), soak(300)]
SEEDS = st.integers(0, 1000)


class CacheMachine(RuleBasedStateMachine):
    """`histories[row]` is what each row should have seen.

    Attributes:
        vocabs: tokens of chunks and of steps; of few, rows often begin alike.
        longest: of a chunk.
        least: positions that a row is cut back to.

    """

    runtime: Any
    rows, capacity, longest, least = 3, 40, 9, 1
    vocabs = (160, 160)
    dimensions: Any

    def __init__(self) -> None:
        super().__init__()
        self.cache = self.new_cache()
        self.histories: list[list[int]] = [[] for _ in range(self.rows)]

    def new_cache(self) -> Any:
        return self.runtime.new_cache(self.rows, self.capacity)

    def expected(self, row: int) -> Float32:
        """Return the logits [vocab] of what a row has seen, computed without a cached position."""
        raise NotImplementedError

    def open_rows(self, room: int) -> list[int]:
        return [row for row in range(self.rows) if len(self.histories[row]) + room <= self.capacity]

    def follow(self, parents: Sequence[int]) -> None:
        self.histories = [list(self.histories[parent]) for parent in parents]

    @precondition(lambda self: self.open_rows(self.longest))
    @rule(data=st.data(), seed=SEEDS)
    def append(self, data: st.DataObject, seed: int) -> None:
        """Some rows take a chunk, each of another length."""
        rows = data.draw(st.sets(st.sampled_from(self.open_rows(self.longest)), min_size=1))
        generator = np.random.default_rng(seed)
        counts = [data.draw(st.integers(1, self.longest)) for _ in rows]
        self.check(sorted(rows), [generator.integers(0, self.vocabs[0], n) for n in counts])

    @precondition(lambda self: self.open_rows(1))
    @rule(seed=SEEDS)
    def step(self, seed: int) -> None:
        """All rows that have room take one token."""
        generator, rows = np.random.default_rng(seed), self.open_rows(1)
        self.check(rows, [generator.integers(0, self.vocabs[1], 1) for _ in rows])

    @precondition(lambda self: any(self.histories))
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        """Rows continue other rows, as beams do."""
        rows = st.integers(0, self.rows - 1)
        parents = data.draw(st.lists(rows, min_size=self.rows, max_size=self.rows))
        self.cache = self.runtime.reorder(self.cache, parents)
        self.follow(parents)

    @precondition(lambda self: any(self.histories))
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Rows go back as far as they can, and may be copied before they go on."""
        for row in data.draw(st.sets(st.integers(0, self.rows - 1), min_size=1)):
            held = len(self.histories[row])
            most = data.draw(st.integers(min(self.least_of(row), held), held))
            length = self.cache.reachable(row, most)
            if held and length >= self.least:
                self.cache = self.runtime.truncate(self.cache, [row], [length])
                del self.histories[row][length:]

    def least_of(self, row: int) -> int:
        return self.least

    @rule(rows=st.sets(st.integers(0, 2), min_size=1))
    def take_snapshots(self, rows: set[int]) -> None:
        """Rows can be cut back to what they hold."""
        self.cache = self.runtime.take_snapshots(self.cache, sorted(rows))
        for row in rows:
            held = len(self.histories[row])
            assert self.cache.reachable(row, held) == held

    @invariant()
    def lengths_are_what_was_seen(self) -> None:
        assert self.cache.lengths.tolist() == [len(history) for history in self.histories]

    def check(self, rows: list[int], tokens: list[Int64]) -> None:
        logits, self.cache = self.runtime.decode(tokens, self.cache, rows=rows)
        logits = logits[:, 0].copy()
        for row, new, logits_v in zip(rows, tokens, logits, strict=True):
            self.histories[row] += new.tolist()
            assert_logits_equal(logits_v, self.expected(row), self.dimensions)


class TextMachine(CacheMachine):
    """Rows without encoded inputs."""

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        """Another cache continues rows of this one."""
        rows = st.integers(0, self.rows - 1)
        parents = data.draw(st.lists(rows, min_size=self.rows, max_size=self.rows))
        self.cache = self.runtime.fork(self.cache, parents)
        self.follow(parents)

    @rule(rows=st.sets(st.integers(0, CacheMachine.rows - 1)))
    def reset(self, rows: set[int]) -> None:
        """Rows end, and their place is free."""
        self.cache = self.runtime.reset(self.cache, sorted(rows))
        for row in rows:
            self.histories[row] = []


class DecoderMachine(TextMachine):
    """Rings of 5 slots and linear layers, or states and convolutions."""

    reference: Any

    def __init__(self) -> None:
        super().__init__()
        self.kept = self.runtime.new_cache(1, self.capacity // 2)
        self.prefix: list[int] = []

    def expected(self, row: int) -> Float32:
        fresh = self.reference.new_cache(1, self.capacity)
        logits, _ = self.reference.decode([np.array(self.histories[row])], fresh)
        logits_v: Float32 = logits[0, 0]
        return logits_v

    @rule(new=st.integers(1, 7), seed=SEEDS)
    def compute_a_prefix(self, new: int, seed: int) -> None:
        """Another cache holds some tokens, of which no row knows yet."""
        tokens = np.random.default_rng(seed).integers(0, self.vocabs[0], new)
        self.kept = self.runtime.new_cache(1, self.capacity // 2)
        _, self.kept = self.runtime.decode([tokens], self.kept)
        self.prefix = tokens.tolist()

    @rule(rows=st.sets(st.integers(0, CacheMachine.rows - 1), min_size=1))
    def adopt(self, rows: set[int]) -> None:
        """Rows begin with the prefix, over what they held."""
        self.cache = self.runtime.adopt(self.cache, sorted(rows), self.kept, [0] * len(rows))
        for row in rows:
            self.histories[row] = list(self.prefix)

    @rule(row=st.integers(0, CacheMachine.rows - 1), kept=st.integers(1, 2), data=st.data())
    def append_on_trial(self, row: int, kept: int, data: st.DataObject) -> None:
        """A row takes tokens of which only the first stay, as drafts that are rejected."""
        held = len(self.histories[row])
        if held + kept > self.capacity:
            return
        room = self.cache.revocable(row, kept, 7)
        fed = np.array(data.draw(st.lists(st.integers(0, 9), min_size=kept, max_size=kept + room)))
        self.check([row], [fed])
        length = held + data.draw(st.integers(kept, len(fed)))
        self.cache = self.runtime.truncate(self.cache, [row], [length])
        del self.histories[row][length:]


class UnilmMachine(TextMachine):
    """The first `sources[row]` tokens of a row are its source."""

    programs: TorchModel
    capacity, longest, vocabs = 24, 4, (2, 2)

    def __init__(self) -> None:
        super().__init__()
        self.sources = [0] * self.rows

    def least_of(self, row: int) -> int:
        return self.sources[row]

    def follow(self, parents: Sequence[int]) -> None:
        super().follow(parents)
        self.sources = [self.sources[parent] for parent in parents]

    def check(self, rows: list[int], tokens: list[Int64]) -> None:
        for row, new in zip(rows, tokens, strict=True):
            self.sources[row] = self.sources[row] if self.histories[row] else len(new)
        super().check(rows, tokens)

    def expected(self, row: int) -> Float32:
        past = np.array(self.histories[row])
        source, target = np.split(past, [self.sources[row]])
        logits_v: Float32 = whole_logits(self.programs, source, target)[-1]
        return logits_v


class EncoderDecoderMachine(CacheMachine):
    """A row has seen its history of the input in slot `reads[row]`."""

    runtime: EncoderDecoder
    sources: list[Source]
    slots, rows, capacity, longest, least = 3, 4, 32, 4, 0
    vocabs = (300, 2)

    def __init__(self) -> None:
        super().__init__()
        self.filled: dict[int, Source] = {}
        self.reads: list[int | None] = [None] * self.rows

    def new_cache(self) -> Any:
        return self.runtime.new_cache(self.rows, self.capacity, inputs=self.slots)

    def open_rows(self, room: int) -> list[int]:
        return [row for row in super().open_rows(room) if self.reads[row] is not None]

    def follow(self, parents: Sequence[int]) -> None:
        super().follow(parents)
        self.reads = [self.reads[parent] for parent in parents]

    def expected(self, row: int) -> Float32:
        slot = self.reads[row]
        assert slot is not None
        fresh = encoded(self.runtime, self.filled[slot])
        logits, _ = self.runtime.decode([np.array(self.histories[row])], fresh)
        logits_v: Float32 = logits[0, 0].copy()
        return logits_v

    @property
    def free_slots(self) -> list[int]:
        return [slot for slot in range(self.slots) if slot not in self.reads]

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
        free = data.draw(st.permutations(self.free_slots))[: len(batch[0])]
        several = tuple(part[: len(free)] for part in batch)
        if len(several) == 2:  # no longer than the longest that is left
            several = several[0][:, : several[1].max()], several[1]
        self.cache = self.runtime.encode(self.cache, free, *several)
        self.filled |= {slot: input_at(several, i) for i, slot in enumerate(free)}

    @precondition(lambda self: self.filled)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        """Rows begin to read inputs, over what others left in their positions."""
        rows = sorted(data.draw(st.sets(st.integers(0, self.rows - 1), min_size=1)))
        slots = [data.draw(st.sampled_from(sorted(self.filled))) for _ in rows]
        self.cache = self.runtime.reset(self.cache, rows, slots)
        for row, slot in zip(rows, slots, strict=True):
            self.reads[row], self.histories[row] = slot, []

    @rule(rows=st.sets(st.integers(0, 3), min_size=1, max_size=2))
    def leave(self, rows: set[int]) -> None:
        """Rows end, and read nothing."""
        self.cache = self.runtime.reset(self.cache, sorted(rows))
        for row in rows:
            self.reads[row], self.histories[row] = None, []

    @precondition(lambda self: any(self.histories))
    @rule()
    def turn_round(self) -> None:
        """Rows change places and none leaves, which chance seldom picks among all reorders."""
        parents = list(reversed(range(self.rows)))
        self.cache = self.runtime.reorder(self.cache, parents)
        self.follow(parents)


def drive(machine: type[CacheMachine], examples: int, **attributes: Any) -> None:
    case = type("Machine", (machine,), attributes).TestCase
    case.settings = settings(
        max_examples=examples,
        stateful_step_count=16,
        deadline=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=[Phase.generate],  # shrinking a failure takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
    case("runTest").runTest()


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize(
    ("dimensions", "name"),
    [
        *((GEMMA3, runtime) for runtime in ("eager", "onnx", "native")),
        *((dimensions, "native") for dimensions in (LFM2, QWEN3_5, GEMMA4, YOUTU, DSA, KIMI)),
    ],
    ids=lambda part: getattr(part, "architecture", part),
)
def test_decoder_caches_follow_recomputation(dimensions, name, examples):
    runtime, eager = opened(dimensions, runtime=name), opened(dimensions, runtime="eager")
    drive(DecoderMachine, examples, dimensions=dimensions, runtime=runtime, reference=eager)


@pytest.mark.parametrize("examples", EXAMPLES_OF_INT8)
def test_int8_caches_of_a_decoder_follow_recomputation(examples):
    """On kvcast's own kernels chunks and neighbours round alike: a fresh cache is the reference."""
    runtime = opened(GEMMA3, runtime="native", cache="int8")
    drive(DecoderMachine, examples, dimensions=GEMMA3, runtime=runtime, reference=runtime)


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", ["eager", "onnx", "native"])
def test_unilm_caches_follow_recomputation(name, examples):
    runtime = opened(ROFORMER, runtime=name)
    programs = random_programs(ROFORMER)
    drive(UnilmMachine, examples, dimensions=ROFORMER, runtime=runtime, programs=programs)


def sources_of(source: Any) -> list[Source]:
    """Inputs that are encoded alone, and others in twos."""
    return [source(batch, seed) for seed in range(3) for batch in (1, 2)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_encoder_decoder_caches_follow_recomputation(subject: Subject, examples: int) -> None:
    has_states = subject.runtime.new_cache(1, 1, inputs=1).has_snapshots
    drive(
        EncoderDecoderMachine,
        examples,
        dimensions=subject.dimensions,
        runtime=subject.runtime,
        sources=sources_of(subject.source),
        least=int(has_states),  # only a reset makes a state zero
    )


@pytest.mark.parametrize("examples", EXAMPLES_OF_INT8)
@pytest.mark.parametrize(("dimensions", "source"), [(SMALL, speech), (SMALL_T5, text)])
def test_int8_caches_follow_recomputation(dimensions: Any, source: Any, examples: int) -> None:
    """On kvcast's own kernels a row does not round otherwise for its neighbours."""
    runtime = opened(dimensions, runtime="native", cache="int8")
    drive(
        EncoderDecoderMachine,
        examples,
        dimensions=dimensions,
        runtime=runtime,
        sources=sources_of(source),
    )


class Forgetful(Around):
    """Beams never move: lengths and inputs follow, and the positions stay where they are."""

    def reorder(self, cache: Any, parents: list[int]) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache.memory, "copy", lambda _: None)
            return self.inner.reorder(cache, parents)


@pytest.mark.parametrize("defect", [Forgetful, KeepsEarlierInput])
def test_the_machine_finds_a_runtime_with_a_defect(defect: type[Around]) -> None:
    runtime = defect(opened(SMALL, runtime="native"))
    sources = sources_of(speech)
    with pytest.raises(AssertionError):
        drive(EncoderDecoderMachine, 1000, dimensions=SMALL, runtime=runtime, sources=sources)
