"""Transcribes the channels of a recording one by one, and interleaves their segments by time.

So a call with a speaker on each channel becomes a dialogue.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import TYPE_CHECKING, Self, TypeAlias

from typing_extensions import override

from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.speech.transcription import Transcription
from kvcast.transcripts.segments import Segment

if TYPE_CHECKING:
    from kvcast.audio.decode import AudioInput
    from kvcast.audio.source import ChannelSource
    from kvcast.audio.timeline import Part
    from kvcast.speech.params import TranscribeParams

AnyTranscription: TypeAlias = "Transcription | ChannelTranscription"


def by_channel(
    recording: "AudioInput",
    params: "TranscribeParams",
    begun: "Callable[[AudioInput], Transcription]",
) -> "ChannelTranscription":
    """Return a transcription of a recording's channels, each of which `begun` begins."""
    from kvcast.audio.source import ChannelAudio
    from kvcast.speech.voice import open_recording

    return ChannelTranscription(
        lambda: open_recording(recording, params),
        lambda audio, channel: begun(ChannelAudio(audio, channel)),
        with_words=params.word_timestamps,
    )


class ChannelTranscription(Iterator[Segment]):
    """Segments of all channels of one recording, by their starts; see `Transcription`."""

    def __init__(
        self,
        opening: "Callable[[], ChannelSource]",
        begin: "Callable[[ChannelSource, int], Transcription]",
        *,
        with_words: bool,
    ) -> None:
        """Prepare; nothing is opened or decoded yet.

        Args:
            opening: opens the recording; called once at most.
            begin: begins to transcribe a channel, counted from 0, with words.
            with_words: whether segments keep their words.

        """
        self._opening, self._begin, self._with_words = opening, begin, with_words
        self._close = ExitStack()
        self._channels: list[Transcription] = []
        self._segments: Iterator[Segment] | None = None
        self._taken = 0
        self.before_opening: Callable[[], None] = lambda: None

    def open(self) -> Self:
        """Open the recording now; raises the errors of `Transcription.open`."""
        if not self._channels:
            self.before_opening()
            with ExitStack() as opened:
                audio = self._opening()
                opened.callback(audio.close)
                for channel in range(audio.channels):
                    transcription = opened.enter_context(self._begin(audio, channel))
                    self._channels.append(transcription.open())
                self._close = opened.pop_all()
            self._segments = heapq.merge(
                *(_labelled(part, number) for number, part in enumerate(self._channels, start=1)),
                key=attrgetter("start"),
            )
        return self

    @property
    def language(self) -> str:
        """Language code of the first channel; each segment has its `language`."""
        return self.open()._channels[0].language

    @property
    def duration(self) -> float:
        """Seconds of the whole recording."""
        return self.open()._channels[0].duration

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user, one line each; about the file only once."""
        every = (notice for channel in self.open()._channels for notice in channel.notices)
        return tuple(dict.fromkeys(every))

    @property
    def skipped(self) -> "tuple[Part, ...] | None":
        """Parts that were left out because nobody speaks on any channel; None without `vad`."""
        from kvcast.audio.timeline import common

        skipped = [channel.skipped for channel in self.open()._channels]
        return reduce(lambda a, b: None if a is None or b is None else common(a, b), skipped)

    @property
    def draft(self) -> DraftCounts | None:
        """Counts of drafted tokens in finished windows; None without `draft`."""
        counts = [channel.draft for channel in self.open()._channels]
        return DraftCounts.total([c for c in counts if c is not None]) if any(counts) else None

    @override
    def __next__(self) -> Segment:
        if self._segments is None:
            self.open()
        assert self._segments is not None
        if (segment := next(self._segments, None)) is None:
            self.close()
            raise StopIteration
        self._taken += 1
        words = segment.words if self._with_words else None
        return replace(segment, id=self._taken - 1, words=words)

    def close(self) -> None:
        self._close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _labelled(transcription: Transcription, channel: int) -> Iterator[Segment]:
    for segment in transcription:
        yield replace(segment, channel=channel)
