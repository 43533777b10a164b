"""Channels are transcribed one by one, and their segments interleaved by time.

A call with a speaker on each channel becomes a dialogue.
"""

import heapq
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from operator import attrgetter
from typing import Self, TypeAlias

from typing_extensions import override

from kvcast.audio.decode import AudioInput
from kvcast.audio.source import ChannelAudio, ChannelSource
from kvcast.audio.timeline import Part, common
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import open_recording
from kvcast.speech.segment_stream import SegmentStream
from kvcast.speech.transcription import Memory, Transcription
from kvcast.transcripts.segments import Segment

AnyTranscription: TypeAlias = "Transcription | ChannelTranscription"


def by_channel(
    recording: AudioInput,
    params: TranscribeParams,
    begun: Callable[[AudioInput], Transcription],
) -> "ChannelTranscription":
    return ChannelTranscription(
        lambda: open_recording(recording, params),
        lambda audio, channel: begun(ChannelAudio(audio, channel)),
        with_words=params.word_timestamps,
    )


class ChannelTranscription(SegmentStream):
    """Segments of all channels of one recording, by their starts."""

    def __init__(
        self,
        opening: Callable[[], ChannelSource],
        begin: Callable[[ChannelSource, int], Transcription],
        *,
        with_words: bool,
    ) -> None:
        """Prepare; nothing is opened or decoded yet. `begin` takes a channel's number, from 0."""
        super().__init__()
        self._opening, self._begin, self._with_words = opening, begin, with_words
        self._close = ExitStack()
        self._channels: list[Transcription] = []
        self._merged: Iterator[Segment] | None = None
        self._closed = False
        self.before_opening: Callable[[], None] = lambda: None
        self._memory: Memory | None = None

    def remember(self, memory: Memory) -> bool:
        self._memory = memory
        return True

    def open(self) -> Self:
        """Open the recording now; raises the errors of `Transcription.open`."""
        if not self._channels:
            self.before_opening()
            with ExitStack() as opened:
                audio = self._opening()
                opened.callback(audio.close)
                for channel in range(audio.channels):
                    transcription = opened.enter_context(self._begin(audio, channel))
                    if self._memory is not None:
                        transcription.remember(self._memory)
                    self._channels.append(transcription.open())
                self._close = opened.pop_all()
            self._merged = heapq.merge(
                *(_labelled(part, number) for number, part in enumerate(self._channels, start=1)),
                key=attrgetter("start"),
            )
        return self

    @property
    @override
    def language(self) -> str:
        """Language code of the first channel; each segment has its `language`."""
        return self.open()._channels[0].language

    @property
    @override
    def duration(self) -> float:
        return self.open()._channels[0].duration

    @property
    @override
    def notices(self) -> tuple[str, ...]:
        """Notices for the user, one line each; about the file only once."""
        every = (notice for channel in self.open()._channels for notice in channel.notices)
        return tuple(dict.fromkeys(every))

    @property
    @override
    def skipped(self) -> tuple[Part, ...] | None:
        """Parts that were left out because nobody speaks on any channel; None without `vad`."""
        skipped = [channel.skipped for channel in self.open()._channels]
        return reduce(lambda a, b: None if a is None or b is None else common(a, b), skipped)

    @property
    @override
    def draft(self) -> DraftCounts | None:
        counts = [channel.draft for channel in self.open()._channels]
        return DraftCounts.total([c for c in counts if c is not None]) if any(counts) else None

    @override
    def __next__(self) -> Segment:
        if self._merged is None:
            self.open()
        assert self._merged is not None
        if (segment := next(self._merged, None)) is None:
            self.note_end()
            self.close()
            raise StopIteration
        words = segment.words if self._with_words else None
        return self.note(replace(segment, id=len(self._decoded), words=words))

    @override
    def close(self) -> None:
        self._closed = True
        self._close.close()


def _labelled(transcription: Transcription, channel: int) -> Iterator[Segment]:
    for segment in transcription:
        yield replace(segment, channel=channel)
