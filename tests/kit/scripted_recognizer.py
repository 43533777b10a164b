"""Sound whose words are known, and a model that hears them imperfectly.

A sample's value is its step of 20 ms, counted from 1, so a window of sound says where it lies.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.endpoints import BLOCK
from kvcast.whisper.agreement import Place, Unit
from kvcast.whisper.streaming_window import LONGEST, Hypothesis, Recognizer

STEP = 320
RATE = SAMPLE_RATE


@dataclass(frozen=True)
class Word:
    """What is said in these samples; `opens` a segment."""

    start: int
    end: int
    text: str
    opens: bool


def speech(
    count: int, *, seed: int = 0, pause_every: int = 25, segment_every: int = 8
) -> list[Word]:
    """Return words of 0.1 to 0.5 s in segments, with a pause of 1.5 s now and then."""
    rng = random.Random(seed)
    words: list[Word] = []
    at = 50 * STEP
    for number in range(count):
        paused = number % pause_every == 0
        opens = paused or number % segment_every == 0
        at += 75 * STEP if paused and number else 0
        end = at + rng.randint(5, 25) * STEP
        words.append(Word(at, end, f" w{number}", opens))
        at = end + rng.randint(0, 3) * STEP
    return words


def sound(start: int, end: int) -> NDArray[np.float32]:
    """Return samples `start` to `end`."""
    return (np.arange(start, end) // STEP + 1).astype(np.float32)


def listener(words: Sequence[Word]):
    """Return what tells speech from silence, block by block."""
    starts = np.array([word.start for word in words])
    ends = np.array([word.end for word in words])
    heard = 0

    def listen(blocks_nb: NDArray[np.float32]) -> NDArray[np.float32]:
        nonlocal heard
        assert blocks_nb.shape[1] == BLOCK
        begins = heard + BLOCK * np.arange(len(blocks_nb))
        heard += blocks_nb.size
        # Speech if the last word that began before the block's end reaches into it.
        last = np.searchsorted(starts, begins + BLOCK) - 1
        return ((last >= 0) & (ends[last] > begins)).astype(np.float32)

    return listen


@dataclass
class ScriptedRecognizer(Recognizer):
    """Hears every word that is over, and guesses at the end; notes what it cost.

    Attributes:
        words: all that is said.
        late: samples at the end of a window in which words are not understood yet.
        failures: hypotheses from here on that run in circles, unless decoded thoroughly.
        breaks: hypotheses that end where a second segment begins, without a word of it.
        jitter: how far times between words are off, in steps.
        unsure: words that are improbable.
        respells: whether words that end more than 4 s before the end get another spelling.

    """

    words: Sequence[Word]
    late: int = 10 * STEP
    failures: frozenset[int] = frozenset()
    breaks: frozenset[int] = frozenset()
    jitter: int = 3
    unsure: frozenset[int] = frozenset()
    respells: bool = False
    language: str = "en"
    room: int = 224
    decoded: int = 0
    samples: int = 0
    thorough: int = 0
    prompts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(1)
        self._index = {word.text: number for number, word in enumerate(self.words)}

    def keep_language(self) -> None:
        """Nothing to keep."""

    def listen(self, samples: NDArray[np.float32]) -> tuple[int, int]:
        assert 0 < len(samples) <= LONGEST
        head = sum(1 for _ in takewhile(lambda value: value == samples[0], samples[:STEP]))
        start = int(samples[0]) * STEP - head
        assert np.array_equal(samples, sound(start, start + len(samples)))
        return start, start + len(samples)

    def decode(
        self,
        heard: tuple[int, int],
        *,
        prompt: Sequence[int],
        written: Sequence[Unit],
        thoroughly: bool,
    ) -> Hypothesis:
        start, end = heard
        self.decoded += 1
        self.samples += end - start
        self.thorough += thoroughly
        self.prompts.append(len(prompt))
        assert len(prompt) <= self.room
        if self.decoded in self.failures and not thoroughly:
            return Hypothesis(units=[Unit((0,), (1,), " round")] * 9, doubtful=True)
        at = self._next(start, written)
        units: list[Unit] = []
        while at < len(self.words) and self.words[at].start < end:
            word = self.words[at]
            if units and self.decoded in self.breaks and self._goes_on(at):
                return Hypothesis(
                    units=[*units, Unit(self._stamps(at, start, opens=False), (), "")]
                )
            understood = word.end <= end - self.late
            text = word.text if understood else f" ~{self._rng.random()}"
            if self.respells and word.end < end - 4 * RATE:
                text = text.replace(" w", " V")
            stamps = self._stamps(at, start, opens=not (written or units))
            units.append(Unit(stamps, (at,), text))
            at += 1
        if units:
            units.append(Unit(((min(self.words[at - 1].end, end) - start) // STEP,), (), ""))
        return Hypothesis(units=units)

    def places(self, heard: tuple[int, int], units: Sequence[Unit]) -> list[Place]:
        start, end = heard
        spoken = [self.words[unit.tokens[0]] for unit in units if unit.tokens]
        assert spoken == sorted(spoken, key=lambda word: word.start)
        places: list[Place] = []
        for unit in units:
            last = self.words[unit.tokens[0]].end if unit.tokens else end
            off = self._rng.randint(-self.jitter, self.jitter)
            probability = 0.1 if self.unsure.intersection(unit.tokens) else 1.0
            places.append(Place(max(0, (min(last, end) - start) // STEP + off), probability))
        return places

    def _goes_on(self, at: int) -> bool:
        """Tell whether a segment begins that has several words."""
        words = self.words[at : at + 5]
        pauses = (after.start - before.end > RATE // 2 for before, after in pairwise(words))
        return words[0].opens and len(words) == 5 and not any(pauses)

    def _next(self, start: int, written: Sequence[Unit]) -> int:
        if written:
            return self._index[written[-1].text] + 1
        middles = ((word.start + word.end) // 2 >= start for word in self.words)
        return next((at for at, is_heard in enumerate(middles) if is_heard), len(self.words))

    def _stamps(self, at: int, start: int, *, opens: bool) -> tuple[int, ...]:
        own = max(0, (self.words[at].start - start) // STEP)
        if opens:
            return (own,)
        if self.words[at].opens:
            return max(0, (self.words[at - 1].end - start) // STEP), own
        return ()


def seconds(samples: int) -> float:
    """Return the seconds that so many samples take."""
    return samples / RATE
