"""Encoder-decoder models driven as a scheduler drives them: rows read inputs in slots."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import EncoderDecoder, Float32, Int64

VOCAB = 300

Source = tuple[NDArray[Any], ...]


def random_tokens(rows: int, new: int, seed: int) -> Int64:
    """Tokens [rows, new]."""
    return np.random.default_rng(seed).integers(0, VOCAB, (rows, new))


def one_of(source: Source, index: int) -> Source:
    """One input of several, as long as the longest."""
    return tuple(part[index : index + 1] for part in source)


def encoded(
    runtime: EncoderDecoder, source: Source, rows: int | None = None, capacity: int = 32
) -> Any:
    """A cache whose row r reads input r // (rows // inputs); a row for each unless told."""
    count = len(source[0])
    rows = rows or count
    cache = runtime.new_cache(rows, capacity, inputs=count)
    cache = runtime.encode(cache, range(count), *source)
    return runtime.reset(cache, range(rows), [row * count // rows for row in range(rows)])


def whole(
    runtime: EncoderDecoder, source: Source, tokens: Sequence[Int64], rows: int | None = None
) -> Float32:
    """Logits [rows, s, vocab] of all tokens given at once."""
    cache = encoded(runtime, source, rows or len(tokens))
    logits, _ = runtime.decode(list(tokens), cache, positions=range(len(tokens[0])))
    return logits.copy()


def stepped(
    runtime: EncoderDecoder, cache: Any, tokens_rs: Int64, rows: Sequence[int] | None = None
) -> tuple[Float32, Any]:
    """Logits [rows, s, vocab] of one token after the other, and the cache."""
    logits = []
    for tokens_r1 in np.split(tokens_rs, tokens_rs.shape[1], axis=1):
        step, cache = runtime.decode(list(tokens_r1), cache, rows)
        logits.append(step.copy())
    return np.concatenate(logits, axis=1), cache
