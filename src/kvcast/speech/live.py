"""Live transcription: a window over audio that is still arriving, endpointing, and segments."""

import time
from abc import abstractmethod
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE, ArrayAudio, as_array
from kvcast.audio.stream import AudioStream
from kvcast.audio.vad import BLOCK, Change, Endpoints
from kvcast.runtimes.base import Float32


@dataclass(frozen=True, kw_only=True)
class ConfirmedWord:
    """A word that will not change; seconds count from the beginning of the stream."""

    text: str  # with its space; empty if only times were confirmed
    tokens: tuple[int, ...]
    ended: float | None  # end of the segment before it, if one ended
    started: float | None  # of its segment, if it is the first word
    spoken: float | None  # its end, if known


class LiveWindow(Protocol):
    """A window that moves along the audio.

    `start`, `decoded_to`: the window's first sample, and the one that the last hypothesis reaches,
    from the beginning of the stream. `step`: seconds of new audio that are worth a hypothesis.
    """

    start: int
    decoded_to: int
    step: float
    notices: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """Sample after the last one."""

    @property
    def room(self) -> int:
        """Samples that can still be added."""

    @property
    def language(self) -> str:
        """Code of the language."""

    @property
    def unconfirmed(self) -> str:
        """Text of the last hypothesis that is not confirmed."""

    def append(self, samples: Float32) -> None:
        """Add audio, at most as much as there is room for."""

    def keep_last(self, samples: int) -> None:
        """Drop the audio before these samples; there are no unconfirmed words."""

    def skip(self, samples: Float32, kept: int) -> None:
        """Skip audio without speech, and keep its last samples."""

    def transcribe(self) -> list[ConfirmedWord]:
        """Make a hypothesis, and return the words that it confirms."""

    def finish_utterance(self, speech_end: int) -> list[ConfirmedWord]:
        """Confirm the rest: the speaker stopped at sample `speech_end`, or was cut short."""

    def make_room(self) -> list[ConfirmedWord]:
        """Confirm and drop the beginning of a full window."""


class UtteranceWindow(LiveWindow):
    """A window whose every utterance is a separate text."""

    def __init__(self, language: str, step: float) -> None:
        self.start = self.decoded_to = 0
        self.step = step
        self._language = language
        self._waveforms: list[Float32] = []  # of this utterance, or before it
        self._end = 0
        self._begun = False

    @abstractmethod
    def add_audio(self, samples: Float32) -> None:
        """Take more audio of an utterance, at its start together with the audio kept before it."""

    @property
    @override
    def end(self) -> int:
        return self._end

    @property
    @override
    def language(self) -> str:
        return self._language

    @override
    def append(self, samples: Float32) -> None:
        self._waveforms.append(samples)
        self._end += len(samples)
        if not self._begun:
            self._begun = True
            samples = np.concatenate(self._waveforms)
        self.add_audio(samples)

    @override
    def keep_last(self, samples: int) -> None:
        waveform = np.concatenate([np.empty(0, np.float32), *self._waveforms])
        kept = waveform[max(0, len(waveform) - samples) :]
        self._waveforms = [kept]
        self.start = self._end - len(kept)
        self.decoded_to = max(self.decoded_to, self.start)

    @override
    def skip(self, samples: Float32, kept: int) -> None:
        self._waveforms.append(samples)
        self._end += len(samples)
        self.keep_last(kept)

    @override
    def make_room(self) -> list[ConfirmedWord]:
        confirmed = self.finish_utterance(self._end)
        self.keep_last(0)
        return confirmed


__all__ = ["AudioStream", "Delays", "LiveSegment", "LiveTranscription", "Update"]

_BEFORE = SAMPLE_RATE // 2  # samples decoded before an utterance: its onset, and silence
_LONGEST_LINE = 30.0  # seconds without a pause after which another line begins
_REMEMBERED = 120 * SAMPLE_RATE  # of arrivals: more than a line and the next window


@dataclass(frozen=True, kw_only=True)
class LiveSegment:
    """A line of confirmed text: an utterance, or a segment of a long one.

    Attributes:
        id: counts from 0.
        start, end: seconds from the beginning of the audio.
        text: as decoded; usually starts with a space.
        delay: seconds from the arrival of a word's end until it is confirmed; mean of its words.

    """

    id: int
    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    delay: float


