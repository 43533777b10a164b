"""Runtimes without a cache: they keep tokens, and recompute the logits of all of them.

Each checks that its caller follows the interface: dtypes, rows in order, capacity, no needless
copies, no slot filled while rows read it. Logits come from a model of transformers, from a random
function of the tokens, or from a script. Also requests for schedulers over them.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from functools import cache as cached
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from kvcast.engine.callers import Policy, RequestList
from kvcast.engine.requests import Request
from kvcast.engine.scheduler import Scheduler
from kvcast.runtimes.base import Alignment, Float32, Int32, Int64, TokenProbabilityQuery
from kvcast.whisper.requests import Features

Written = tuple[int, ...]
Model = Callable[[Written], NDArray[np.float32]]
"""All tokens of a row to logits [S, vocab]."""


@dataclass(frozen=True)
class Recomputed:
    """The tokens of rows; `reads` is the slot of each row's encoded input."""

    written: tuple[Written, ...]
    capacity: int
    inputs: tuple[Any, ...] = ()
    reads: tuple[int | None, ...] = ()

    @property
    def lengths(self) -> Int32:
        return np.array([len(row) for row in self.written], np.int32)

    @property
    def has_snapshots(self) -> bool:
        return False

    def reachable(self, row: int, most: int) -> int:
        return min(most, len(self.written[row]))

    def revocable(self, row: int, kept: int, most: int) -> int:
        return max(0, min(most, self.capacity - len(self.written[row]) - kept))


@dataclass
class RecomputingRuntime:
    """`calls` lists each decode's new tokens by row; `cuts` the lengths after each truncate."""

    prompts_differ: ClassVar[bool] = False

    model: Model
    calls: list[dict[int, list[int]]] = field(default_factory=list)
    resets: list[list[int]] = field(default_factory=list)
    forks: list[list[int]] = field(default_factory=list)
    adopted: list[list[int]] = field(default_factory=list)
    reorders: list[list[int]] = field(default_factory=list)
    caches: list[tuple[int, int]] = field(default_factory=list)
    cuts: list[tuple[int, int]] = field(default_factory=list)

    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> Recomputed:
        assert rows >= 1
        assert capacity >= 1
        self.caches.append((rows, capacity))
        return Recomputed(((),) * rows, capacity, (None,) * inputs, (None,) * rows)

    def row_bytes(self, capacity: int) -> int:
        return capacity

    def prefill(
        self,
        tokens: Sequence[Int64],
        cache: Recomputed,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Recomputed]:
        return self.decode(tokens, cache, rows, positions)

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: Recomputed,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Recomputed]:
        rows = list(range(len(cache.written)) if rows is None else rows)
        assert rows == sorted(set(rows))
        assert len(tokens) == len(rows) > 0
        written = list(cache.written)
        logits = []
        for row, new in zip(rows, tokens, strict=True):
            assert new.dtype == np.int64
            assert new.ndim == 1
            assert len(new) >= 1
            assert all(-len(new) <= position < len(new) for position in positions)
            written[row] += tuple(new.tolist())
            assert len(written[row]) <= cache.capacity
            logits.append(self.logits(cache, row, written[row], len(new), positions))
        self.calls.append({r: new.tolist() for r, new in zip(rows, tokens, strict=True)})
        return np.array(logits, np.float32), replace(cache, written=tuple(written))

    def logits(
        self, cache: Recomputed, row: int, written: Written, new: int, positions: Sequence[int]
    ) -> NDArray[np.float32]:
        """[positions, vocab] of a row's last `new` tokens."""
        assert not cache.inputs
        return self.model(written)[-new:][list(positions)]

    def take_snapshots(self, cache: Recomputed, rows: Sequence[int]) -> Recomputed:
        return cache

    def truncate(
        self, cache: Recomputed, rows: Sequence[int], lengths: Sequence[int]
    ) -> Recomputed:
        written = list(cache.written)
        for row, length in zip(rows, lengths, strict=True):
            assert 0 <= length < len(written[row]), "nothing to take off"
            written[row] = written[row][:length]
            self.cuts.append((row, length))
        return replace(cache, written=tuple(written))

    def reorder(self, cache: Recomputed, parents: Sequence[int]) -> Recomputed:
        assert len(parents) == len(cache.written)
        assert list(parents) != list(range(len(parents))), "nothing to reorder"
        self.reorders.append(list(parents))
        return replace(
            cache,
            written=tuple(cache.written[parent] for parent in parents),
            reads=tuple(cache.reads[parent] for parent in parents),
        )

    def fork(
        self, cache: Recomputed, parents: Sequence[int], capacity: int | None = None
    ) -> Recomputed:
        self.forks.append(list(parents))
        forked = self.new_cache(len(parents), capacity or cache.capacity)
        return self._adopted(forked, range(len(parents)), cache, parents)

    def adopt(
        self, cache: Recomputed, rows: Sequence[int], other: Recomputed, parents: Sequence[int]
    ) -> Recomputed:
        self.adopted.append(list(rows))
        return self._adopted(cache, rows, other, parents)

    def _adopted(
        self, cache: Recomputed, rows: Sequence[int], other: Recomputed, parents: Sequence[int]
    ) -> Recomputed:
        written = list(cache.written)
        for row, parent in zip(rows, parents, strict=True):
            assert not written[row], "the row is taken"
            written[row] = other.written[parent]
            assert len(written[row]) <= cache.capacity
        return replace(cache, written=tuple(written))

    def reset(
        self, cache: Recomputed, rows: Sequence[int], inputs: Sequence[int] | None = None
    ) -> Recomputed:
        written, reads = list(cache.written), list(cache.reads)
        for i, row in enumerate(rows):
            holds = written[row] or cache.reads[row] is not None
            assert inputs is not None or holds, "nothing to reset"
            written[row], reads[row] = (), None if inputs is None else inputs[i]
        if inputs is None:
            self.resets.append(list(rows))
        return replace(cache, written=tuple(written), reads=tuple(reads))


