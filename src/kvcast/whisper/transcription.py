"""Turns a recording into segments, one by one.

Without a batch, windows follow one another as in openai/whisper's transcribe.py; in a batch, the
recording is cut where it is quiet, and the excerpts are decoded together. Knows no file formats
and no runtime.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from typing_extensions import override

from kvcast.decoding.speculation import DraftCounts
from kvcast.engine.callers import JobCaller, Policy, PolicyCaller
from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.detection import detect
from kvcast.whisper.excerpts import first_excerpt
from kvcast.whisper.language_spans import LanguageSpans
from kvcast.whisper.long_form import LongForm
from kvcast.whisper.params import TranscribeParams
from kvcast.whisper.replacing import Replacements
from kvcast.whisper.requests import Features
from kvcast.whisper.segments import FRAMES_PER_SECOND, Segment, placed
from kvcast.whisper.sound import Sound, Windows
from kvcast.whisper.window_end import QuietEnd
from kvcast.whisper.windows import WindowRequests

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part

__all__ = ["Segment", "Transcription", "clipped_frames"]

_AHEAD = 4
"""Excerpts that are begun before the first of them is over, for each that runs at once."""


def clipped_frames(params: TranscribeParams, content_frames: int) -> list[tuple[int, int]]:
    """Return the first frame of each part to transcribe, and the one after its last.

    A part that begins past the recording's end has its end before its start.
    """
    return [
        (
            round(start * FRAMES_PER_SECOND),
            content_frames if end is None else min(round(end * FRAMES_PER_SECOND), content_frames),
        )
        for start, end in params.clips
    ]


class RecordingCaller(PolicyCaller):
    """A recording, whose windows are requests and whose results become segments.

    It is opened on first use, and released when the last segment was taken, or by `close`. One
    policy finds the clips to decode; each excerpt, or all clips, is another.

    Attributes:
        before_opening: is called right before the recording is opened; by default it does nothing.

    """

    def __init__(
        self,
        requests: WindowRequests,
        opening: Callable[[], Windows],
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
        together: int,
        notices: Sequence[str] = (),
    ) -> None:
        """Prepare; nothing is opened or decoded yet.

        Args:
            requests: makes the requests of windows.
            opening: opens the recording; called once at most.
            attempts: how to decode a window first, and after each rejection; one at least.
            params: all other options.
            together: excerpts that run at once.
            notices: for the user, about the options.

        """
        super().__init__()
        self._requests = requests
        self._opening = opening
        self._attempts = attempts
        self._params = params
        self._replacements = Replacements.of(params.replace)
        self._ahead = _AHEAD * together
        self._plan = self._planned()
        self._plan_waits = True
        self._planned_all = self._closed = False
        self._begun: deque[LongForm] = deque()
        self._language: str | None = None
        self._error: Exception | None = None
        self._notices = list(notices)
        self._drafts: list[DraftCounts] = []
        self._taken = 0
        self.before_opening: Callable[[], None] = lambda: None

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self._windows.duration

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user, one line each."""
        frames = self._windows.content_frames
        clips = clipped_frames(self._params, frames)
        empty = [
            f"the clip from {start:g} s is past the end, {self.duration:.2f} s"
            if first >= frames
            else f"the clip from {start:g} s is shorter than 10 ms"
            for (start, _), (first, end) in zip(self._params.clips, clips, strict=True)
            if first >= end and frames
        ]
        unheard = self._windows.unheard if self._closed and not self._taken else ()
        return (*self._windows.notices, *empty, *self._notices, *unheard)

    @property
    def skipped(self) -> "tuple[Part, ...] | None":
        """Parts that were left out because they are no speech; None without `vad`."""
        return self._windows.skipped

    @property
    def draft(self) -> DraftCounts | None:
        """Counts of drafted tokens in finished windows; None without `draft`."""
        if self._params.draft is None:
            return None
        return DraftCounts.total(self._drafts)

    @property
    @override
    def over(self) -> bool:
        everything = self._planned_all and all(form.over for form in self._begun)
        return self._closed or self._error is not None or everything

    @override
    def next_request(self) -> Request | None:
        while (request := super().next_request()) is None:
            if not self._plan_waits or len(self._begun) >= self._ahead:
                break
            self._plan_waits = False
            self.resume(self._plan)
        return request

    @override
    def paused(self, policy: Policy[Any]) -> None:
        if policy is self._plan:
            self._plan_waits = True
        else:
            super().paused(policy)

    @override
    def ended(self, policy: Policy[Any], result: Any) -> None:
        if policy is self._plan:
            self._planned_all = True

    @override
    def fail(self, error: Exception) -> None:
        self._error = error

    def take_segment(self) -> Segment | None:
        """Return the next segment if it is done; None if it is not, or all is over.

        Raises the error that ended it.
        """
        while not self._closed:
            first = self._begun[0] if self._begun else None
            if first is not None and first.segments:
                self._taken += 1
                segment = placed(first.segments.popleft(), self._windows.timeline)
                return self._replacements.apply(replace(segment, id=self._taken - 1))
            if first is not None and first.over:
                self._drafts += self._begun.popleft().drafts
                for seconds, notice in first.notices:
                    begun, _ = self._windows.timeline.original(seconds, seconds)
                    self._notices.append(f"from {begun:.2f} s {notice}")
            elif self._error is not None:
                self.close()
                raise self._error
            elif first is None and self._planned_all:
                self.close()
            else:
                break
        return None

    @abstractmethod
    def close(self) -> None:
        """Stop, and release the recording."""

    def _release(self) -> None:
        self._closed = True
        if "_windows" in self.__dict__:  # it was opened
            self._windows.close()

    @cached_property
    def _windows(self) -> Windows:
        self.before_opening()
        return self._opening()

    def _planned(self) -> Policy[None]:
        """Find the clips to decode, and begin them one by one."""
        # Known before the recording is released, whether windows are decoded in it or not.
        language = self._language = yield from self._detected()
        clips = clipped_frames(self._params, self._windows.content_frames)
        clips = [clip for clip in clips if clip[0] < clip[1]]
        attempts = self._attempts
        if not self._params.multilingual:
            attempts = [replace(options, language=language) for options in attempts]
        spans = [self._spans(clip) for clip in clips]
        if self._params.batch is None:
            if clips:
                self._begin(self._windows, clips, attempts=attempts, spans=spans)
            return
        for clip, spoken in zip(clips, spans, strict=True):
            attempts = yield from self._excerpts(clip, spoken, attempts)

    def _excerpts(
        self,
        clip: tuple[int, int],
        spans: LanguageSpans | None,
        attempts: Sequence[DecodingOptions],
    ) -> Policy[Sequence[DecodingOptions]]:
        """Begin a clip's excerpts, as there is room; return the attempts for the next clip."""
        quiet = QuietEnd(self._requests.tokenizer.timestamp_begin)
        joints = [round(at * FRAMES_PER_SECOND) for at in self._windows.timeline.joints]
        seek, end = clip
        while seek < end:
            last = end
            if spans is not None:
                span = yield from spans.at(seek)
                last = span.end
                attempts = [replace(options, language=span.language) for options in attempts]
            excerpt = first_excerpt(self._windows, (seek, last), joints)
            place = [(excerpt.first, excerpt.end)]
            self._begin(excerpt, place, attempts=attempts, end=quiet)
            attempts = [replace(options, prefix=None) for options in attempts]
            seek = excerpt.end
            yield None
        return attempts

    def _begin(self, sound: Sound, clips: Sequence[tuple[int, int]], **given: Any) -> None:
        form = LongForm(sound, clips, requests=self._requests, params=self._params, **given)
        self._begun.append(form)
        self.start(form.decode())

    def _detected(self) -> Policy[str]:
        """Find the language: the given one, or else detected in the first 30 seconds."""
        tokenizer = self._requests.tokenizer
        if (language := self._attempts[0].language) is not None:
            return tokenizer.language_code(language)
        if not tokenizer.is_multilingual:
            return "en"
        detected = yield from detect(self._requests, self._windows, self._params)
        return detected.language

    def _spans(self, clip: tuple[int, int]) -> LanguageSpans | None:
        if not self._params.multilingual:
            return None

        def detected(window_mt: Float32) -> Policy[dict[str, float]]:
            return self._requests.languages(Features(window_mt))

        return LanguageSpans(self._windows, clip, detected)


