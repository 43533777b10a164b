"""Where kvcast's time goes: mel, encode, prefill, step, reorder, and the loop outside the runtime.

Runs on the far side of `kvcast.bench.remote`. The product holds no clocks: the recording and the
runtime that it is given here are wrapped in some.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.features import open_features
from kvcast.decoding.whisper import DecodingOptions
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Cache, CrossCache, EncoderDecoder, Float32, Int64
from kvcast.tasks.loading import load
from kvcast.tasks.model import WhisperModel
from kvcast.tasks.transcribe import Clip, Prompting, Transcription, Windows
from kvcast.tasks.whisper.fallback import Thresholds

PARTS = ("mel", "encode", "prefill", "step", "reorder", "loop")


class Breakdown:
    """A model and the recording that it is given."""

    def __init__(self, model: str, threads: int, language: str, samples: str) -> None:
        loaded = load(model, threads=threads)
        if not isinstance(loaded, WhisperModel):
            raise KvcastError(f"{model} is no Whisper, so it cannot transcribe")
        self._model = loaded
        self._language = language
        self._samples = np.load(samples, allow_pickle=False)

    def take(self, beam: int) -> dict[str, Any]:
        """Transcribe once.

        Returns the seconds of the whole and of each part, the number of windows encoded, and of
        every decode its rows, new tokens, tokens held before and logits asked for.
        """
        clock = Clock()
        start = time.perf_counter()
        with clock.part("mel"):
            windows = open_features(self._samples, self._model.dimensions.n_mels)
        decoder = self._model.decoder
        transcription = Transcription(
            replace(decoder, runtime=TimedRuntime(decoder.runtime, clock)),
            TimedWindows(windows, clock),
            attempts=[DecodingOptions(language=self._language, beam=beam)],
            thresholds=Thresholds(),
            prompting=Prompting(condition_on_previous_text=False),
            clip=Clip(),
        )
        for _ in transcription:
            pass
        seconds = time.perf_counter() - start
        clock.seconds["loop"] = seconds - sum(clock.seconds.values())
        return {
            "seconds": seconds,
            "parts": {part: clock.seconds[part] for part in PARTS},
            "windows": clock.windows,
            "decodes": clock.decodes,
        }


class Clock:
    """Seconds by part, and what was called."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.windows = 0
        self.decodes: list[tuple[int, int, int, int]] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block's time for a part."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start


class TimedWindows:
    """Meets `kvcast.tasks.transcribe.Windows`."""

    def __init__(self, windows: Windows, clock: Clock) -> None:
        self._windows = windows
        self._clock = clock
        self.content_frames = windows.content_frames
        self.duration = windows.duration
        self.notices = windows.notices

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        """See the protocol."""
        with self._clock.part("mel"):
            return self._windows.window(seek, end)

    def first_window(self) -> NDArray[np.float32]:
        """See the protocol."""
        with self._clock.part("mel"):
            return self._windows.first_window()

    def close(self) -> None:
        """See the protocol."""
        self._windows.close()


class TimedRuntime:
    """Meets `kvcast.runtimes.base.EncoderDecoder`."""

    def __init__(self, runtime: EncoderDecoder, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock

    def encode(self, *source: NDArray[Any]) -> CrossCache:
        """See the protocol."""
        self._clock.windows += len(source[0])
        with self._clock.part("encode"):
            cross: CrossCache = self._runtime.encode(*source)
        return cross

    def new_cache(self, cross: CrossCache, rows: int, capacity: int | None = None) -> Cache:
        """See the protocol."""
        with self._clock.part("prefill"):
            cache: Cache = self._runtime.new_cache(cross, rows, capacity)
        return cache

    def decode(
        self, tokens_rs: Int64, cache: Cache, positions: Sequence[int] = (-1,)
    ) -> tuple[Float32, Cache]:
        """See the protocol."""
        rows, new = tokens_rs.shape
        held = int(cache.lengths.max())
        self._clock.decodes.append((rows, new, held, len(positions)))
        with self._clock.part("step" if held else "prefill"):
            result: tuple[Float32, Cache] = self._runtime.decode(tokens_rs, cache, positions)
        return result

    def reorder(self, cache: Cache, sources: Sequence[int]) -> Cache:
        """See the protocol."""
        with self._clock.part("reorder"):
            reordered: Cache = self._runtime.reorder(cache, sources)
        return reordered

    def reset(self, cache: Cache, rows: Sequence[int]) -> Cache:
        """See the protocol."""
        with self._clock.part("reorder"):
            cleared: Cache = self._runtime.reset(cache, rows)
        return cleared
