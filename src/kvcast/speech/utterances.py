"""Where a live window's sound lies, one utterance after the other, whatever hears it.

Knows no model, and not where utterances end.
"""

from abc import abstractmethod

import numpy as np
from typing_extensions import override

from kvcast.runtimes.base import Float32
from kvcast.speech.live_window import LiveWindow, Settled


class Utterances(LiveWindow):
    """A window whose every utterance is a text of its own."""

    def __init__(self, language: str, step: float) -> None:
        """Begin without sound; `language` is its code, and each `step` is worth a hypothesis."""
        self.start = self.decoded_to = 0
        self.step = step
        self._language = language
        self._sound: list[Float32] = []  # of this utterance, or before it
        self._end = 0
        self._begun = False

    @abstractmethod
    def hear(self, samples: Float32) -> None:
        """Take more sound of an utterance, at its beginning with what is kept before it."""

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