class RuntimeOfApartPrompts(RecomputingRuntime):
    """Computes prefill differently from decode steps: the tokens of steps are changed."""

    prompts_differ: ClassVar[bool] = True
    STEPPED: ClassVar[int] = 10_000

    def prefill(
        self,
        tokens: Sequence[Int64],
        cache: Recomputed,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Recomputed]:
        return super().decode(tokens, cache, rows, positions)

    def decode(
        self,
        tokens: Sequence[Int64],
        cache: Recomputed,
        rows: Sequence[int] | None = None,
        positions: Sequence[int] = (-1,),
    ) -> tuple[Float32, Recomputed]:
        return super().decode([new + self.STEPPED for new in tokens], cache, rows, positions)


def random_model(vocab: int, seed: int, scale: float = 2.0) -> Model:
    """Logits [S, vocab] from a normal distribution, fixed by the tokens up to each position."""

    @cached
    def last(written: Written) -> NDArray[np.float32]:
        rng = np.random.default_rng((seed, *written))
        return rng.normal(0, scale, vocab).astype(np.float32)

    return lambda written: np.stack([last(written[: i + 1]) for i in range(len(written))])


def spelling(continuation: dict[Written, str], vocab: int, first_letter: int, end: int) -> Model:
    """After a prompt that is listed comes its text, letter by letter, then the end."""

    def logits(written: Written) -> NDArray[np.float32]:
        logits_sv = np.zeros((len(written), vocab), np.float32)
        for prompt, text in continuation.items():
            done = len(written) - len(prompt)
            if written[: len(prompt)] == prompt and done >= 0:
                letters = [first_letter + ord(letter) - ord("a") for letter in text]
                logits_sv[-1, [*letters, end][min(done, len(letters))]] = 10
        return logits_sv

    return logits


@cached
def tiny_llama(seed: int = 0, vocab: int = 61) -> LlamaForCausalLM:
    """Random weights, large enough that one token is often much likelier than another."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval()


@cached
def in_transformers(model: LlamaForCausalLM) -> Model:
    """Caches its results: searches pass the same prefixes again and again."""

    @cached
    @torch.inference_mode()
    def logits(written: Written) -> NDArray[np.float32]:
        return model(torch.tensor([written])).logits[0].numpy()

    return logits


Script = Callable[[int, tuple[int, ...]], NDArray[np.float32]]
"""Input's number and all its tokens so far, prompt included, to logits [vocab]."""


