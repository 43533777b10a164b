"""A live transcription with a word for every half second of audio, four words a line."""

from typing import Any, ClassVar

import numpy as np

from kvcast.speech.live import Delays, LiveSegment, Update

RATE = 16_000


class FakeLive:
    """Stands in for `LiveTranscription`; the word under way is interim."""

    def __init__(self, word: str = "w") -> None:
        self.delays = Delays()
        self.notices: tuple[str, ...] = ()
        self.samples = 0
        self.arrived: list[float | None] = []
        self._word = word
        self._said = 0

    @property
    def duration(self) -> float:
        return self.samples / RATE

    def take(self, samples: np.ndarray, at: float | None = None) -> None:
        assert samples.dtype == np.float32
        self.samples += len(samples)
        self.arrived.append(at)

    def update(self) -> list[Update]:
        updates = []
        while (self._said + 1) * RATE // 2 <= self.samples:
            self._said += 1
            self.delays.add(0.5)
            line = self._said % 4 == 0
            updates.append(
                Update(
                    settled=self._text(self._said),
                    interim="" if line else f"{self._text(self._said + 1)}?",
                    segment=self._segment(4) if line else None,
                )
            )
        return updates

    def finish(self) -> list[Update]:
        updates = self.update()
        if left := self._said % 4:
            updates.append(Update(settled="!", segment=self._segment(left)))
        return updates

    def _text(self, number: int) -> str:
        return f" {self._word}{number}"

    def _segment(self, words: int) -> LiveSegment:
        first = self._said - words
        return LiveSegment(
            id=first // 4,
            start=first / 2,
            end=self._said / 2,
            text="".join(self._text(first + 1 + i) for i in range(words)),
            tokens=tuple(range(first, self._said)),
            delay=0.51234,
        )


def pcm(seconds: float) -> bytes:
    return np.zeros(round(seconds * RATE), "<i2").tobytes()


def live_model(**settings: Any) -> Any:
    class Model:
        task = "transcribe"
        lives: ClassVar[list[tuple[FakeLive, dict[str, Any]]]] = []

        def live(self, **keywords: Any) -> FakeLive:
            self.lives.append((FakeLive(**settings), keywords))
            return self.lives[-1][0]

    return Model()
