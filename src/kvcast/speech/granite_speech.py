"""Granite Speech: a conversation in which a user asks for a transcript of the sound.

Questions are those of IBM's model cards, and the model's own template writes them. Knows no
recording and no runtime.
"""

from collections.abc import Sequence

from typing_extensions import override

from kvcast.audio.paired_mel import paired_log_mel
from kvcast.engine.requests import Input
from kvcast.errors import KvcastError
from kvcast.families.sound_encoder import SoundEncoder
from kvcast.runtimes.base import Float32
from kvcast.speech.abilities import ABILITIES
from kvcast.speech.hearing import Hearing, Sound
from kvcast.speech.recognition import Heard, Hints
from kvcast.tokenizers.base import TextTokenizer

_SOUND = "<|audio|>"
# Of one day: without a system message templates tell today's date, and texts would change with it.
_SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
_TRANSCRIBE = f"{_SOUND}can you transcribe the speech into a written format?"
_WITH_HINTS = f"{_SOUND}transcribe the speech to text. Keywords:{_SOUND}"
_TRANSLATE = f"{_SOUND}translate the speech to English with proper punctuation and capitalization."
_TRANSLATE_WITH_HINTS = f"{_SOUND}translate the speech to English. Keywords:{_SOUND}"
"""What is asked: the first mark stands for the sound, another one for names and terms."""


class GraniteRecognition(Hearing):
    """The sound is the beginning of a question; what language it is in, the model hears."""

    abilities = ABILITIES["granite_speech"]

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        [self._mark] = self.special(_SOUND)
        self._asked: dict[str, list[list[int]]] = {}
        self._around(_TRANSCRIBE)  # raises if there is no template

    def _around(self, question: str) -> list[list[int]]:
        """Return the tokens before, between and after the marks of a question."""
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
            if len(parts) != 1 + question.count(_SOUND):
                raise KvcastError("the chat template does not write a question as it is")
            self._asked[question] = parts
        return self._asked[question]

    @override
    def input(self, samples: Float32) -> Input:
        return Sound(paired_log_mel(samples, self.audio.n_mels // 2), self.audio)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        sound = self.sound(positions)
        if not hints.context:
            before, after = self._around(_TRANSLATE if hints.translates else _TRANSCRIBE)
            return [*before, *sound, *after]
        asked = _TRANSLATE_WITH_HINTS if hints.translates else _WITH_HINTS
        before, question, after = self._around(asked)
        return [*before, *sound, *question, *self.tokenizer.encode(f" {hints.context}"), *after]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        language = "en" if hints.translates else hints.language
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=language)
