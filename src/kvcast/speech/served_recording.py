"""A recording that an engine transcribes among other work."""

import time
from typing import Any, ClassVar

from typing_extensions import override

from kvcast.engine.callers import JobCaller
from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request
from kvcast.speech.transcription import RecordingCaller
from kvcast.transcripts.segments import Segment, Transcript


class ServedRecording(RecordingCaller, JobCaller):
    opens: ClassVar[bool] = True
    job: Job[Segment, Transcript]

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._segments: list[Segment] = []
        self._transcript: Transcript | None = None
        self._began = time.perf_counter()

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
        if self.job.first_token is None:
            self.job.first_token = time.perf_counter() - self._began
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
