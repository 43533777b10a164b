"""The interface of a window over live audio, whose words settle, and its utterances."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from typing_extensions import override

from kvcast.runtimes.base import Float32


@dataclass(frozen=True, kw_only=True)
class Settled:
    """A word that will not change; seconds count from the beginning of the stream.

    Attributes:
        text: with its space; empty if only times were settled.
        ended: when the segment before it ended, if one did.
        started: when its segment starts, if it is the first word.
        spoken: when it ends, if known.

    """

    text: str
    tokens: tuple[int, ...]
    ended: float | None
    started: float | None
    spoken: float | None


class LiveWindow(Protocol):
    """A window that moves along the audio.

    Attributes:
        start: of the window, in samples from the beginning of the stream.
        decoded_to: sample up to which the last hypothesis reaches.
        step: seconds of new audio that are worth a hypothesis.
        notices: for the user, about the options, one line each.

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
    def supposed(self) -> str:
        """Text of the last hypothesis that is not settled."""

    def append(self, samples: Float32) -> None:
        """Add audio, at most as much as there is room for."""

    def keep_last(self, samples: int) -> None:
        """Drop the audio before these samples; there are no unsettled words."""

    def skip(self, samples: Float32, kept: int) -> None:
        """Skip audio without speech, and keep its last samples."""

    def listen(self) -> list[Settled]:
        """Make a hypothesis, and return the words that it settles."""

    def conclude(self, speech_end: int) -> list[Settled]:
        """Settle the rest: the speaker stopped at sample `speech_end`, or was cut short."""

    def make_room(self) -> list[Settled]:
        """Settle and drop the beginning of a full window."""


class Utterances(LiveWindow):
    """A window whose every utterance is a separate text."""

    def __init__(self, language: str, step: float) -> None:
        """Begin without audio; `language` is its code, and each `step` is worth a hypothesis."""
        self.start = self.decoded_to = 0
        self.step = step
        self._language = language
        self._sound: list[Float32] = []  # of this utterance, or before it
        self._end = 0
        self._begun = False

    @abstractmethod
    def hear(self, samples: Float32) -> None:
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
        self._sound.append(samples)
        self._end += len(samples)
        if not self._begun:
            self._begun = True
            samples = np.concatenate(self._sound)
        self.hear(samples)

    @override
    def keep_last(self, samples: int) -> None:
        sound = np.concatenate([np.empty(0, np.float32), *self._sound])
        kept = sound[max(0, len(sound) - samples) :]
        self._sound = [kept]
        self.start = self._end - len(kept)
        self.decoded_to = max(self.decoded_to, self.start)

    @override
    def skip(self, samples: Float32, kept: int) -> None:
        self._sound.append(samples)
        self._end += len(samples)
        self.keep_last(kept)

    @override
    def make_room(self) -> list[Settled]:
        settled = self.conclude(self._end)
        self.keep_last(0)
        return settled