class Transcription(RecordingCaller, Iterator[Segment]):
    """Segments of one recording, decoded while they are taken; can be taken once.

    The scheduler decodes other recordings meanwhile.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        requests: WindowRequests,
        opening: Callable[[], Windows],
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
        priority: int = 0,
        notices: Sequence[str] = (),
    ) -> None:
        """Join the scheduler; nothing is opened or decoded yet.

        Args:
            scheduler: decodes it, perhaps together with other recordings.
            requests: makes the requests of windows.
            opening: opens the recording; called once at most.
            attempts: how to decode a window first, and after each rejection; one at least.
            params: all other options.
            priority: recordings of lower ones are decoded first.
            notices: for the user, about the options.

        """
        together = params.batch or 1
        super().__init__(
            requests,
            opening,
            attempts=attempts,
            params=params,
            together=together,
            notices=notices,
        )
        self.priority = priority
        self._scheduler = scheduler
        scheduler.add(self)

    def open(self) -> Self:
        """Open the recording now; raises the errors of `kvcast.audio.features.open_features`."""
        _ = self._windows
        return self

    @property
    def language(self) -> str:
        """Code of the language: the given one, or else detected in the first 30 seconds."""
        while self._language is None:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise KvcastError("the recording was closed before its language was known")
            self._scheduler.step()
        return self._language

    def __next__(self) -> Segment:
        """Decode as far as the next segment takes."""
        while (segment := self.take_segment()) is None:
            if self._closed:
                raise StopIteration
            try:
                self._scheduler.step()
            except BaseException:
                self.close()
                raise
        return segment

    @override
    def close(self) -> None:
        self._scheduler.remove(self)
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The complete transcription of a recording.

    Attributes:
        segments: in order.
        language: its code.
        duration: seconds of the whole recording.
        notices: for the user, one line each.
        skipped: parts that were left out because they are no speech; None without `vad`.

    """

    segments: tuple[Segment, ...]
    language: str
    duration: float
    notices: tuple[str, ...]
    skipped: "tuple[Part, ...] | None"


