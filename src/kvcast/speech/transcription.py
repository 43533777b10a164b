"""Turns a recording into segments: a plan cuts it into parts, which a scheduler decodes."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from kvcast.audio.features import RecordedAudio
from kvcast.audio.timeline import Part
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.callers import JobCaller, Policy, PolicyCaller
from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import (
    FRAMES_PER_SECOND,
    Formats,
    Replacements,
    Segment,
    Transcript,
    placed,
)

RecordingT = TypeVar("RecordingT", bound=RecordedAudio, contravariant=True)

_AHEAD = 4  # parts that are begun before the first of them is over, for each that runs at once


def clipped_frames(params: TranscribeParams, content_frames: int) -> list[tuple[int, int]]:
    """Return each part's first frame and the frame after its last, possibly before the first."""
    return [
        (
            round(start * FRAMES_PER_SECOND),
            content_frames if end is None else min(round(end * FRAMES_PER_SECOND), content_frames),
        )
        for start, end in params.clips
    ]


class RecordingPart(Protocol):
    """A part of a recording that is decoded by itself; a notice has its second of the recording."""

    drafts: list[DraftCounts]
    notices: list[tuple[float, str]]
    segments: deque[Segment]
    over: bool

    def decode(self) -> Policy[None]:
        """Decode everything."""


class Plan(ABC, Generic[RecordingT]):
    """Cuts one recording into parts, as a kind of models needs them."""

    language: str | None = None  # of the recording, once it is known

    @abstractmethod
    def parts(self, recording: RecordingT, begin: Callable[[RecordingPart], None]) -> Policy[None]:
        """Begin parts in order; yield None after each whose next one can wait.

        `language` is set before the last one is over.
        """


class RecordingCaller(PolicyCaller):
    """A recording, opened on first use and released after its last segment or by `close`.

    `before_opening` is called right before the recording is opened; by default it does nothing.
    """

    def __init__(
        self,
        opening: Callable[[], RecordedAudio],
        plan: Plan[Any],
        *,
        params: TranscribeParams,
        together: int,
        notices: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._opening = opening
        self._plan = plan
        self._params = params
        self._replacements = Replacements.of(params.replace)
        self._ahead = _AHEAD * together
        self._cutting = self._cut()
        self._cutting_waits = True
        self._all_cut = self._closed = False
        self._begun: deque[RecordingPart] = deque()
        self._error: Exception | None = None
        self._notices = list(notices)
        self._drafts: list[DraftCounts] = []
        self._taken = 0
        self.before_opening: Callable[[], None] = lambda: None

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self._recording.duration

    @property
    def notices(self) -> tuple[str, ...]:
        frames = self._recording.content_frames
        clips = clipped_frames(self._params, frames)
        empty = [
            f"the clip from {start:g} s is past the end, {self.duration:.2f} s"
            if first >= frames
            else f"the clip from {start:g} s is shorter than 10 ms"
            for (start, _), (first, end) in zip(self._params.clips, clips, strict=True)
            if first >= end and frames
        ]
        no_speech_notices = (
            self._recording.no_speech_notices if self._closed and not self._taken else ()
        )
        return (*self._recording.notices, *empty, *self._notices, *no_speech_notices)

    @property
    def skipped(self) -> tuple[Part, ...] | None:
        """Parts that were left out because they are no speech; None without `vad`."""
        return self._recording.skipped

    @property
    def draft(self) -> DraftCounts | None:
        if self._params.draft is None:
            return None
        return DraftCounts.total(self._drafts)

    @property
    @override
    def over(self) -> bool:
        everything = self._all_cut and all(part.over for part in self._begun)
        return self._closed or self._error is not None or everything

    @override
    def next_request(self) -> Request | None:
        while (request := super().next_request()) is None:
            if not self._cutting_waits or len(self._begun) >= self._ahead:
                break
            self._cutting_waits = False
            self.resume(self._cutting)
        return request

    @override
    def paused(self, policy: Policy[Any]) -> None:
        if policy is self._cutting:
            self._cutting_waits = True
        else:
            super().paused(policy)

    @override
    def ended(self, policy: Policy[Any], result: Any) -> None:
        if policy is self._cutting:
            self._all_cut = True

    @override
    def fail(self, error: Exception) -> None:
        self._error = error

    def take_segment(self) -> Segment | None:
        """Return the next segment if it is done, or None; raises the error that ended it."""
        while not self._closed:
            first = self._begun[0] if self._begun else None
            if first is not None and first.segments:
                self._taken += 1
                segment = placed(first.segments.popleft(), self._recording.timeline)
                return self._replacements.apply(replace(segment, id=self._taken - 1))
            if first is not None and first.over:
                self._drafts += self._begun.popleft().drafts
                for seconds, notice in first.notices:
                    begun, _ = self._recording.timeline.original(seconds, seconds)
                    self._notices.append(f"from {begun:.2f} s {notice}")
            elif self._error is not None:
                self.close()
                raise self._error
            elif first is None and self._all_cut:
                self.close()
            else:
                break
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop, and release the recording."""

    def _release(self) -> None:
        self._closed = True
        if "_recording" in self.__dict__:  # it was opened
            self._recording.close()

    @cached_property
    def _recording(self) -> RecordedAudio:
        self.before_opening()
        return self._opening()

    def _cut(self) -> Policy[None]:
        yield from self._plan.parts(self._recording, self._begin)

    def _begin(self, part: RecordingPart) -> None:
        self._begun.append(part)
        self.start(part.decode())


class SegmentStream(Iterator[Segment], Formats):
    """A recording's segments, decoded while they are taken; then iterating begins anew.

    `segments`, `text` and the formats decode the rest first.
    """

    _closed: bool  # after the last segment, an error, or `close`

    def __init__(self) -> None:
        self._decoded: list[Segment] = []
        self._transcript: Transcript | None = None

    @property
    @abstractmethod
    def language(self) -> str:
        """Code of the recording's language."""

    @property
    @abstractmethod
    def duration(self) -> float:
        """Seconds of the whole recording."""

    @property
    @abstractmethod
    def notices(self) -> tuple[str, ...]:
        """Notices for the user, one line each."""

    @property
    @abstractmethod
    def skipped(self) -> tuple[Part, ...] | None:
        """Parts that were left out because they are no speech; None without `vad`."""

    @property
    @abstractmethod
    def draft(self) -> DraftCounts | None:
        """Counts of drafted tokens in finished windows; None without `draft`."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and release the recording."""

    @override
    def __iter__(self) -> Iterator[Segment]:
        return iter(tuple(self._decoded)) if self._closed else self

    @property
    @override
    def transcript(self) -> Transcript:
        if self._transcript is None:
            for _ in self:
                pass
            self._transcript = Transcript.of(self, self._decoded)
        return self._transcript

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.transcript.segments

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self._decoded)} segments decoded>"


