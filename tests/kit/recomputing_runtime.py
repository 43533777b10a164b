"""A runtime without a cache: it keeps tokens, and computes all of them again.

It holds its caller to the interface: dtypes, rows in order, capacity, nothing moved without need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as cached
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from kvcast.runtimes.base import Float32, Int32, Int64

Written = tuple[int, ...]
Model = Callable[[Written], NDArray[np.float32]]
"""All tokens of a row to logits [S, vocab]."""


@dataclass(frozen=True)
class Recomputed:
    """What rows hold; `reads` says which slot for an encoded input each row reads."""

    written: tuple[Written, ...]
    capacity: int
    inputs: tuple[Any, ...] = ()
    reads: tuple[int | None, ...] = ()

    @property
    def lengths(self) -> Int32:
        return np.array([len(row) for row in self.written], np.int32)

    def shortest(self, row: int) -> int:
        return 0

    def revocable(self, row: int, kept: int, most: int) -> int:
        return max(0, min(most, self.capacity - len(self.written[row]) - kept))


@dataclass
class RecomputingRuntime:
    """`calls` lists, for each decode, the tokens that each row fed; `cuts` what truncate left."""

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
    """What it has once computed it remembers: searches pass the same prefixes again and again."""

    @cached
    @torch.inference_mode()
    def logits(written: Written) -> NDArray[np.float32]:
        return model(torch.tensor([written])).logits[0].numpy()

    return logits
