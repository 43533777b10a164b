"""Moonshine: the encoder takes samples, and the decoder's prompt is one token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.engine.requests import Input
from kvcast.families.moonshine import MoonshineDimensions, source_of
from kvcast.families.moonshine_encoder import streamed
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import abilities_of
from kvcast.speech.base import Answer
from kvcast.speech.chunks import UNKNOWN
from kvcast.speech.incremental import GrowingSizes, GrowingText, GrowingWindow
from kvcast.speech.live_window import LiveWindow
from kvcast.speech.model import STEP, SpeechModel, check
from kvcast.speech.params import LiveParams
from kvcast.speech.recognition import Hints, Recognition, Recognized
from kvcast.tokenizers.base import TextTokenizer

_LONGEST_UTTERANCE = 30
"""Seconds; a longer one becomes two."""
_LIVE = frozenset({"language", "step", "agreement", "pause", "vad_threshold", "best_of"})
"""Options of live audio that have an effect, or, as best_of, none at a temperature of 0."""
_FRAME = 160  # samples of 10 ms
_TOKENS_PER_SECOND, _TOKENS_PER_SECOND_OTHERWISE = 6.5, 13.0
"""Most tokens of a second of speech, as published: of English, and of other languages."""


@dataclass(frozen=True, eq=False)
class SampledInput(Input):
    """The samples of a chunk [n]."""

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
        return source_of(inputs[0].dimensions, [sound.samples for sound in inputs])


class MoonshineRecognition(Recognition):
    """One checkpoint per language: users pass which one; English by default."""

    def __init__(self, tokenizer: TextTokenizer, dimensions: MoonshineDimensions) -> None:
        self._tokenizer = tokenizer
        self._dimensions = dimensions
        self.abilities = abilities_of(dimensions.architecture)
        self.ends = tokenizer.end_tokens
        self.longest = min(self.longest, self._longest // _FRAME)
        self.most_positions = dimensions.positions_of(self.longest * _FRAME)
        self.most_tokens = dimensions.target_positions - 1

    @property
    def _longest(self) -> int:
        """Samples of the longest waveform that the model has positions for."""
        return self._dimensions.padded_samples(self._dimensions.source_positions)

    @override
    def input(self, samples: Float32) -> Input:
        return SampledInput(samples, self._dimensions)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        return [self._dimensions.start_token]

    @override
    def tokens_of(self, seconds: float, hints: Hints) -> int:
        rate = _TOKENS_PER_SECOND if hints.language == "en" else _TOKENS_PER_SECOND_OTHERWISE
        # The published number counts the token before the text.
        return max(2, min(int(seconds * rate), self._dimensions.target_positions)) - 1

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Recognized:
        text = self._tokenizer.decode(tokens).strip()
        return Recognized(text=text, language=hints.language)


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
        hints, seconds = Hints(language=self.language(params)), _LONGEST_UTTERANCE
        positions = dimensions.positions_of(seconds * SAMPLE_RATE)
        sizes = GrowingSizes(
            samples=dimensions.position_samples,
            ahead=dimensions.sees_ahead,
            positions=min(positions, dimensions.source_positions),
            tokens=recognition.tokens_of(seconds, hints) + 1,
        )
        start, ends = dimensions.start_token, recognition.ends
        return GrowingWindow(
            GrowingText(self.runtime, streamed(dimensions), sizes, start=start, ends=ends),
            self.tokenizer.stream,
            partial(recognition.tokens_of, hints=hints),
            language=hints.language or UNKNOWN,
            agreement=params.agreement or 2,
            step=params.step or STEP,
        )
