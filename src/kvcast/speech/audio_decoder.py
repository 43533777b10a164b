"""Qwen3-ASR, Voxtral and Granite Speech: decoders whose prompt has the embeddings of an excerpt.

Prompts are those that transformers' processors write. Knows no recording and no runtime.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.audio.mel import HOP
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.sound_encoder import SoundEncoder
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import ABILITIES
from kvcast.speech.granite_speech import GraniteRecognition
from kvcast.speech.hearing import Hearing, Sound, features_of
from kvcast.speech.live_model import Answer
from kvcast.speech.live_window import LiveWindow
from kvcast.speech.model import STEP, SpeechModel, check
from kvcast.speech.paced_window import PacedWindow
from kvcast.speech.params import LiveParams
from kvcast.speech.passages import UNKNOWN
from kvcast.speech.recognition import Heard, Hints, Recognition
from kvcast.speech.voxtral_realtime import VoxtralRealtimeRecognition
from kvcast.tokenizers.base import TextTokenizer

_SHORTEST = 8000
"""Samples of the shortest sound that Qwen3-ASR is given; silence follows a shorter one."""

_LIVE = frozenset({"language", "step", "pause", "vad_threshold", "best_of"})
"""Options of live sound that have an effect, or, as best_of, none at a temperature of 0."""

_REPEATED = 20
"""Copies of up to so many characters are one, if there are so many of them."""


class QwenRecognition(Hearing):
    """Qwen3-ASR: the system message has the context, the answer begins with the language."""

    abilities = ABILITIES["qwen3_asr"]
    _codes: ClassVar[Mapping[str, str]] = {name: code for code, name in abilities.languages.items()}

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        self._begin, self._end = self.special("<|im_start|>", "<|im_end|>")
        self._sound_begin, self._sound_end = self.special("<|audio_start|>", "<|audio_end|>")
        self._text = tokenizer.encode_ready("<asr_text>")

    @override
    def input(self, samples: Float32) -> Input:
        short = max(0, _SHORTEST - len(samples))
        padded = np.pad(samples, (0, short))
        return Sound(features_of(padded, self.audio.n_mels), self.audio)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        encode, newline = self.tokenizer.encode, self.tokenizer.encode("\n")
        answer = encode("assistant\n")
        if hints.language is not None:
            named = f"assistant\nlanguage {self.abilities.languages[hints.language]}"
            answer = [*encode(named), *self._text]
        return [
            *(self._begin, *encode(f"system\n{hints.context}"), self._end, *newline),
            *(self._begin, *encode("user\n"), self._sound_begin, *self.sound(positions)),
            *(self._sound_end, self._end, *newline, self._begin, *answer),
        ]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        # Tokenizers differ in whether the marker is special, so that its text is left out.
        size, given = len(self._text), list(tokens)
        places = (i for i in range(len(given)) if given[i : i + size] == self._text)
        place, language = next(places, None), hints.language
        if language is None and place is not None:
            named = self.tokenizer.decode(given[:place]).strip()
            language = self._codes.get(named.removeprefix("language ").strip())
            given = given[place + size :]
        text = self.tokenizer.decode(given).strip()
        return Heard(text=without_repetitions(text), language=language)


def without_repetitions(text: str) -> str:
    """Return a text in which what is written 20 times and more stands once."""
    text = re.sub(rf"(.)\1{{{_REPEATED},}}", r"\1", text, flags=re.DOTALL)
    if len(text) < 2 * _REPEATED:
        return text
    return re.sub(rf"(.{{1,{_REPEATED}}}?)\1{{{_REPEATED - 1},}}", r"\1", text, flags=re.DOTALL)


class VoxtralRecognition(Hearing):
    """Voxtral: an instruction of sound alone, then the language, then the order to transcribe."""

    abilities = ABILITIES["voxtral"]

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        names = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[/INST]", "[TRANSCRIBE]")
        *self._before, self._after, self._order = self.special(*names)

    @override
    def input(self, samples: Float32) -> Input:
        whole = np.zeros(self.audio.frames * HOP, np.float32)
        whole[: len(samples)] = samples
        return Sound(features_of(whole, self.audio.n_mels), self.audio)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        language: list[int] = []
        if hints.language is not None:
            named = self.tokenizer.encode(f"lang:{hints.language}")
            language = named[1:] if named[:1] == self._before[:1] else named
        sound = self.sound(positions)
        return [*self._before, *sound, self._after, *language, self._order]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=hints.language)


RECOGNITIONS: Mapping[str, Callable[[TextTokenizer, Any, int], Recognition]] = {
    "granite_speech": GraniteRecognition,
    "qwen3_asr": QwenRecognition,
    "voxtral": VoxtralRecognition,
    "voxtral_realtime": VoxtralRealtimeRecognition,
}
"""By the dimensions' architecture."""


class AudioDecoderModel(SpeechModel):
    """A decoder that hears."""

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        dimensions: AudioDecoderDimensions,
    ) -> None:
        if dimensions.architecture not in RECOGNITIONS:
            raise KvcastError(f"this kvcast knows no {dimensions.architecture} models: update it")
        recognition = RECOGNITIONS[dimensions.architecture](
            tokenizer, dimensions.audio, dimensions.vocab_size
        )
        super().__init__(runtime, tokenizer, dimensions, recognition)

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> LiveWindow:
        pacing = self.recognition.pacing
        if pacing is None:
            return super().streaming_window(params, answer)
        check(params, _LIVE)
        return PacedWindow(
            self.runtime,
            pacing,
            self.tokenizer.stream,
            language=self.language(params) or UNKNOWN,
            step=params.step or STEP,
        )
