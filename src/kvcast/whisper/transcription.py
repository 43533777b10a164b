"""A recording becomes segments, as each is done.

Without a batch, windows follow one another as in openai/whisper's transcribe.py; in a batch, the
recording is cut where it is quiet, and the excerpts are decoded together. Knows no file formats
and no runtime.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from kvcast.decoding.speculation import DraftCounts
from kvcast.runtimes.base import Float32
from kvcast.whisper.batch import Batch, Recording
from kvcast.whisper.decoding import DecodingOptions, Features
from kvcast.whisper.detection import detect
from kvcast.whisper.excerpts import QuietEnding, excerpts
from kvcast.whisper.params import TranscribeParams
from kvcast.whisper.passage import Passage
from kvcast.whisper.segments import FRAMES_PER_SECOND, Segment, placed
from kvcast.whisper.sound import Windows
from kvcast.whisper.turns import Turns

if TYPE_CHECKING:
    from kvcast.audio.timeline import Part

__all__ = ["Segment", "Transcription", "clipped_frames"]

_AHEAD = 4
"""Passages that are begun before the first of them is over, for each that a batch holds."""


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


class Transcription(Iterator[Segment], Recording):
    """Segments of one recording, decoded while they are taken; can be taken once.

    The recording is opened when something of it is asked for, and released when the last segment
    was taken, or by `close`. Others in its batch are decoded meanwhile.

    Attributes:
        before_opening: is called right before the recording is opened; by default it does nothing.

    """

    def __init__(
        self,
        batch: Batch,
        opening: Callable[[], Windows],
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
    ) -> None:
        """Prepare; nothing is opened or decoded yet.

        Args:
            batch: decodes it, perhaps together with others.
            opening: opens the recording; called once at most.
            attempts: how to decode a window first, and after each rejection; one at least.
            params: all other options.

        """
        self._batch = batch
        self._opening = opening
        self._attempts = attempts
        self._params = params
        self._upcoming = self._passages()
        self._begun: deque[Passage] = deque()
        self._all_begun = self._closed = False
        self._error: Exception | None = None
        self._notices: list[str] = []
        self._drafts: list[DraftCounts] = []
        self._taken = 0
        self.before_opening: Callable[[], None] = lambda: None
        batch.add(self)

    def open(self) -> Self:
        """Open the recording now; raises what `kvcast.audio.features.open_features` does."""
        _ = self._windows
        return self

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self._windows.duration

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know, one line each."""
        frames = self._windows.content_frames
        clips = clipped_frames(self._params, frames)
        empty = [
            f"the clip from {start:g} s is past the end, {self.duration:.2f} s"
            if first >= frames
            else f"the clip from {start:g} s is shorter than 10 ms"
            for (start, _), (first, end) in zip(self._params.clips, clips, strict=True)
            if first >= end and frames
        ]
        return (*self._windows.notices, *empty, *self._notices)

    @property
    def skipped(self) -> "tuple[Part, ...] | None":
        """Parts that were left out because they are no speech; None without `vad`."""
        return self._windows.skipped

    @property
    def draft(self) -> DraftCounts | None:
        """What became of drafted tokens in what is over by now; None without `draft`."""
        if self._params.draft is None:
            return None
        return DraftCounts.total(self._drafts)

    @cached_property
    def language(self) -> str:
        """Code of the language: the one asked for, or else detected in the first 30 seconds."""
        decoder = self._batch.decoder
        if (language := self._attempts[0].language) is not None:
            return decoder.tokenizer.language_code(language)
        if not decoder.tokenizer.is_multilingual:
            return "en"
        return detect(decoder, self._windows, self._params).language

    @property
    def over(self) -> bool:
        """Whether all segments were taken, or it was closed."""
        return self._closed

    def __next__(self) -> Segment:
        """Decode as far as the next segment takes."""
        while (segment := self.take()) is None:
            if self._closed:
                raise StopIteration
            self._step()
        return segment

    def take(self) -> Segment | None:
        """Return the next segment if it is done; None if it is not, or all is over.

        Raises what went wrong.
        """
        while not self._closed:
            first = self._begun[0] if self._begun else None
            if first is not None and first.segments:
                self._taken += 1
                segment = placed(first.segments.popleft(), self._windows.timeline)
                return replace(segment, id=self._taken - 1)
            if first is not None and first.over:
                self._drafts += self._begun.popleft().drafts
                for seconds, notice in first.notices:
                    begun, _ = self._windows.timeline.original(seconds, seconds)
                    self._notices.append(f"from {begun:.2f} s {notice}")
            elif self._error is not None:
                self.close()
                raise self._error
            elif first is None and self._all_begun:
                self.close()
            else:
                break
        return None

    def close(self) -> None:
        """Stop, and release the recording."""
        self._closed = True
        self._batch.remove(self)
        self._upcoming.close()
        if "_windows" in self.__dict__:  # it was opened
            self._windows.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @override
    def passage(self) -> Passage | None:
        if len(self._begun) >= _AHEAD * self._batch.size:
            return None
        passage = next(self._upcoming, None)
        if passage is None:
            self._all_begun = True
        else:
            self._begun.append(passage)
        return passage

    @override
    def fail(self, error: Exception) -> None:
        self._error = error

    @cached_property
    def _windows(self) -> Windows:
        self.before_opening()
        return self._opening()

    def _step(self) -> None:
        try:
            self._batch.step()
        except BaseException:
            self.close()
            raise

    def _passages(self) -> Generator[Passage]:
        # Known before the recording is released, whether windows are decoded in it or not.
        language = self.language
        clips = clipped_frames(self._params, self._windows.content_frames)
        clips = [clip for clip in clips if clip[0] < clip[1]]
        if not clips:
            return
        tokenizer = self._batch.decoder.tokenizer
        attempts = self._attempts
        if not self._params.multilingual:
            attempts = [replace(options, language=language) for options in attempts]
        passage = partial(Passage, params=self._params, tokenizer=tokenizer)
        turns = [self._turns(clip) for clip in clips]
        if self._params.batch is None:
            yield passage(self._windows, clips, attempts=attempts, turns=turns)
            return
        ending = QuietEnding(tokenizer.timestamp_begin)
        joints = self._windows.timeline.joints
        for clip, spoken in zip(clips, turns, strict=True):
            stop = None if spoken is None else spoken.stop
            for excerpt in excerpts(self._windows, clip, joints, stop=stop):
                if spoken is not None:
                    code = spoken.at(excerpt.first).language
                    attempts = [replace(options, language=code) for options in attempts]
                place = [(excerpt.first, excerpt.end)]
                yield passage(excerpt, place, attempts=attempts, ending=ending)
                attempts = [replace(options, prefix=None) for options in attempts]

    def _turns(self, clip: tuple[int, int]) -> Turns | None:
        if not self._params.multilingual:
            return None
        decoder = self._batch.decoder

        def detected(window_mt: Float32) -> dict[str, float]:
            return decoder.detect_languages([Features(window_mt)])[0]

        return Turns(self._windows, clip, detected)
