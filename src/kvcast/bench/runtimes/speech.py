"""A Whisper on every runtime: a recording end to end, one encode, one step of the decoder."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.features import open_features
from kvcast.bench.contestant import Contestant, peak_bytes
from kvcast.bench.cost import Cost
from kvcast.bench.runtimes.contenders import CONTENDERS, Cached, Recomputing, Task
from kvcast.bench.runtimes.forms import PRECISIONS, Form
from kvcast.bench.runtimes.plan import in_form
from kvcast.bench.speech.floor import Floor
from kvcast.bench.speech.wer import word_error
from kvcast.spec.whisper import WhisperDimensions

TRANSCRIBE, ENCODE, STEP = "transcribe", "encode", "step"
_ENCODES, _STEPS, _UNCOUNTED = 3, 20, 2


@dataclass(frozen=True, kw_only=True)
class SpeechPlan:
    """Meets `kvcast.bench.runtimes.plan.Plan`.

    Attributes:
        dimensions: of the model.
        language: code of what is spoken.
        position: tokens that the row of a step holds before it.
        samples: file of them.
        seconds: of sound.
        reference: what is spoken, if that is known.

    """

    dimensions: WhisperDimensions
    language: str
    position: int
    samples: str
    seconds: float
    reference: str | None

    contestant: ClassVar[str] = "kvcast.bench.runtimes.speech:Listener"
    kinds: ClassVar[Sequence[type[Cached]]] = (Cached, Recomputing)
    figures: ClassVar[Mapping[str, str]] = {STEP: STEP, ENCODE: ENCODE, TRANSCRIBE: TRANSCRIBE}
    step: ClassVar[str] = STEP

    @property
    def arguments(self) -> Mapping[str, Any]:
        """See the protocol."""
        return {"samples": self.samples, "language": self.language, "position": self.position}

    @property
    def work(self) -> Mapping[str, str]:
        """See the protocol."""
        source = self.dimensions.source_positions
        return {
            STEP: f"one step of the decoder alone: 1 row, 1 new token at position {self.position}, "
            f"{source} source positions; of {_STEPS} the median",
            ENCODE: f"one encode: 1 window of {source} positions; cross keys and values too, "
            f"unless steps recompute them; of {_ENCODES} the median",
            TRANSCRIBE: f"{self.seconds:.2f} s of sound to text: greedy (beam 1), temperature 0, "
            "timestamps, no prompt",
        }

    @property
    def widest(self) -> tuple[int, int]:
        """See the protocol."""
        return self.dimensions.source_positions, self.dimensions.d_model

    @property
    def settings(self) -> Mapping[str, Any]:
        """See the protocol."""
        return {
            "language": self.language,
            "beam": 1,
            "position": self.position,
            "audio_seconds": self.seconds,
        }

    def costs(self, form: Form, *, recomputes: bool) -> Mapping[str, Cost]:
        """See the protocol."""
        quantize = PRECISIONS[form.precision]
        floor = Floor(dimensions=self.dimensions, quantize=quantize)
        encode, step = floor.encode(), floor.decode(rows=1, new=1, length=self.position)
        if recomputes:
            step += _projections(self.dimensions, quantize)
            encode = _less(encode, _projections(self.dimensions, quantize))
        return {ENCODE: in_form(form, encode), STEP: in_form(form, step)}

    def facts(self, figure: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the protocol."""
        if figure != TRANSCRIBE:
            return {}
        text, reference = answer["text"], self.reference
        error = None if reference is None else word_error(reference, text)
        return {"word_error": error, "text": text.strip()}


def _projections(sizes: WhisperDimensions, quantize: str) -> Cost:
    """Count cross keys and values of all layers."""
    weights = sizes.decoder_layers * 2 * sizes.d_model**2
    operations = 2 * sizes.source_positions * weights
    if quantize == "none":
        return Cost(fp32=operations, bytes=4 * weights)
    return Cost(int8=operations, bytes=weights)


def _less(cost: Cost, part: Cost) -> Cost:
    return cost + Cost(int8=-part.int8, fp32=-part.fp32, bytes=-part.bytes)


class Listener(Contestant):
    """A form of a Whisper, on the far side of `kvcast.bench.remote`."""

    def __init__(
        self, name: str, task: dict[str, Any], samples: str, language: str, position: int
    ) -> None:
        """Take the contender's name, the fields of `Task`, and a .npy file of samples."""
        self._contender = CONTENDERS[name](Task(**task))
        self._samples: NDArray[np.float32] = np.load(samples, allow_pickle=False)
        self._language = language
        self._position = position
        super().__init__(self._contender)

    def take(self, measure: str) -> dict[str, Any]:
        """Return the measure's seconds under its name, and the process's peak memory so far."""
        acts: Mapping[str, Callable[[], dict[str, Any]]] = {
            TRANSCRIBE: self._transcribe,
            ENCODE: self._encode,
            STEP: self._step,
        }
        gc.collect()
        return {**acts[measure](), "peak_bytes": peak_bytes()}

    def _transcribe(self) -> dict[str, Any]:
        start = time.perf_counter()
        segments = self._contender.model.transcribe(
            self._samples,
            language=self._language,
            beam=1,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        text = "".join(segment.text for segment in segments)
        return {TRANSCRIBE: time.perf_counter() - start, "text": text}

    def _encode(self) -> dict[str, Any]:
        features, runtime = self._features(), self._contender.model.decoder.runtime
        return {ENCODE: _typical(lambda: runtime.encode(features), _ENCODES)}

    def _step(self) -> dict[str, Any]:
        """Take the same step over and over: a handle of a linear cache stays valid."""
        runtime = self._contender.model.decoder.runtime
        vocabulary = self._contender.model.dimensions.vocab_size
        tokens = np.random.default_rng(0).integers(vocabulary, size=(1, self._position + 1))
        cache = runtime.new_cache(runtime.encode(self._features()), 1)
        _, cache = runtime.decode(tokens[:, :-1], cache)
        return {STEP: _typical(lambda: runtime.decode(tokens[:, -1:], cache), _STEPS)}

    def _features(self) -> NDArray[np.float32]:
        """Of the first window, [1, n_mels, frames]."""
        windows = open_features(self._samples, self._contender.model.dimensions.n_mels)
        try:
            return windows.first_window()[None]
        finally:
            windows.close()


def _typical(act: Callable[[], object], calls: int) -> float:
    """Return the median seconds of some calls, after a few that do not count."""
    seconds = []
    for _ in range(_UNCOUNTED + calls):
        start = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - start)
    return median(seconds[_UNCOUNTED:])


def duration(samples: NDArray[np.float32]) -> float:
    """Return the seconds of samples."""
    return len(samples) / SAMPLE_RATE
