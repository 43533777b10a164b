"""All that the benchmarks know of the inside of kvcast's models: clocks, and calls of a runtime."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from kvcast_bench.workload import timed

MEL, ENCODE, PREFILL, STEP, REORDER, LOOP = "mel", "encode", "prefill", "step", "reorder", "loop"
"""Parts of a run: the recording, calls of the runtime, and all that is outside."""

_PARTS: Mapping[str, str] = {
    "new_cache": PREFILL,  # making a cache is part of the prefill
    "reorder": REORDER,
    "reset": REORDER,
    "fork": REORDER,
    "adopt": REORDER,
}
_ENCODES, _STEPS, _UNCOUNTED = 3, 20, 2


class Clock:
    """Seconds by part, and the calls.

    `calls` has of every encode its inputs, and of every decode its part, rows, most new tokens,
    most tokens held before, and logits asked for.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: list[dict[str, Any]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time for a part."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def answer(self, parts: Sequence[str], whole: float) -> dict[str, Any]:
        """Return the breakdown of a run that took `whole` seconds; LOOP is the remainder."""
        self.seconds[LOOP] = whole - sum(self.seconds[part] for part in parts if part != LOOP)
        return {"whole": whole, **{part: self.seconds[part] for part in parts}, "calls": self.calls}


class Timed:
    """An object with a clock around its methods that belong to a part."""

    def __init__(self, timed: Any, clock: Clock, parts: Mapping[str, str]) -> None:
        self._timed = timed
        self._clock = clock
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the object, timed if it is a part's method."""
        attribute = getattr(self._timed, name)
        if name not in self._parts:
            return attribute

        def method(*arguments: Any, **keywords: Any) -> Any:
            with self._clock.part(self._parts[name]):
                return attribute(*arguments, **keywords)

        return method


class TimedRuntime(Timed):
    """A runtime of either kind, whose calls are kept as well."""

    def __init__(self, runtime: Any, clock: Clock) -> None:
        super().__init__(runtime, clock, _PARTS)

    def encode(self, *arguments: Any) -> Any:
        """Encode; the last argument has an entry for each input."""
        self._clock.calls.append({"part": ENCODE, "inputs": len(arguments[-1])})
        with self._clock.part(ENCODE):
            return self._timed.encode(*arguments)

    def prefill(self, *arguments: Any, **keywords: Any) -> Any:
        """Compute a prompt, as `decode`."""
        return self._computed(self._timed.prefill, *arguments, **keywords)

    def decode(self, *arguments: Any, **keywords: Any) -> Any:
        """Decode; a step is one new token for each row after others."""
        return self._computed(self._timed.decode, *arguments, **keywords)

    def _computed(
        self,
        compute: Callable[..., Any],
        tokens: Any,
        cache: Any,
        rows: Any = None,
        positions: Sequence[int] = (-1,),
    ) -> Any:
        taking = range(len(cache.lengths)) if rows is None else rows
        new, held = max(map(len, tokens)), int(max(cache.lengths[row] for row in taking))
        part = STEP if held and new == 1 else PREFILL
        call = {"part": part, "rows": len(tokens), "new": new, "held": held}
        self._clock.calls.append({**call, "asked": len(positions)})
        with self._clock.part(part):
            return compute(tokens, cache, rows, positions)


@contextmanager
def timed_model(model: Any, clock: Clock) -> Iterator[Any]:
    """Give a model with clocks around its runtime and, meanwhile, around every recording's windows.

    kvcast itself has no clocks, so these are put around it from outside.
    """
    from kvcast.audio import features

    open_features = features.open_features

    def open_timed(samples: NDArray[np.float32], n_mels: int) -> Timed:
        with clock.part(MEL):
            windows = open_features(samples, n_mels)
        return Timed(windows, clock, {"window": MEL, "first_window": MEL})

    with patch.object(features, "open_features", open_timed):
        yield type(model)(TimedRuntime(model.runtime, clock), model.tokenizer, model.dimensions)


def encode_seconds(model: Any, samples: NDArray[np.float32]) -> float:
    """Return the seconds of encoding the first window."""
    features, runtime = _first_window(model, samples), model.runtime
    cache = runtime.new_cache(1, 1, 1)
    return _typical(lambda: runtime.encode(cache, [0], features), _ENCODES)


def step_seconds(model: Any, samples: NDArray[np.float32], position: int) -> float:
    """Return the seconds of one row's step at a position of the first window's text.

    The same step is taken over and over: a handle of a linear cache stays valid.
    """
    runtime, vocabulary = model.runtime, model.dimensions.vocab_size
    tokens = np.random.default_rng(0).integers(vocabulary, size=position + 1)
    cache = runtime.new_cache(1, model.dimensions.target_positions, 1)
    cache = runtime.reset(runtime.encode(cache, [0], _first_window(model, samples)), [0], [0])
    _, cache = runtime.decode([tokens[:-1]], cache)
    return _typical(lambda: runtime.decode([tokens[-1:]], cache), _STEPS)


def _first_window(model: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of a recording, [1, n_mels, frames]."""
    from kvcast.audio.features import open_features

    with closing(open_features(samples, model.dimensions.n_mels)) as windows:
        return windows.first_window()[None]


def _typical(act: Callable[[], object], calls: int) -> float:
    """Return the median seconds of some calls, after a few that do not count."""
    return median([timed(act)[0] for _ in range(_UNCOUNTED + calls)][_UNCOUNTED:])
