"""Transcribes a session's turns: confirmed words while they last, then the rest.

The audio of a turn arrives on one thread and is transcribed on another, which may take longer.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.source import Resampler
from kvcast.audio.stream import decode_a_law, decode_mu_law
from kvcast.engine import Engine, Job
from kvcast.engine.callers import Policy
from kvcast.server.realtime.events import TranscriptionSettings
from kvcast.speech.live import ConfirmedWord, LiveWindow, least_samples

Samples: TypeAlias = NDArray[np.float32]

_FULL_SCALE = np.float32(2**15)


class Coding(NamedTuple):
    """How samples lie in bytes: `width` bytes each."""

    width: int
    decode: Callable[[bytes], NDArray[np.int16]]


CODINGS: Mapping[str, Coding] = {
    "audio/pcm": Coding(2, lambda data: np.frombuffer(data, "<i2").astype(np.int16)),
    "audio/pcmu": Coding(1, decode_mu_law),
    "audio/pcma": Coding(1, decode_a_law),
}  # by the protocol's names


class SessionAudio:
    def __init__(self, coding: str, rate: int) -> None:
        self._coding = CODINGS[coding]
        self._rate = rate
        self._held = b""
        self._resampler = Resampler(rate)

    def feed(self, data: bytes) -> Samples:
        """Return the samples [n] that these bytes complete; few or none at first."""
        data = self._held + data
        whole = len(data) // self._coding.width * self._coding.width
        self._held = data[whole:]
        samples = self._coding.decode(data[:whole]).astype(np.float32)
        return self._resampler.feed(samples / _FULL_SCALE)

    def finish(self) -> Samples:
        """Return the resampler's rest of the audio; the next samples begin another stream."""
        rest = self._resampler.feed(np.empty(0, np.float32), last=True)
        self._held, self._resampler = b"", Resampler(self._rate)
        return rest


class PolicyRunner:
    """Runs one policy at a time on engines, until it is cancelled."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._job: Job[Any, Any] | None = None
        self._over = False

    def __call__(self, engine: Engine, policy: Policy[Any]) -> Any:
        job = self._job = engine.submit(policy, deadline=self._timeout)
        if self._over:  # since before there was something to give up
            job.cancel()
        return job.result()

    def give_up(self) -> None:
        self._over = True
        if (job := self._job) is not None:
            job.cancel()


class SpokenTurn:
    """The audio of one turn, which becomes an item of the conversation.

    `text`: so far; deltas never change. `error`: why it has no text, or no more of it.
    """

    def __init__(self, item: str, settings: TranscriptionSettings) -> None:
        self.item = item
        self.settings = settings
        self.samples = 0
        self.text = ""
        self.dropped = False
        self.error: Exception | None = None
        self._waiting: list[Samples] = []
        self._silence: int | None = None
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        return self._silence is not None

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(map(len, self._waiting))

    def add(self, samples: Samples) -> None:
        self.samples += len(samples)
        with self._lock:
            self._waiting.append(samples)

    def end(self, silence: int) -> None:
        """End it; so many samples at its end are silent."""
        with self._lock:
            self._silence = silence

    def take(self) -> tuple[Samples, int | None]:
        """Take the audio that waits, and the silence at the end if this is all."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            return np.concatenate([np.empty(0, np.float32), *waiting]), self._silence


@dataclass(frozen=True)
class TurnUpdate:
    turn: SpokenTurn
    delta: str
    done: bool


class TurnTranscriber:
    def __init__(self, opening: Callable[[TranscriptionSettings], LiveWindow]) -> None:
        self._opening = opening
        self._turns: deque[SpokenTurn] = deque()
        self._window: LiveWindow | None = None
        self._settings: TranscriptionSettings | None = None

    def add(self, turn: SpokenTurn) -> None:
        self._turns.append(turn)

    @property
    def waiting(self) -> float:
        return sum(turn.waiting for turn in list(self._turns)) / SAMPLE_RATE

    @property
    def ready(self) -> bool:
        if not self._turns:
            return False
        turn, window = self._turns[0], self._window
        if turn.ended or turn.dropped or window is None:
            return turn.ended or turn.dropped or turn.waiting > 0
        return turn.waiting + window.end - window.decoded_to >= least_samples(window)

    def transcribe(self) -> list[TurnUpdate]:
        """Transcribe the waiting audio of the first turn; returns its new text. Takes a while."""
        turn = self._turns[0]
        samples, silence = turn.take()
        text = ""
        if turn.error is None and not turn.dropped:
            try:
                text = "".join(word.text for word in self._words(turn, samples, silence))
            except Exception as error:  # of this turn alone
                turn.error = error
        dropped = turn.dropped  # another thread sets it, at any time
        if turn.error is not None or dropped:
            self._window = None  # it may have encoded half of a turn
        if dropped:
            self._turns.popleft()
            return []
        delta = text if turn.text else text.lstrip()
        turn.text += delta
        done = silence is not None
        if done:
            self._turns.popleft()
        return [TurnUpdate(turn, delta, done)] if delta or done else []

    def _words(
        self, turn: SpokenTurn, samples: Samples, silence: int | None
    ) -> list[ConfirmedWord]:
        window = self._window
        if window is None or self._settings != turn.settings:
            window = self._window = self._opening(turn.settings)
            self._settings = turn.settings
        words: list[ConfirmedWord] = []
        while len(samples):
            if not window.room:
                words += window.make_room()
            room = window.room
            window.append(samples[:room])
            samples = samples[room:]
        if silence is not None:
            words += window.finish_utterance(window.end - silence)
            window.keep_last(0)
        elif window.end - window.decoded_to >= least_samples(window):
            words += window.transcribe()
        return words