class Transcription(RecordingCaller, SegmentStream):
    """Segments of one recording; the scheduler decodes others meanwhile."""

    def __init__(
        self,
        scheduler: Scheduler,
        opening: Callable[[], RecordedAudio],
        plan: Plan[Any],
        *,
        params: TranscribeParams,
        priority: int = 0,
        notices: Sequence[str] = (),
    ) -> None:
        """Join the scheduler; nothing is opened or decoded yet.

        `opening` is called once at most. Recordings of lower `priority` are decoded first.
        """
        SegmentStream.__init__(self)
        together = params.batch or 1
        RecordingCaller.__init__(
            self, opening, plan, params=params, together=together, notices=notices
        )
        self.priority = priority
        self._scheduler = scheduler
        scheduler.add(self)

    def open(self) -> Self:
        """Open the recording now; raises the errors of `kvcast.audio.features.open_features`."""
        _ = self._recording
        return self

    @property
    @override
    def language(self) -> str:
        """Code of the language: the given one, or else detected in the first 30 seconds."""
        while (language := self._plan.language) is None:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise KvcastError("the recording was closed before its language was known")
            self._scheduler.step()
        return language

    @override
    def __next__(self) -> Segment:
        """Decode until the next segment is complete."""
        while (segment := self.take_segment()) is None:
            if self._closed:
                raise StopIteration
            try:
                self._scheduler.step()
            except BaseException:
                self.close()
                raise
        self._decoded.append(segment)
        return segment

    @override
    def close(self) -> None:
        self._scheduler.remove(self)
        self._release()


class ServedRecording(RecordingCaller, JobCaller):
    opens: ClassVar[bool] = True
    job: Job[Segment, Transcript]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._segments: list[Segment] = []
        self._transcript: Transcript | None = None

    @property
    @override
    def ending(self) -> str | None:
        if self._error is not None:
            return "error"
        return None if self._transcript is None else "stop"

    @property
    @override
    def over(self) -> bool:
        return self.ending is not None

    @override
    def open(self) -> None:
        _ = self._recording

    @override
    def next_request(self) -> Request | None:
        request = super().next_request()
        self._publish()  # one without any window is over
        return request

    @override
    def take(self, request: Request) -> None:
        super().take(request)
        self._publish()

    @override
    def fail(self, error: Exception) -> None:
        super().fail(error)
        self.close()

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        elif self._transcript is not None:
            self.job.finish(self._transcript)

    @override
    def close(self) -> None:
        self._release()

    def _publish(self) -> None:
        while (segment := self.take_segment()) is not None:
            self._note()
            self._segments.append(segment)
            self.totals.generated_tokens += len(segment.tokens)
            self.job.put(segment)
        if self._closed:
            self._note()
            self.totals.audio_seconds += self.duration
            self._transcript = Transcript(
                segments=tuple(self._segments),
                language=self._plan.language or "",
                duration=self.duration,
                notices=self.notices,
                skipped=self.skipped,
            )

    def _note(self) -> None:
        self.job.language, self.job.duration = self._plan.language, self.duration