class ScriptedRuntime(RecomputingRuntime):
    """`encoded` lists each encode's inputs by slot; `aligned` inputs and tokens."""

    def __init__(self, script: Script, context: int = 448) -> None:
        super().__init__(lambda _: np.empty((0, 0), np.float32))
        self.script = script
        self.context = context
        self.encoded: list[list[int]] = []
        self.aligned: list[tuple[int, Written]] = []

    def new_cache(self, rows: int, capacity: int, inputs: int = 0) -> Recomputed:
        assert capacity <= self.context
        assert inputs >= 1
        return super().new_cache(rows, capacity, inputs)

    def encode(self, cache: Recomputed, slots: Sequence[int], *source: NDArray[Any]) -> Recomputed:
        encoded = self.numbers(*source)
        assert len(slots) == len(set(slots)) == len(encoded)
        assert not set(slots) & set(cache.reads), "a row reads the input"
        inputs = list(cache.inputs)
        for slot, number in zip(slots, encoded, strict=True):
            inputs[slot] = number
        self.encoded.append(encoded)
        return replace(cache, inputs=tuple(inputs))

    def numbers(self, *source: NDArray[Any]) -> list[int]:
        """The first value of an input identifies it."""
        (features_bmt,) = source
        return [int(features_mt.flat[0]) for features_mt in features_bmt]

    def align(
        self, tokens_s: NDArray[np.int64], cache: Recomputed, row: int, asked: TokenProbabilityQuery
    ) -> Alignment:
        """The only head's scores of a token are the input's number and the token."""
        assert not cache.written[row]
        written = tuple(tokens_s.tolist())
        logits_pv = self.logits(cache, row, written, len(written), asked.positions)
        number = cache.inputs[cache.reads[row] or 0]
        self.aligned.append((number, written))
        scores_hst = np.array([[(number, token) for token in written]], np.float32)
        weights_pv = np.exp(logits_pv + asked.among_v)
        chosen_p = weights_pv[range(len(weights_pv)), asked.tokens_p]
        return Alignment(scores_hst, chosen_p / weights_pv.sum(axis=1))

    def attention_by_token(
        self, scores_hst: NDArray[np.float32], frames: int
    ) -> NDArray[np.float32]:
        """Raw scores of the only head, so that tokens can be distinguished."""
        return scores_hst[0, :, :frames]

    def dtw(self, weights_nt: NDArray[np.float32]) -> NDArray[np.int64]:
        """Each row begins at a different frame."""
        return np.arange(len(weights_nt))

    def logits(
        self, cache: Recomputed, row: int, written: Written, new: int, positions: Sequence[int]
    ) -> NDArray[np.float32]:
        slot = cache.reads[row]
        assert slot is not None, "the row reads no input"
        number = cache.inputs[slot]
        assert number is not None, "the input was not encoded"
        ends = [len(written) - new + position % new + 1 for position in positions]
        return np.stack([self.script(number, written[:end]) for end in ends])


def windows(*inputs: int) -> list[Features]:
    """Windows that `encode` turns into these inputs."""
    return [Features(np.full((1, 1), number, np.float32)) for number in inputs]


def random_script(vocab: int, seed: int, bias: Callable[[int], dict[int, float]]) -> Script:
    """Normally distributed logits, with a `bias` on some tokens at each length."""

    @cache
    def logits(number: int, written: tuple[int, ...]) -> NDArray[np.float32]:
        logits_v = np.random.default_rng((seed, number, *written)).normal(0, 2, vocab)
        for token, more in bias(len(written)).items():
            logits_v[token] += more
        return logits_v.astype(np.float32)

    return logits


class ScriptedSources(ScriptedRuntime):
    """`sources` lists, for each encode, the tokens of its sources."""

    def __init__(self, script: Script, context: int = 448) -> None:
        super().__init__(script, context)
        self.sources: list[list[tuple[int, ...]]] = []

    def numbers(self, *source: NDArray[Any]) -> list[int]:
        tokens_bt, lengths_b = source
        assert (tokens_bt.dtype, lengths_b.dtype) == (np.int64, np.int32)
        assert lengths_b.max() == tokens_bt.shape[1]
        sources = [
            tuple(tokens_t[:length].tolist())
            for tokens_t, length in zip(tokens_bt, lengths_b, strict=True)
        ]
        self.sources.append(sources)
        return list(map(number_of, sources))


def number_of(source: tuple[int, ...]) -> int:
    """The number by which a script identifies a source."""
    return zlib.crc32(repr(source).encode())


def added(scheduler: Scheduler, *requests: Request) -> RequestList:
    """Run these requests for a new caller."""
    caller = RequestList(requests)
    scheduler.add(caller)
    return caller


def drain(scheduler: Scheduler) -> None:
    """Run everything to its end."""
    while not scheduler.idle:
        scheduler.step()


def at_once(result: Any) -> Policy[Any]:
    """Return a policy that has its result without any request."""
    return result
    yield None


def result_of(policy: Policy[Any]) -> Any:
    """Return the result of a policy that makes no request."""
    try:
        while True:
            assert next(policy) is None
    except StopIteration as end:
        return end.value
