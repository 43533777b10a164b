"""Turns a recording into segments: a plan cuts it into parts, which a scheduler decodes."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

from typing_extensions import override

from kvcast.audio.features import RecordedAudio
from kvcast.audio.timeline import Part
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.callers import Policy, PolicyCaller
from kvcast.engine.requests import Request
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError
from kvcast.speech.params import TranscribeParams
from kvcast.speech.plausibility import Plausibility
from kvcast.speech.segment_stream import SegmentStream
from kvcast.transcripts.segments import (
    FRAMES_PER_SECOND,
    Replacements,
    Segment,
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


class Memory(Protocol):
    """Results of a recording's parts, by keys that depend on everything that decides them."""

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return a result, of plain values, or None."""

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Add a result."""


class Plan(ABC, Generic[RecordingT]):
    """Cuts one recording into parts, as a kind of models needs them."""

    language: str | None = None  # of the recording, once it is known

    @abstractmethod
    def parts(self, recording: RecordingT, begin: Callable[[RecordingPart], None]) -> Policy[None]:
        """Begin parts in order; yield None after each whose next one can wait.

        `language` is set before the last one is over.
        """

    def remember(self, memory: Memory) -> bool:
        """Take results from a memory where it has them, and add others; return whether it can."""
        del memory
        return False


class RecordingCaller(PolicyCaller):
    """A recording, opened on first use and released after its last segment or by `close`.

    `before_opening` is called right before the recording is opened; by default it does nothing.
    `advice`: what may be wrong if the text is improbable.
    """

    def __init__(
        self,
        opening: Callable[[], RecordedAudio],
        plan: Plan[Any],
        *,
        params: TranscribeParams,
        together: int,
        notices: Sequence[str] = (),
        advice: str | None = None,
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
        self._plausibility = Plausibility(advice)
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
        at_end = self._plausibility.notices if self._taken else self._recording.no_speech_notices
        return (
            *self._recording.notices,
            *empty,
            *self._notices,
            *(at_end if self._closed else ()),
        )

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
                self._plausibility.add(first.segments[0])
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
        advice: str | None = None,
    ) -> None:
        """Join the scheduler; nothing is opened or decoded yet.

        `opening` is called once at most. Recordings of lower `priority` are decoded first.
        """
        SegmentStream.__init__(self)
        together = params.batch or 1
        RecordingCaller.__init__(
            self,
            opening,
            plan,
            params=params,
            together=together,
            notices=notices,
            advice=advice,
        )
        self.priority = priority
        self._scheduler = scheduler
        scheduler.add(self)

    def open(self) -> Self:
        """Open the recording now; raises the errors of `kvcast.audio.features.open_features`."""
        _ = self._recording
        return self

    def remember(self, memory: Memory) -> bool:
        """Take results from a memory, before any is decoded; return whether the model can."""
        return self._plan.remember(memory)

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
                self.note_end()
                raise StopIteration
            try:
                self._scheduler.step()
            except BaseException:
                self.close()
                raise
        return self.note(segment)

    @override
    def close(self) -> None:
        try:
            self._scheduler.remove(self)
        finally:  # the model may be closed
            self._release()
