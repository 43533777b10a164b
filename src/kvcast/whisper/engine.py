"""Jobs of Whisper models: recordings in, segments out; and questions about single windows.

Knows neither runtimes nor how windows are decoded.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from kvcast.engine.jobs import Job
from kvcast.engine.memory import Sizes, fitting
from kvcast.engine.worker import Prepared, Task, Worker
from kvcast.errors import UsageError
from kvcast.whisper.batch import Batch, Recording, Series
from kvcast.whisper.decoding import DecodingResult
from kvcast.whisper.decoding import Job as Question
from kvcast.whisper.model import WhisperModel
from kvcast.whisper.params import TranscribeParams
from kvcast.whisper.transcription import Segment, Transcription

if TYPE_CHECKING:
    from kvcast.audio.decode import AudioInput
    from kvcast.audio.timeline import Part
    from kvcast.whisper.sound import Windows


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """All that was heard in a recording.

    Attributes:
        segments: in order.
        language: its code.
        duration: seconds of the whole recording.
        notices: what a user should know, one line each.
        skipped: parts that were left out because they are no speech; None without `vad`.

    """

    segments: tuple[Segment, ...]
    language: str
    duration: float
    notices: tuple[str, ...]
    skipped: "tuple[Part, ...] | None"


SpeechJob = Job[Segment, Transcript]


class _FairBatch(Batch):
    """Recordings that have the fewest passages under way come first."""

    @override
    def in_turn(self) -> list[Recording]:
        passages = Counter(id(recording) for recording in self.under_way)
        return sorted(super().in_turn(), key=lambda recording: passages[id(recording)])


@dataclass
class PreparedRecording(Prepared):
    """A recording, and how to decode it.

    Attributes:
        opening: opens it.
        params: options.
        windows: the recording once it is open.

    """

    opens: ClassVar[bool] = True
    opening: "Callable[[], Windows]"
    params: TranscribeParams
    windows: "Windows | None" = None

    @override
    def open(self) -> None:
        self.windows = self.opening()

    @override
    def close(self) -> None:
        if self.windows is not None:
            self.windows.close()


@dataclass(frozen=True)
class PreparedQuestion(Prepared):
    """A question about one window: a moment's work, and whoever speaks waits for it."""

    at_once: ClassVar[bool] = True
    question: Question


class QuestionTask(Task, Recording, Series):
    """A question under way: a recording of one passage, of one job."""

    def __init__(self, batch: Batch, question: Question, job: Job[Any, Any]) -> None:
        self.job = job
        self._batch = batch
        self._question = question
        self._over = False
        self._result: Any = None
        self._error: Exception | None = None
        batch.begin(self, self)

    @override
    def passage(self) -> Series | None:
        return None  # its only one has begun

    @property
    @override
    def over(self) -> bool:
        return self._over

    @override
    def next(self) -> Question:
        return self._question

    @override
    def take(self, result: Any) -> None:
        self._over, self._result = True, result

    @override
    def fail(self, error: Exception) -> None:
        self._over, self._error = True, error

    def written(self) -> int:
        """Return how many tokens were written, once it is over; asked once."""
        return len(self._result.tokens) if isinstance(self._result, DecodingResult) else 0

    def tell(self) -> bool:
        """Return whether there is news."""
        return self._over

    def close(self) -> None:
        """Take no more part."""
        self._batch.remove(self)

    @override
    def end(self) -> str | None:
        if not self._over:
            return None
        return "stop" if self._error is None else "error"

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        else:
            self.job.finish(self._result)


