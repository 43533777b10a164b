"""Moonshine: the encoder takes samples, and the decoder's prompt is one token.

Streaming Moonshine encodes each position once, when no later audio changes it. A hypothesis has two
texts, of these positions and of all audio so far; their common first words are final. The tokens of
the last hypothesis are drafts: verified in one call, and continued from the first rejected one.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.engine.requests import Input
from kvcast.families.moonshine import MoonshineDimensions, source_of
from kvcast.families.moonshine_encoder import write_streamed_source
from kvcast.families.programs import StreamedSource
from kvcast.runtimes.base import EncoderDecoder, Float32, exclusive
from kvcast.speech.abilities import abilities_of
from kvcast.speech.base import Answer
from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.speech.live import ConfirmedWord, LiveWindow, UtteranceWindow
from kvcast.speech.model import STEP, SpeechModel, check
from kvcast.speech.params import LiveParams
from kvcast.speech.recognition import UNKNOWN, Recognition, SpeechContext
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.decoder import TextStream

_LONGEST_UTTERANCE = 30  # seconds; a longer one becomes two
_LIVE = frozenset({"language", "step", "agreement", "pause", "vad_threshold", "best_of"})
"""Options of live audio that have an effect, or, as best_of, none at a temperature of 0."""
_FRAME = 160  # samples of 10 ms
_TOKENS_PER_SECOND, _TOKENS_PER_SECOND_OTHERWISE = 6.5, 13.0
"""Most tokens of a second of speech, as published: of English, and of other languages."""


@dataclass(frozen=True, eq=False)
class SampledInput(Input):
    samples: Float32
    dimensions: MoonshineDimensions

    # Lengths differ, and each chunk alone fills the encoder's GEMMs.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.dimensions.positions_of(len(self.samples))

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        return source_of(inputs[0].dimensions, [chunk.samples for chunk in inputs])


class MoonshineRecognition(Recognition):
    """One checkpoint per language: users pass which one; English by default."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: MoonshineDimensions) -> None:
        self.tokenizer = tokenizer
        self._dimensions = dimensions
        self.abilities = abilities_of(dimensions.architecture)
        self.ends = tokenizer.end_tokens
        self.longest = min(self.longest, self._longest // _FRAME)
        self.most_positions = dimensions.positions_of(self.longest * _FRAME)
        self.most_tokens = dimensions.target_positions - 1

    @property
    def _longest(self) -> int:
        return self._dimensions.padded_samples(self._dimensions.source_positions)

    @override
    def input(self, samples: Float32) -> Input:
        return SampledInput(samples, self._dimensions)

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        return [self._dimensions.start_token]

    @override
    def tokens_of(self, seconds: float, context: SpeechContext) -> int:
        rate = _TOKENS_PER_SECOND if context.language == "en" else _TOKENS_PER_SECOND_OTHERWISE
        # The published number counts the token before the text.
        return max(2, min(int(seconds * rate), self._dimensions.target_positions)) - 1


class MoonshineModel(SpeechModel):
    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        dimensions: MoonshineDimensions,
    ) -> None:
        recognition = MoonshineRecognition(tokenizer, dimensions)
        super().__init__(runtime, tokenizer, dimensions, recognition)

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> LiveWindow:
        dimensions, recognition = self.dimensions, self.recognition
        if not dimensions.frame:
            return super().streaming_window(params, answer)
        check(params, _LIVE)
        context, seconds = SpeechContext(language=self.language(params)), _LONGEST_UTTERANCE
        positions = dimensions.positions_of(seconds * SAMPLE_RATE)
        sizes = StreamingSizes(
            samples=dimensions.position_samples,
            ahead=dimensions.sees_ahead,
            positions=min(positions, dimensions.source_positions),
            tokens=recognition.tokens_of(seconds, context) + 1,
        )
        start, ends = dimensions.start_token, recognition.ends
        return StreamingMoonshineWindow(
            StreamingDecoder(
                self.runtime, write_streamed_source(dimensions), sizes, start=start, ends=ends
            ),
            self.tokenizer.stream,
            partial(recognition.tokens_of, context=context),
            language=context.language or UNKNOWN,
            agreement=params.agreement or 2,
            step=params.step or STEP,
        )


