"""The worked example of Mistral's rolling cache, computed by a model and read out of its cache.

Prompts of 4, 1 and 3 tokens, a window of 3, chunks of 2, then five tokens more. Which position a
slot holds is found by its contents: the first layer's keys depend on one position alone. Every
call's logits are compared with the logits of the whole text in one call, on an empty cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from kvcast.inspect.schedule import ModelCall, Schedule, label, row_name
from kvcast.runtimes.eager.runtime import eager_runtime
from kvcast_bench.sources.figures import Figures
from kvcast_bench.sources.models import published, random_model

LENGTHS, WINDOW, CHUNK, NEW = (4, 1, 3), 3, 2, 5
EMPTY = "."


@dataclass(frozen=True)
class Done:
    """One call.

    Attributes:
        call: its new tokens.
        slots: of each row the positions that its slots hold after the call; None: nothing yet.
        error: the largest difference from logits computed without a cache.

    """

    call: ModelCall
    slots: Sequence[Sequence[int | None]]
    error: float


def example() -> list[Done]:
    """Feed the example to a Mistral of two layers with random weights."""
    schedule = Schedule.of(LENGTHS, WINDOW, CHUNK, NEW)
    sizes = {"width": 64, "inner": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 97}
    dimensions = replace(published("mistral-7b"), windows=(WINDOW, WINDOW), **sizes)
    model = random_model(dimensions)
    rng = np.random.default_rng(0)
    texts = rng.integers(0, 97, (len(LENGTHS), max(LENGTHS) + NEW))
    keys = _keys(model, texts)
    runtime = eager_runtime(model)
    cache = runtime.new_cache(len(LENGTHS), texts.shape[1])
    done = []
    for call in schedule.calls():
        rows = [row for row, count in enumerate(call.counts) if count]
        spans = [slice(call.lengths[row], call.lengths[row] + call.counts[row]) for row in rows]
        tokens = [texts[row, span] for row, span in zip(rows, spans, strict=True)]
        logits, cache = runtime.decode(tokens, cache, rows)
        error = max(
            float(np.abs(got[0] - _whole(runtime, texts[row, : span.stop])).max())
            for got, row, span in zip(logits.copy(), rows, spans, strict=True)
        )
        held = cache.memory.cells[0]
        done.append(Done(call, [_positions(held[row], keys[row]) for row in range(3)], error))
    return done


def _keys(model: Any, texts: np.ndarray) -> Sequence[Tensor]:
    """Return the first layer's keys of all positions of each text, [heads, positions, d]."""
    wide = replace(model.dimensions, windows=(None, None))
    runtime = eager_runtime(type(model).over(wide, dict(model.weights)))
    cache = runtime.new_cache(len(texts), texts.shape[1])
    _, cache = runtime.decode(list(texts), cache)
    held: Sequence[Tensor] = list(cache.memory.cells[0])
    return held


def _whole(runtime: Any, text: np.ndarray) -> np.ndarray:
    """Return the logits after a text, [vocab], computed in one call."""
    logits, _ = runtime.decode([text], runtime.new_cache(1, len(text)))
    last: np.ndarray = logits[0, 0].copy()
    return last


def _positions(held_hsd: Tensor, keys_hpd: Tensor) -> list[int | None]:
    found: list[int | None] = []
    for slot in range(held_hsd.shape[1]):
        key = held_hsd[:, slot]
        distance_p = (keys_hpd - key[:, None]).abs().amax(dim=(0, 2))
        is_found = bool(key.any()) and float(distance_p.min()) < 1e-5
        found.append(int(distance_p.argmin()) if is_found else None)
    return found


def measure() -> Sequence[Figures]:
    return [_table(example()), _memory()]


def _table(done: Sequence[Done]) -> Figures:
    rows = [
        [
            each.call.name,
            " + ".join(map(str, each.call.counts)),
            *(" ".join(_shown(row, slots)) for row, slots in enumerate(each.slots)),
            f"{each.error:.1e}",
        ]
        for each in done
    ]
    return Figures(
        head=["call", "new tokens", *(f"row {row_name(row)}" for row in range(3)), "error"],
        rows=rows,
        note="Slots in order, `.` holds nothing. Error: largest difference of any logit from the "
        "whole text in one call. Mistral's layers of width 64, two, fp32.",
    )


def _shown(row: int, slots: Sequence[int | None]) -> list[str]:
    return [EMPTY if position is None else label(row, position) for position in slots]


def _memory() -> Figures:
    of = published("mistral-7b")
    slot = 2 * 2 * len(of.windows) * of.kv_heads * of.head_dim
    lengths: Mapping[str, int] = {f"{length:,}": length for length in (4096, 8192, 32768)}
    window = of.windows[0]
    return Figures(
        head=["positions", "linear cache", f"ring of {window:,}", "ratio"],
        rows=[
            [
                name,
                f"{slot * length / 2**20:,.0f} MiB",
                f"{slot * min(length, window) / 2**20:,.0f} MiB",
                f"{length / min(length, window):.0f}",
            ]
            for name, length in lengths.items()
        ],
        note="Mistral 7B, one row, bf16.",
    )