class SpeechTask(Task):
    """A recording under way."""

    def __init__(self, transcription: Transcription, job: SpeechJob) -> None:
        self.job: SpeechJob = job
        self.transcription = transcription
        self._written = 0
        self._segments: list[Segment] = []
        self._error: Exception | None = None
        self._whole: Transcript | None = None

    def tell(self) -> bool:
        """Put finished segments into the job; return whether there is news."""
        told = len(self._segments)
        try:
            while (segment := self.transcription.take()) is not None:
                if self.job.duration is None:
                    self.job.language = self.transcription.language
                    self.job.duration = self.transcription.duration
                self._segments.append(segment)
                self._written += len(segment.tokens)
                self.job.put(segment)
            if self.transcription.over:
                self._whole = self._transcript()
        except Exception as error:  # of this recording alone
            self.transcription.close()
            self._error = error
        return len(self._segments) > told or self.end() is not None

    def written(self) -> int:
        """Return how many tokens were written since this was asked last."""
        written, self._written = self._written, 0
        return written

    def close(self) -> None:
        """Take no more part."""
        self.transcription.close()

    @override
    def end(self) -> str | None:
        if self._error is not None:
            return "error"
        return "stop" if self.transcription.over else None

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        elif self._whole is not None:
            self.job.finish(self._whole)

    def _transcript(self) -> Transcript:
        heard = self.transcription
        self.job.language, self.job.duration = heard.language, heard.duration
        return Transcript(
            segments=tuple(self._segments),
            language=heard.language,
            duration=heard.duration,
            notices=heard.notices,
            skipped=heard.skipped,
        )


class SpeechWorker(Worker):
    """Decodes windows of recordings over one cache."""

    def __init__(self, model: WhisperModel, rows: int, budget: int, chunk: int) -> None:
        """Work out the cache's sizes; memory is taken when the first window is heard.

        `chunk` counts tokens of prompts, and a window's prompt is short: windows are encoded one at
        a time between two steps whatever it says.
        """
        del chunk
        self._model = model
        dimensions = model.dimensions
        self.sizes: Sizes = fitting(
            model.runtime.row_bytes,
            longest=dimensions.target_positions,
            rows=rows,
            budget=budget,
            fixed=model.input_bytes,
        )
        if self.sizes.capacity < dimensions.target_positions:
            raise UsageError(
                f"a window needs rows of {dimensions.target_positions} positions, and the cache's "
                f"memory is enough for {self.sizes.capacity}: give it more"
            )
        self._batch = _FairBatch(model.shared_decoder(self.sizes.rows), self.sizes.rows)
        self._tasks: list[SpeechTask] = []
        self._questions: list[QuestionTask] = []

    @override
    def prepare(self, given: "AudioInput | Question", options: Mapping[str, Any]) -> Prepared:
        if isinstance(given, Question):
            return PreparedQuestion(given)
        # Fallbacks draw several texts of a window: as many as there are rows, unless it is asked.
        drawn = min(TranscribeParams().best_of, self.sizes.rows)
        params = TranscribeParams(**{"best_of": drawn, **options})
        if params.draft is not None:
            raise UsageError("draft is for one caller: the rows of an engine are shared")
        widths = [one.strategy().width for one in self._model.attempts(params)]
        if max(widths) > self.sizes.rows:
            raise UsageError(
                f"beam and best_of must be at most {self.sizes.rows}, the rows of the engine"
            )
        return PreparedRecording(self._model.opening(given, params), params)

    @override
    def has_room(self, opening: int) -> bool:
        return len(self._tasks) + opening < self.sizes.rows

    @override
    def begin(self, prepared: Prepared, job: SpeechJob) -> Task:
        if isinstance(prepared, PreparedQuestion):
            self._questions.append(question := QuestionTask(self._batch, prepared.question, job))
            return question
        assert isinstance(prepared, PreparedRecording)
        windows = prepared.windows
        assert windows is not None
        transcription = self._model.recording(self._batch, lambda: windows, prepared.params)
        self._tasks.append(task := SpeechTask(transcription, job))
        return task

    @override
    def cancel(self, task: Task) -> None:
        assert isinstance(task, (SpeechTask, QuestionTask))
        task.close()
        self._remove(task)

    @override
    def step(self) -> Sequence[Task]:
        self._batch.step()
        under_way: list[SpeechTask | QuestionTask] = [*self._questions, *self._tasks]
        news = [task for task in under_way if task.tell()]
        for task in news:
            self.generated_tokens += task.written()
            if task.end():
                self._remove(task)
                self.audio_seconds += task.job.duration or 0.0
        return news

    def _remove(self, task: SpeechTask | QuestionTask) -> None:
        if isinstance(task, SpeechTask):
            self._tasks.remove(task)
        else:
            task.close()
            self._questions.remove(task)

    @property
    @override
    def idle(self) -> bool:
        return not (self._tasks or self._questions)

    @property
    @override
    def held(self) -> list[int]:
        return self._batch.decoder.lengths

    @property
    @override
    def busy(self) -> list[int]:
        return self._batch.decoder.busy
