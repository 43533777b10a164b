"""The base class of transcriptions: segments that are decoded while they are taken."""

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from typing import Self

from typing_extensions import override

from kvcast.audio.timeline import Part
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.in_threads import each_in_thread
from kvcast.machine.progress_bar import ProgressBar
from kvcast.transcripts.segments import Formats, Segment, Transcript


class SegmentStream(Iterator[Segment], Formats):
    """A recording's segments, decoded while they are taken; then iterating begins anew.

    `segments`, `text` and the formats decode the rest first.
    """

    _closed: bool  # after the last segment, an error, or `close`

    def __init__(self) -> None:
        self.shows_progress = False
        self._bar: ProgressBar | None = None
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
        if self._closed:
            return iter(tuple(self._decoded))
        if self.shows_progress and self._bar is None:
            self._bar = ProgressBar("transcribing", self.duration, "s")
        return self

    def note(self, segment: Segment) -> Segment:
        """Keep a segment that is decoded, and return it."""
        self._decoded.append(segment)
        if self._bar is not None:
            self._bar.reach(segment.end)
        return segment

    def note_end(self) -> None:
        if self._bar is not None:
            self._bar.reach(self.duration)
            self._bar.close()

    def __aiter__(self) -> AsyncIterator[Segment]:
        """Yield the segments, decoded in a thread."""
        return each_in_thread(iter(self))

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
        name, count = type(self).__name__, len(self._decoded)
        if not (count or self._closed):
            return f"<{name}: nothing decoded yet; iterate over it, or take its text>"
        return f"<{name}: {count} segments{'' if self._closed else ' so far'}>"
