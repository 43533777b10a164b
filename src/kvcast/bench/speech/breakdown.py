"""Where kvcast's time goes: mel, encode, prefill, step, reorder, and the loop outside the runtime.

Runs on the far side of `kvcast.bench.remote`. The product holds no clocks: the recording and the
runtime that it is given here are wrapped in some.
"""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.features import open_features
from kvcast.bench.timed import ENCODE, LOOP, PREFILL, REORDER, STEP, Clock, TimedRuntime
from kvcast.decoding.whisper import DecodingOptions
from kvcast.errors import KvcastError
from kvcast.tasks.loading import load
from kvcast.tasks.model import WhisperModel
from kvcast.tasks.transcribe import Clip, Prompting, Transcription, Windows
from kvcast.tasks.whisper.fallback import Thresholds

_MEL = "mel"
PARTS = (_MEL, ENCODE, PREFILL, STEP, REORDER, LOOP)


class Breakdown:
    """A model and the recording that it is given."""

    def __init__(self, model: str, threads: int, language: str, samples: str) -> None:
        loaded = load(model, runtime="onnx", threads=threads)
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
        with clock.part(_MEL):
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
        found = clock.answer(PARTS, time.perf_counter() - start)
        return {**found, "windows": clock.inputs}


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
        with self._clock.part(_MEL):
            return self._windows.window(seek, end)

    def first_window(self) -> NDArray[np.float32]:
        """See the protocol."""
        with self._clock.part(_MEL):
            return self._windows.first_window()

    def close(self) -> None:
        """See the protocol."""
        self._windows.close()