@dataclass(frozen=True, kw_only=True)
class StreamingSizes:
    """Sizes of a model that encodes audio as it arrives."""

    samples: int
    ahead: int  # later positions that an encoded position depends on
    positions: int
    tokens: int


class StreamingDecoder:
    def __init__(
        self,
        runtime: EncoderDecoder,
        source: StreamedSource,
        sizes: StreamingSizes,
        *,
        start: int,
        ends: Sequence[int],
    ) -> None:
        self._runtime, self._source, self._sizes = runtime, source, sizes
        self._start, self._ends = start, frozenset(ends)
        self._cache: Any = runtime.new_cache(1, sizes.tokens, inputs=1)
        self.begin()

    def begin(self) -> None:
        self._waiting = np.empty(0, np.float32)
        self._samples = 0
        self.confirmed: list[int] = []
        self._row: list[int] = []  # tokens that the cache holds
        self._cache = self._runtime.reset(self._cache, [0])
        self._stream = self._runtime.stream(self._cache, 0, self._source, self._sizes.positions)

    @property
    def room(self) -> int:
        # The rest of a position may follow, as one more.
        return (self._sizes.positions - 1) * self._sizes.samples - self._samples

    def add(self, samples: Float32) -> None:
        self._samples += len(samples)
        self._waiting = np.concatenate([self._waiting, samples])
        whole = len(self._waiting) // self._sizes.samples
        if whole > (0 if self._stream.done else self._sizes.ahead):
            self._encode(whole)

    def end(self) -> bool:
        """Encode the rest, as if the audio ended here; return whether there is any."""
        each = self._sizes.samples
        least = 0 if self._stream.done else self._sizes.ahead + 1
        whole = max(-(-len(self._waiting) // each), least if len(self._waiting) else 0)
        if whole:
            padding = whole * each - len(self._waiting)
            self._waiting = np.pad(self._waiting, (0, padding))
            self._encode(whole)
        if self._stream.done:
            self._stream.finish()
        return self._stream.held > 0

    def _encode(self, positions: int) -> None:
        samples = positions * self._sizes.samples
        self._stream.listen(self._waiting[:samples].reshape(positions, -1))
        self._waiting = self._waiting[samples:]

    def decode_stable(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of the positions that no later audio changes."""
        self._stream.forget()
        return self._decode(guess, most)

    def decode_so_far(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of all positions, as if the audio ended here."""
        if self._stream.done:
            self._stream.finish()
        return self._decode(guess, most)

    def decode_complete(self, guess: Sequence[int], most: int) -> list[int]:
        """Return the text of complete audio, after reading all confirmed tokens again."""
        self._row.clear()
        return self._decode(guess, most)

    def _decode(self, guess: Sequence[int], most: int) -> list[int]:
        """Return up to `most` tokens; these and `guess` begin with the confirmed ones."""
        kept, most = len(self.confirmed), min(most, self._sizes.tokens - 1)
        if not self._stream.held or most <= kept:
            return list(self.confirmed)
        with exclusive(self._runtime):  # a hypothesis at a time: steps of others take longer
            return self._continued([self._start, *guess[:most]], most)

    def _continued(self, fed: list[int], most: int) -> list[int]:
        """Verify draft tokens, and return the text decoded on from the first rejected one."""
        kept = len(self.confirmed)
        held = min(_alike(self._row, fed), kept)
        if held:
            self._cache = self._runtime.truncate(self._cache, [0], [held])
        else:
            self._cache = self._runtime.reset(self._cache, [0], [0])
        chosen = self._chosen(fed[held:], range(kept - held, len(fed) - held))
        same = _alike(fed[kept + 1 :], chosen)
        tokens, following = fed[1 : kept + 1 + same], chosen[same]
        self._cache = self._runtime.truncate(self._cache, [0], [len(tokens) + 1])
        self._row = [self._start, *tokens]
        while following not in self._ends and len(tokens) < most:
            tokens.append(following)
            if len(tokens) < most:
                [following] = self._chosen([following], range(1))
                self._row.append(tokens[-1])
        return tokens

    def _chosen(self, fed: Sequence[int], asked: range) -> list[int]:
        given = [np.array(fed, np.int64)]
        logits, self._cache = self._runtime.decode(given, self._cache, positions=asked)
        chosen: list[int] = logits[0].argmax(-1).tolist()
        return chosen


def _alike(tokens: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(tokens, others, strict=False)
    return next(
        (i for i, (token, other) in enumerate(pairs) if token != other),
        min(len(tokens), len(others)),
    )


class StreamingMoonshineWindow(UtteranceWindow):
    """One utterance after another, each a separate text."""

    def __init__(
        self,
        text: StreamingDecoder,
        stream: Callable[[], TextStream],
        most: Callable[[float], int],
        *,
        language: str,
        agreement: int,
        step: float,
    ) -> None:
        """Begin; `agreement`: successive hypotheses that confirm a word if they begin with it.

        The text that no later audio changes is one of them. `stream` starts decoding a text token
        by token; `most` returns the most tokens for a number of seconds; `step` is in seconds of
        new audio.
        """
        super().__init__(language, step)
        self._text, self._stream, self._most = text, stream, most
        self._space = "" if language in WITHOUT_SPACES else " "
        self._hypothesis: list[int] = []
        self._former: deque[list[int]] = deque(maxlen=agreement - 2)

    @property
    @override
    def room(self) -> int:
        return self._text.room if self._begun else self._text.room - (self.end - self.start)

    @property
    @override
    def unconfirmed(self) -> str:
        return "".join(self._pieces(self._hypothesis)[len(self._text.confirmed) :])

    @override
    def add_audio(self, samples: Float32) -> None:
        self._text.add(samples)

    @override
    def transcribe(self) -> list[ConfirmedWord]:
        self.decoded_to = self._end
        most = self._most((self._end - self.start) / SAMPLE_RATE)
        sure = self._text.decode_stable(self._hypothesis, most)
        hypothesis = self._text.decode_so_far(self._hypothesis, most)
        hypotheses = [*self._former, sure, hypothesis]
        self._former.append(hypothesis)
        self._hypothesis = hypothesis
        return self._confirm(_agreed(hypotheses))

    @override
    def finish_utterance(self, speech_end: int) -> list[ConfirmedWord]:
        confirmed: list[ConfirmedWord] = []
        self.decoded_to = self._end
        if self._begun and self._text.end():
            most = self._most((self._end - self.start) / SAMPLE_RATE)
            self._hypothesis = self._text.decode_complete(self._hypothesis, most)
            confirmed = self._confirm(len(self._hypothesis))
        self._text.begin()
        self._begun, self._hypothesis = False, []
        self._former.clear()
        return confirmed

    def _confirm(self, count: int) -> list[ConfirmedWord]:
        """Confirm whole words among the hypothesis's first `count` tokens; return the new ones."""
        pieces, first = self._pieces(self._hypothesis), len(self._text.confirmed)
        begins = [i for i in range(first, len(pieces)) if i == first or self._begins(pieces[i])]
        confirmed = [
            ConfirmedWord(
                text="".join(pieces[begin:end]),
                tokens=tuple(self._hypothesis[begin:end]),
                ended=None,
                started=self.start / SAMPLE_RATE if begin == 0 else None,
                spoken=None,
            )
            for begin, end in pairwise([*begins, len(pieces)])
            if end <= count
        ]
        self._text.confirmed += [token for word in confirmed for token in word.tokens]
        return confirmed

    def _begins(self, piece: str) -> bool:
        """Return whether a word begins with the piece; in languages without spaces, any does."""
        return bool(piece) and piece.startswith(self._space)

    def _pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text that each token adds; the last one adds all that remains."""
        stream = self._stream()
        pieces = [stream.push(token) for token in tokens]
        if pieces:
            pieces[-1] += stream.finish()
            if not pieces[0].startswith(self._space):  # as words of Whisper's begin
                pieces[0] = f"{self._space}{pieces[0]}"
        return pieces


def _agreed(hypotheses: Sequence[Sequence[int]]) -> int:
    count = 0
    for first, *others in zip(*hypotheses, strict=False):
        if any(other != first for other in others):
            break
        count += 1
    return count
