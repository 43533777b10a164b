"""Whisper: recordings to text, one encode, one step of the decoder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.families.whisper import WhisperDimensions
from kvcast.inspect.roofline import Stored
from kvcast.inspect.work import Work
from kvcast_bench import probes
from kvcast_bench.backend import Backend, Samples
from kvcast_bench.models import BenchModel, SpeechModel
from kvcast_bench.probes import ENCODE, LOOP, MEL, PREFILL, REORDER, STEP
from kvcast_bench.recording import word_error
from kvcast_bench.turns import Results, Trial, TurnAnswer
from kvcast_bench.workload import OptionDefaults, Table, Workload, of_trial, timed

TRANSCRIBE = "transcribe"


@dataclass(frozen=True, kw_only=True)
class SpeechWorkload(Workload):
    dimensions: WhisperDimensions
    language: str  # code of the spoken language
    recordings: Sequence[Samples]  # each mono, 16 kHz
    audio: Mapping[str, Any]  # `name`, `recordings` (how many) and `seconds`, of all together
    references: Sequence[str] | None = None  # the transcript of each, if known
    beam: Sequence[int] = (1,)  # of each transcription
    # tokens that the row of a step holds before it; None times no steps or encodes
    position: int | None = None

    name: ClassVar[str] = "speech"
    kind: ClassVar[str] = "Whispers"
    model: ClassVar[type[BenchModel]] = SpeechModel
    options: ClassVar[OptionDefaults] = {"beam": ([1, 5], "beams; 1 is greedy")}
    words: ClassVar[Mapping[str, Any]] = {"audio": None, "reference": None, "language": "en"}
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {
        measure: (measure,) for measure in (TRANSCRIBE, ENCODE, STEP)
    }
    broken_down: ClassVar[str] = TRANSCRIBE
    parts: ClassVar[Sequence[str]] = (MEL, ENCODE, PREFILL, STEP, REORDER, LOOP)
    peak_per_turn: ClassVar[bool] = False
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
            "beams": list(self.beam),
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
    def step_work(self) -> Work:
        return self._step

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": TRANSCRIBE, "beam": beam} for beam in self.beam],
                metrics={TRANSCRIBE: "median s"},
                factor=1,
                number=".3f",
                places={"beam": "beam"},
                facts={"x real time": ("speed", ".1f"), "word error": ("word_error", ".1%")},
            )
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        measure = trial["measure"]
        if measure == ENCODE:
            return {ENCODE: probes.encode_seconds(backend.engine, self.recordings[0])}
        if measure == STEP:
            position = self.position or 1
            return {STEP: probes.step_seconds(backend.engine, self.recordings[0], position)}
        seconds, texts = timed(
            lambda: backend.transcribe_all(self.recordings, self.language, trial["beam"])
        )
        return {TRANSCRIBE: seconds, "texts": texts}

    @override
    def work(self, trial: Trial, backend: Backend) -> Mapping[str, Work]:
        model = self.counted(trial)
        floors = {ENCODE: model.encode(), STEP: self._step}
        floors[STEP if backend.recomputes else ENCODE] += model.project()
        return {metric: work for metric, work in floors.items() if metric == trial["measure"]}

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        if trial["measure"] != TRANSCRIBE:
            return {}
        result, references = of_trial(results, trial)[name], self.references
        texts = result.last["texts"]
        return {
            "word_error": None if references is None else word_error(references, texts),
            "speed": self.audio["seconds"] / median(result.series(TRANSCRIBE)),
            "text": "\n".join(text.strip() for text in texts),
        }

    @property
    def _step(self) -> Work:
        return self.counted({}).call(self.position or 1, 1)


OPENING = "opening"
READY, FIRST = "ready", "first"


@dataclass(frozen=True, kw_only=True)
class Opening(Workload):
    """A model's files, in the page cache, and a prompt or a recording to answer."""

    dimensions: Any
    file_bytes: int
    prompt: str
    audio: str | None = None  # path

    name: ClassVar[str] = OPENING
    kind: ClassVar[str] = "models of any family"
    metrics: ClassVar[Mapping[str, Sequence[str]]] = {OPENING: (READY, FIRST)}

    @property
    @override
    def settings(self) -> Mapping[str, Any]:
        answer = {"prompt": self.prompt} if self.audio is None else {"audio": self.audio}
        return {"file_bytes": self.file_bytes, **answer, "files": "in the page cache"}

    @property
    @override
    def step_work(self) -> Work:
        return Work()

    @override
    def tables(self) -> Sequence[Table]:
        return [
            Table(
                trials=[{"measure": OPENING}],
                metrics={READY: "ready ms", FIRST: "answered ms"},
                number=".0f",
                facts={
                    "held MB": ("held_megabytes", ".0f"),
                    "peak / file": ("peak_over_file", ".2f"),
                },
            )
        ]

    @override
    def run(self, backend: Any, trial: Trial) -> TurnAnswer:
        answer: TurnAnswer = backend.answer(self.prompt, self.audio)
        return answer

    @override
    def facts(self, trial: Trial, name: str, results: Results) -> Mapping[str, Any]:
        result = of_trial(results, trial)[name]
        return {
            "text": result.last["text"],
            "held_megabytes": median(result.series("held_bytes")) / 1e6,
            "own_megabytes": median(result.series("own_bytes")) / 1e6,
            "peak_over_file": max(result.series("peak_bytes")) / self.file_bytes,
        }
