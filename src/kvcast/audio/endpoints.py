"""Where utterances begin and end in sound that is still arriving.

The source of the probabilities of speech is an argument: Silero (`kvcast.audio.vad`),
or `Loudness`, which needs no model. Knows nothing of words.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE

BLOCK = 512
"""Samples that share a probability: 32 ms."""

Listener: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Given the next blocks of a recording [n, BLOCK], returns the probability of speech in each, [n]:

it has a state, so every recording needs a listener of its own.
"""

HYSTERESIS = 0.15
"""Speech goes on while its probability is at most this much below the threshold, as in Silero."""

ONSET = 3
"""Blocks of speech in a row that begin an utterance: a click is shorter, the shortest word longer.

Callers keep some sound before them."""


class Change(Enum):
    """The state of speech after a piece of sound."""

    NONE = "nothing"
    BEGIN = "an utterance begins"
    END = "an utterance is over"


class Endpoints:
    """Follows one stream of sound.

    Attributes:
        pause: samples without speech that end an utterance; the sound up to its end has as many.

    """

    def __init__(self, listener: Listener, *, threshold: float, pause: float) -> None:
        """Begin in silence.

        Args:
            listener: gives the probability of speech.
            threshold: probability from which on a block is speech.
            pause: seconds without speech that end an utterance.

        """
        self._listener = listener
        self._threshold = threshold
        self._pause = max(1, round(pause * SAMPLE_RATE / BLOCK))
        self.pause = self._pause * BLOCK
        self._held = np.empty(0, np.float32)
        self._is_speech = False
        self._run = 0  # blocks in a row that speak for a change

    def follow(self, samples: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], Change]]:
        """Yield the sound [n] in order, cut after every change; less than a block is held back."""
        samples = np.concatenate([self._held, samples])
        whole = len(samples) // BLOCK * BLOCK
        self._held = samples[whole:]
        if not whole:
            return
        begin = 0
        probabilities = self._listener(samples[:whole].reshape(-1, BLOCK)).tolist()
        for end, probability in zip(range(BLOCK, whole + 1, BLOCK), probabilities, strict=True):
            change = self._next(probability)
            if change is not Change.NONE or end == whole:
                yield samples[begin:end], change
                begin = end

    def finish(self) -> NDArray[np.float32]:
        """Return the probabilities that were held back."""
        held, self._held = self._held, np.empty(0, np.float32)
        return held

    def _next(self, probability: float) -> Change:
        if self._is_speech:
            self._run = self._run + 1 if probability < self._threshold - HYSTERESIS else 0
            change, needed = Change.END, self._pause
        else:
            self._run = self._run + 1 if probability >= self._threshold else 0
            change, needed = Change.BEGIN, ONSET
        if self._run < needed:
            return Change.NONE
        self._is_speech, self._run = not self._is_speech, 0
        return change


class Loudness:
    """Detects speech by loudness, well above the quietest moment of the last seconds.

    Any other loud sound passes for speech, too: a listener for quiet rooms. At first, and as long
    as sound does not tell otherwise, a room is taken to be as quiet as `_QUIET_ROOM`.
    """

    _MARGIN = 12.0  # dB
    _FAINTEST = -55.0  # dBFS; quieter sound is no speech
    _QUIET_ROOM = -67.0  # dBFS
    _MEMORY = round(10 * SAMPLE_RATE / BLOCK)

    def __init__(self) -> None:
        self._levels = deque([self._QUIET_ROOM], self._MEMORY)

    def __call__(self, blocks_nb: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return 1.0 for speech and 0.0 for the rest, [n]."""
        powers = np.mean(np.square(blocks_nb, dtype=np.float64), axis=1)
        return np.array([self._is_loud(level) for level in 10 * np.log10(powers + 1e-12)], "f4")

    def _is_loud(self, level: float) -> bool:
        self._levels.append(level)
        return level >= max(min(self._levels) + self._MARGIN, self._FAINTEST)