@dataclass(frozen=True, kw_only=True)
class Update:
    """Text that was confirmed since the last update.

    Attributes:
        settled: text that follows the confirmed text of this line; it never changes.
        interim: text that may follow it; it replaces the last interim text.
        segment: the line, if it is complete. The next update begins another one.

    """

    settled: str
    interim: str = ""
    segment: LiveSegment | None = None


def least_samples(window: LiveWindow) -> int:
    """Return how many new samples are worth a hypothesis: whole blocks."""
    return max(1, round(window.step * SAMPLE_RATE) // BLOCK * BLOCK)


class Delays:
    """Delays of confirmed words, in buckets, so that a day takes no more memory than a minute."""

    _STEP = 0.05
    _BUCKETS = 2400

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._counts = np.zeros(self._BUCKETS, np.int64)

    def add(self, seconds: float) -> None:
        self.count += 1
        self.longest = max(self.longest, seconds)
        self._counts[min(int(seconds / self._STEP), self._BUCKETS - 1)] += 1

    def quantile(self, part: float) -> float:
        """Return the seconds within which this part of all words was confirmed, 0 without words."""
        if not self.count:
            return 0.0
        bucket = int(np.searchsorted(np.cumsum(self._counts), part * self.count))
        return min((bucket + 1) * self._STEP, self.longest)


class LiveTranscription:
    """Text of one audio stream, as it is confirmed.

    Feed it audio of any length, such as a microphone's buffers. A call returns when the audio is
    transcribed. Feed audio that arrives meanwhile in one piece, as `kvcast transcribe --live`
    does: then no audio piles up, however slow the machine.

    Attributes:
        delays: of all words so far.
        notices: for the user, one line each.

    """

    def __init__(
        self,
        window: LiveWindow,
        endpoints: Endpoints,
        *,
        notices: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Wait for audio; `clock` returns seconds, for arrivals of audio and for delays."""
        self.delays = Delays()
        self.notices = notices
        self._full_scale = 1.0  # of floats, as they were until now
        self._window = window
        self._endpoints = endpoints
        self._step = least_samples(window)
        self._clock = clock
        self._arrivals = _Arrivals()
        self._lines = _Lines(self._arrivals, self.delays)
        self._taken: list[NDArray[np.float32]] = []
        self._is_speech = False

    @override
    def __repr__(self) -> str:
        return f"<LiveTranscription: {self.duration:.1f} s, {self.delays.count} words confirmed>"

    @property
    def duration(self) -> float:
        """Seconds of audio so far."""
        return self._arrivals.samples / SAMPLE_RATE

    @property
    def language(self) -> str:
        """Code of the language: the given one, or the detected one once there is one."""
        return self._window.language

    def feed(self, samples: NDArray[Any]) -> list[Update]:
        """Transcribe more audio, and return the updates.

        Args:
            samples: at 16 kHz, as `kvcast.audio.decode.open_audio` takes an array.

        Raises:
            UsageError: for any other array.

        """
        self.take(samples)
        return self.update()

    def take(self, samples: NDArray[Any], at: float | None = None) -> None:
        """Receive audio that arrived `at` this time of the clock; `update` transcribes it."""
        samples = as_array(samples)
        audio = ArrayAudio(samples, name="the audio", full_scale=self._full_scale)
        blocks = list(audio.blocks())
        if audio.full_scale != self._full_scale and samples.dtype.kind == "f":
            self._full_scale = audio.full_scale
            self.notices += audio.notices
        self._taken += blocks
        self._arrivals.add(sum(map(len, blocks)), self._clock() if at is None else at)

    def update(self) -> list[Update]:
        """Transcribe all audio received by `take`, and return the updates."""
        samples = np.concatenate([np.empty(0, np.float32), *self._taken])
        self._taken.clear()
        updates: list[Update] = []
        for piece, change in self._endpoints.follow(samples):
            updates += self._take_piece(piece)
            if change is Change.BEGIN:
                self._is_speech = True
            elif change is Change.END:
                updates += self._end(self._window.end - self._endpoints.pause)
        if self._is_speech and self._window.end - self._window.decoded_to >= self._step:
            updates += self._updates(self._window.transcribe())
        return updates

    def finish(self) -> list[Update]:
        """Confirm the rest; call it once, when no more audio will come."""
        updates = self.update()
        if self._is_speech:
            updates += self._take_piece(self._endpoints.finish())
            updates += self._end(self._window.end)
        return updates

    def _take_piece(self, piece: NDArray[np.float32]) -> list[Update]:
        if not self._is_speech:
            self._window.skip(piece, _BEFORE)
            return []
        updates: list[Update] = []
        while len(piece):
            if not self._window.room:
                updates += self._updates(self._window.make_room())
            room = self._window.room
            self._window.append(piece[:room])
            piece = piece[room:]
        return updates

    def _end(self, speech_end: int) -> list[Update]:
        self._is_speech = False
        words = self._window.finish_utterance(speech_end)
        updates = self._updates(words, end=speech_end / SAMPLE_RATE)
        self._window.keep_last(min(_BEFORE, self._window.end - speech_end))
        return updates

    def _updates(self, words: Sequence[ConfirmedWord], end: float | None = None) -> list[Update]:
        """Put confirmed words into lines; `end` ends the last one."""
        now = self._clock()
        updates: list[Update] = []
        text = ""
        for word in words:
            ended = word.started if word.ended is None else word.ended
            if ended is None and self._window.start / SAMPLE_RATE > self._lines.overdue:
                ended = self._window.start / SAMPLE_RATE
            if ended is not None and (segment := self._lines.close(ended)):
                updates.append(Update(settled=text, segment=segment))
                text = ""
            if word.text:
                self._lines.add(word, now)
                text += word.text
        if end is not None:  # even without a segment: the interim text is gone
            updates.append(Update(settled=text, segment=self._lines.close(end)))
        elif text or self._window.unconfirmed:
            updates.append(Update(settled=text, interim=self._window.unconfirmed))
        return updates


class _Arrivals:
    """Arrival times of audio, as far back as a line may begin."""

    def __init__(self) -> None:
        self.samples = 0
        self._times: deque[tuple[int, float]] = deque()

    def add(self, samples: int, time: float) -> None:
        self.samples += samples
        self._times.append((self.samples, time))
        while self._times[0][0] < self.samples - _REMEMBERED:
            self._times.popleft()

    def when(self, seconds: float) -> float:
        at = bisect_left(self._times, (round(seconds * SAMPLE_RATE), -np.inf))
        return self._times[min(at, len(self._times) - 1)][1]


class _Lines:
    def __init__(self, arrivals: _Arrivals, delays: Delays) -> None:
        self._arrivals = arrivals
        self._delays = delays
        self._words: list[tuple[ConfirmedWord, float]] = []  # and when each was confirmed
        self._found = 0
        self._end = 0.0  # of the last line

    @property
    def overdue(self) -> float:
        return self._start + _LONGEST_LINE if self._words else np.inf

    def add(self, word: ConfirmedWord, now: float) -> None:
        self._words.append((word, now))

    def close(self, end: float) -> LiveSegment | None:
        words, start = self._words, self._start
        self._words = []
        text = "".join(word.text for word, _ in words)
        if not text.strip():
            return None
        self._end = end = max(start, end)
        segment = LiveSegment(
            id=self._found,
            start=start,
            end=end,
            text=text,
            tokens=tuple(token for word, _ in words for token in word.tokens),
            delay=float(np.mean(list(self._measure(words, start, end)))),
        )
        self._found += 1
        return segment

    @property
    def _start(self) -> float:
        started = self._words[0][0].started if self._words else None
        return self._end if started is None else max(self._end, started)

    def _measure(
        self, words: Sequence[tuple[ConfirmedWord, float]], start: float, end: float
    ) -> Iterator[float]:
        """Yield each word's delay; letters share the line's time where an end is unknown."""
        spoken = list(accumulate(len(word.text) for word, _ in words))
        for (word, confirmed), letters in zip(words, spoken, strict=True):
            word_end = word.spoken
            if word_end is None:
                word_end = start + (end - start) * letters / spoken[-1]
            delay = max(0.0, confirmed - self._arrivals.when(min(word_end, end)))
            self._delays.add(delay)
            yield delay