class ServedRecording(RecordingCaller, JobCaller):
    """A recording in an engine."""

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
        _ = self._windows

    @override
    def next_request(self) -> Request | None:
        request = super().next_request()
        self._tell()  # one without any window is over
        return request

    @override
    def take(self, request: Request) -> None:
        super().take(request)
        self._tell()

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

    def _tell(self) -> None:
        """Put finished segments into the job, and its result at the end."""
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
                language=self._language or "",
                duration=self.duration,
                notices=self.notices,
                skipped=self.skipped,
            )

    def _note(self) -> None:
        """Tell the job the recording's language and duration."""
        self.job.language, self.job.duration = self._language, self.duration


class WindowCaller(PolicyCaller, JobCaller):
    """A policy about one window in an engine: short, and first, as a speaker waits for it."""

    priority = -1

    def __init__(self, policy: Policy[Any]) -> None:
        super().__init__()
        self._result: Any = None
        self._how: str | None = None
        self._error: Exception | None = None
        self.start(policy)

    @property
    @override
    def ending(self) -> str | None:
        return self._how

    @override
    def ended(self, policy: Policy[Any], result: Any) -> None:
        self._how, self._result = "stop", result
        if isinstance(result, DecodingResult):
            self.totals.generated_tokens += len(result.tokens)

    @override
    def fail(self, error: Exception) -> None:
        self._how, self._error = "error", error

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        else:
            self.job.finish(self._result)
