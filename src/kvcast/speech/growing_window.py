"""A live window of models that encode sound as it comes (`kvcast.speech.growing`).

Every hypothesis is two: the text of the positions that no later sound changes, and that of all
sound so far. Words with which both begin are settled, so a word settles about as long after its
sound as the model looks ahead. Knows no model, and not where utterances end.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.runtimes.base import Float32
from kvcast.speech.growing import GrowingText
from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.speech.live_window import Settled
from kvcast.speech.utterances import Utterances
from kvcast.tokenizers.stream import TextStream


class GrowingWindow(Utterances):
    """One utterance after another, each a text of its own."""

    def __init__(
        self,
        text: GrowingText,
        stream: Callable[[], TextStream],
        most: Callable[[float], int],
        *,
        language: str,
        agreement: int,
        step: float,
    ) -> None:
        """Begin without sound.

        Args:
            text: of an utterance.
            stream: starts decoding a text token by token.
            most: gives the most tokens of so many seconds.
            language: its code.
            agreement: successive hypotheses that have to begin with a word before it is settled;
                the text of what no later sound changes is one of them.
            step: seconds of new sound that are worth a hypothesis.

        """
        super().__init__(language, step)
        self._text, self._stream, self._most = text, stream, most
        self._space = "" if language in WITHOUT_SPACES else " "
        self._supposed: list[int] = []
        self._former: deque[list[int]] = deque(maxlen=agreement - 2)

    @property
    @override
    def room(self) -> int:
        return self._text.room if self._begun else self._text.room - (self.end - self.start)

    @property
    @override
    def supposed(self) -> str:
        return "".join(self._pieces(self._supposed)[len(self._text.settled) :])

    @override
    def hear(self, samples: Float32) -> None:
        self._text.hear(samples)

    @override
    def listen(self) -> list[Settled]:
        self.decoded_to = self._end
        most = self._most((self._end - self.start) / SAMPLE_RATE)
        sure = self._text.surely(self._supposed, most)
        supposed = self._text.supposedly(self._supposed, most)
        hypotheses = [*self._former, sure, supposed]
        self._former.append(supposed)
        self._supposed = supposed
        return self._settle(_agreed(hypotheses))

    @override
    def conclude(self, speech_end: int) -> list[Settled]:
        settled: list[Settled] = []
        self.decoded_to = self._end
        if self._begun and self._text.end():
            most = self._most((self._end - self.start) / SAMPLE_RATE)
            self._supposed = self._text.wholly(self._supposed, most)
            settled = self._settle(len(self._supposed))
        self._text.begin()
        self._begun, self._supposed = False, []
        self._former.clear()
        return settled

    def _settle(self, count: int) -> list[Settled]:
        """Settle whole words among the first supposed tokens, and return the new ones."""
        pieces, first = self._pieces(self._supposed), len(self._text.settled)
        begins = [i for i in range(first, len(pieces)) if i == first or self._begins(pieces[i])]
        settled = [
            Settled(
                text="".join(pieces[begin:end]),
                tokens=tuple(self._supposed[begin:end]),
                ended=None,
                started=self.start / SAMPLE_RATE if begin == 0 else None,
                spoken=None,
            )
            for begin, end in pairwise([*begins, len(pieces)])
            if end <= count
        ]
        self._text.settled += [token for word in settled for token in word.tokens]
        return settled

    def _begins(self, piece: str) -> bool:
        """Tell whether a word begins with the piece: any does in languages without spaces."""
        return bool(piece) and piece.startswith(self._space)

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token, all that there is at the last one."""
        stream = self._stream()
        pieces = [stream.push(token) for token in tokens]
        if pieces:
            pieces[-1] += stream.finish()
            if not pieces[0].startswith(self._space):  # as words of Whisper's begin
                pieces[0] = f"{self._space}{pieces[0]}"
        return pieces


def _agreed(hypotheses: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens with which all hypotheses begin."""
    count = 0
    for first, *others in zip(*hypotheses, strict=False):
        if any(other != first for other in others):
            break
        count += 1
    return count
