"""Qwen3-ASR, Voxtral and Granite Speech: decoder-only models with audio embeddings in the prompt.

Prompts follow transformers' processors and, for Granite, IBM's model cards.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from kvcast.audio.mel import HOP, paired_log_mel
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.audio_encoder import AudioEncoder
from kvcast.runtimes.base import EncoderDecoder, Float32
from kvcast.speech.abilities import ABILITIES
from kvcast.speech.base import Answer
from kvcast.speech.live import LiveWindow
from kvcast.speech.model import STEP, SpeechModel, check
from kvcast.speech.params import LiveParams
from kvcast.speech.recognition import (
    UNKNOWN,
    AudioFeatures,
    AudioTokenRecognition,
    Recognition,
    Recognized,
    SpeechContext,
    features_of,
)
from kvcast.speech.voxtral_realtime import VoxtralRealtimeRecognition, VoxtralRealtimeWindow
from kvcast.tokenizers.base import TextTokenizer

_AUDIO = "<|audio|>"
# A fixed date: templates without a system message insert today's, which would change the text.
_SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
_TRANSCRIBE = f"{_AUDIO}can you transcribe the speech into a written format?"
_WITH_KEYWORDS = f"{_AUDIO}transcribe the speech to text. Keywords:{_AUDIO}"
_TRANSLATE = f"{_AUDIO}translate the speech to English with proper punctuation and capitalization."
_TRANSLATE_WITH_KEYWORDS = f"{_AUDIO}translate the speech to English. Keywords:{_AUDIO}"
"""Instructions: the first mark is replaced by the audio, another one by names and terms."""


class GraniteRecognition(AudioTokenRecognition):
    """Audio first, then the question; the language is auto-detected."""

    abilities = ABILITIES["granite_speech"]

    def __init__(self, tokenizer: TextTokenizer, audio: AudioEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        [self._mark] = self.special(_AUDIO)
        self._asked: dict[str, list[list[int]]] = {}
        self._around(_TRANSCRIBE)  # raises if there is no template

    def _around(self, question: str) -> list[list[int]]:
        if question not in self._asked:
            messages = [
                {"role": "system", "content": _SYSTEM},
                {"role": "user", "content": question},
            ]
            parts: list[list[int]] = [[]]
            for token in self.tokenizer.encode_chat_ready(messages):
                if token == self._mark:
                    parts.append([])
                else:
                    parts[-1].append(token)
            if len(parts) != 1 + question.count(_AUDIO):
                raise KvcastError("the chat template changes the question")
            self._asked[question] = parts
        return self._asked[question]

    @override
    def input(self, samples: Float32) -> Input:
        return AudioFeatures(paired_log_mel(samples, self.audio.n_mels // 2), self.audio)

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        audio = self.audio_tokens(positions)
        if not context.prompt:
            before, after = self._around(_TRANSLATE if context.translates else _TRANSCRIBE)
            return [*before, *audio, *after]
        asked = _TRANSLATE_WITH_KEYWORDS if context.translates else _WITH_KEYWORDS
        before, question, after = self._around(asked)
        return [*before, *audio, *question, *self.tokenizer.encode(f" {context.prompt}"), *after]


_SHORTEST = 8000  # samples of the shortest input of Qwen3-ASR; shorter audio is padded with silence
_LIVE = frozenset({"language", "step", "pause", "vad_threshold", "best_of"})
"""Options of live audio that have an effect, or, as best_of, none at a temperature of 0."""

_REPEATED = 20  # copies of up to so many characters are one, if there are so many of them


class QwenRecognition(AudioTokenRecognition):
    """Qwen3-ASR: the system message has the context, the answer begins with the language."""

    abilities = ABILITIES["qwen3_asr"]
    _codes: ClassVar[Mapping[str, str]] = {name: code for code, name in abilities.languages.items()}

    def __init__(self, tokenizer: TextTokenizer, audio: AudioEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        self._begin, self._end = self.special("<|im_start|>", "<|im_end|>")
        self._audio_begin, self._audio_end = self.special("<|audio_start|>", "<|audio_end|>")
        self._text = tokenizer.encode_ready("<asr_text>")

    @override
    def input(self, samples: Float32) -> Input:
        short = max(0, _SHORTEST - len(samples))
        padded = np.pad(samples, (0, short))
        return AudioFeatures(features_of(padded, self.audio.n_mels), self.audio)

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        encode, newline = self.tokenizer.encode, self.tokenizer.encode("\n")
        answer = encode("assistant\n")
        if context.language is not None:
            named = f"assistant\nlanguage {self.abilities.languages[context.language]}"
            answer = [*encode(named), *self._text]
        return [
            *(self._begin, *encode(f"system\n{context.prompt}"), self._end, *newline),
            *(self._begin, *encode("user\n"), self._audio_begin, *self.audio_tokens(positions)),
            *(self._audio_end, self._end, *newline, self._begin, *answer),
        ]

    @override
    def read(self, tokens: Sequence[int], context: SpeechContext) -> Recognized:
        # Tokenizers differ in whether the marker is special, so that its text is left out.
        size, given = len(self._text), list(tokens)
        places = (i for i in range(len(given)) if given[i : i + size] == self._text)
        place, language = next(places, None), context.language
        if language is None and place is not None:
            named = self.tokenizer.decode(given[:place]).strip()
            language = self._codes.get(named.removeprefix("language ").strip())
            given = given[place + size :]
        text = self.tokenizer.decode(given).strip()
        return Recognized(text=without_repetitions(text), language=language)


def without_repetitions(text: str) -> str:
    """Return the text with anything repeated 20 times or more reduced to one copy."""
    text = re.sub(rf"(.)\1{{{_REPEATED},}}", r"\1", text, flags=re.DOTALL)
    if len(text) < 2 * _REPEATED:
        return text
    return re.sub(rf"(.{{1,{_REPEATED}}}?)\1{{{_REPEATED - 1},}}", r"\1", text, flags=re.DOTALL)


class VoxtralRecognition(AudioTokenRecognition):
    """Voxtral: an instruction of audio alone, then the language, then the transcribe token."""

    abilities = ABILITIES["voxtral"]

    def __init__(self, tokenizer: TextTokenizer, audio: AudioEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        names = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[/INST]", "[TRANSCRIBE]")
        *self._before, self._after, self._order = self.special(*names)

    @override
    def input(self, samples: Float32) -> Input:
        whole = np.zeros(self.audio.frames * HOP, np.float32)
        whole[: len(samples)] = samples
        return AudioFeatures(features_of(whole, self.audio.n_mels), self.audio)

    @override
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        language: list[int] = []
        if context.language is not None:
            named = self.tokenizer.encode(f"lang:{context.language}")
            language = named[1:] if named[:1] == self._before[:1] else named
        audio = self.audio_tokens(positions)
        return [*self._before, *audio, self._after, *language, self._order]


RECOGNITIONS: Mapping[str, Callable[[TextTokenizer, Any, int], Recognition]] = {
    "granite_speech": GraniteRecognition,
    "qwen3_asr": QwenRecognition,
    "voxtral": VoxtralRecognition,
    "voxtral_realtime": VoxtralRealtimeRecognition,
}  # by the dimensions' architecture


class AudioDecoderModel(SpeechModel):
    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        dimensions: AudioDecoderDimensions,
    ) -> None:
        if dimensions.architecture not in RECOGNITIONS:
            raise KvcastError(
                f"this kvcast does not support {dimensions.architecture} models: update it"
            )
        recognition = RECOGNITIONS[dimensions.architecture](
            tokenizer, dimensions.audio, dimensions.vocab_size
        )
        super().__init__(runtime, tokenizer, dimensions, recognition)

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> LiveWindow:
        frame_timing = self.recognition.frame_timing
        if frame_timing is None:
            return super().streaming_window(params, answer)
        check(params, _LIVE)
        return VoxtralRealtimeWindow(
            self.runtime,
            frame_timing,
            self.tokenizer.stream,
            language=self.language(params) or UNKNOWN,
            step=params.step or STEP,
        )
