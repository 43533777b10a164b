"""Whisper: a recording to text, one encode, one step of the decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.bench.backend import Backend, Samples
from kvcast.bench.floor import Stored
from kvcast.bench.layout import PERCENT, SECONDS, Layout, Table
from kvcast.bench.probes import ENCODE, LOOP, MEL, PREFILL, REORDER, STEP
from kvcast.bench.recording import word_error
from kvcast.bench.schedule import Answer, Results, Trial
from kvcast.bench.workload import Workload, of_trial, timed
from kvcast.errors import UsageError
from kvcast.spec.whisper import WhisperDimensions
from kvcast.work.base import Work
from kvcast.work.whisper import WhisperWork

TRANSCRIBE = "transcribe"
WORD_ERROR = {"word error": ("word_error", PERCENT)}


@dataclass(frozen=True, kw_only=True)
class Speech(Workload):
    """A recording for a Whisper."""

    dimensions: WhisperDimensions  # of the model
    language: str  # code of what is spoken
    samples: str  # .npy file of them, mono, 16 kHz, float32
    audio: Mapping[str, Any]  # `name` and `seconds` of the recording
    beams: Sequence[int]  # of the transcriptions; 1 is greedy
    # tokens that the row of a step holds before it; None times no steps or encodes
    position: int | None = None
    reference: str | None = None  # what is spoken, if that is known

    name: ClassVar[str] = "speech"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        TRANSCRIBE: (TRANSCRIBE,),
        ENCODE: (ENCODE,),
        STEP: (STEP,),
    }
    broken_down: ClassVar[Sequence[str]] = (TRANSCRIBE,)
    parts: ClassVar[Sequence[str]] = (MEL, ENCODE, PREFILL, STEP, REORDER, LOOP)
    peak_per_turn: bool = False
    stored: ClassVar[Stored] = Stored(int4_table=True, int8_cross=True, column_scales=True)

    def __post_init__(self) -> None:
        if self.position is not None and self.position >= self.dimensions.target_positions:
            raise UsageError(
                f"position must be below {self.dimensions.target_positions}, the decoder's, not "
                f"{self.position}"
            )

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        return {
            "audio": dict(self.audio),
            "language": self.language,
            "beams": list(self.beams),
            "position": self.position,
            "source_positions": self.dimensions.source_positions,
            "temperature": 0,
            "fallback": False,
            "condition_on_previous_text": False,
            "timestamps": True,
            "initial_prompt": None,
            "input": "samples in memory, mono 16 kHz float32",
        }

    @property
    @override
    def largest_product(self) -> tuple[int, int]:
        return self.dimensions.source_positions, self.dimensions.d_model

    @override
    def trials(self) -> Sequence[Trial]:
        alone = [] if self.position is None else [{"measure": STEP}, {"measure": ENCODE}]
        return [*alone, *({"measure": TRANSCRIBE, "beam": beam} for beam in self.beams)]

    @override
    def run(self, backend: Any, trial: Trial) -> Answer:
        measure = trial["measure"]
        if measure == TRANSCRIBE:
            seconds, text = timed(lambda: self.once(backend, trial))
            return {TRANSCRIBE: seconds, "text": text}
        if measure == ENCODE:
            return {ENCODE: backend.encode_seconds(self._samples)}
        return {STEP: backend.step_seconds(self._samples, self.position)}

    @override
    def once(self, backend: Any, trial: Trial) -> str:
        text: str = backend.transcribe(self._samples, self.language, trial["beam"])
        return text

    @override
    def counted(self, trial: Trial) -> WhisperWork:
        return WhisperWork(dimensions=self.dimensions)

    @override
    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:
        model = self.counted(trial)
        encode, step = model.encode(), self.step()
        if backend.recomputes:
            step += model.project()
        else:
            encode += model.project()
        floors = {ENCODE: encode, STEP: step}
        return {metric: floors[metric] for metric in floors if metric == trial["measure"]}

    @override
    def step(self) -> Work:
        return self.counted({}).call(self.position or 1, 1)

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        if trial["measure"] != TRANSCRIBE:
            return {}
        text, reference = of_trial(results, trial)[name].last["text"], self.reference
        error = None if reference is None else word_error(reference, text)
        return {"word_error": error, "text": text.strip()}

    @cached_property
    def _samples(self) -> Samples:
        samples: Samples = np.load(self.samples, allow_pickle=False)
        return samples


LAYOUT = Layout(
    tables=lambda _: [
        Table(
            measure=TRANSCRIBE,
            metrics={TRANSCRIBE: "median s"},
            number=SECONDS,
            places={"beam": "beam"},
            facts=WORD_ERROR,
        )
    ],
)
