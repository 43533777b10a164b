"""Granite Speech: a conversation in which a user asks for a transcript of the sound.

The question is the published one, and the model's own template writes it. Knows no recording and no
runtime.
"""

from collections.abc import Mapping, Sequence

from typing_extensions import override

from kvcast.audio.paired_mel import paired_log_mel
from kvcast.engine.requests import Input
from kvcast.families.sound_encoder import SoundEncoder
from kvcast.runtimes.base import Float32
from kvcast.speech.hearing import Hearing, Sound
from kvcast.speech.languages import LANGUAGES
from kvcast.speech.recognition import Heard, Hints
from kvcast.tokenizers.base import TextTokenizer

_SOUND = "<|audio|>"
# Of one day: without a system message templates tell today's date, and texts would change with it.
_SYSTEM = (
    "Knowledge Cutoff Date: April 2024.\nToday's Date: April 9, 2025.\n"
    "You are Granite, developed by IBM. You are a helpful AI assistant"
)
_QUESTION = f"{_SOUND}can you transcribe the speech into a written format?"


class GraniteRecognition(Hearing):
    """The sound is the beginning of a question; what language it is in, the model hears."""

    languages: Mapping[str, str] = {
        code: LANGUAGES[code] for code in ("en", "fr", "de", "es", "pt", "ja")
    }

    def __init__(self, tokenizer: TextTokenizer, audio: SoundEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        (sound,) = self.special(_SOUND)
        messages = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _QUESTION},
        ]
        tokens = tokenizer.encode_chat_ready(messages)
        place = tokens.index(sound)
        self._before, self._after = tokens[:place], tokens[place + 1 :]

    @override
    def input(self, samples: Float32) -> Input:
        return Sound(paired_log_mel(samples, self.audio.n_mels // 2), self.audio)

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        return [*self._before, *self.sound(positions), *self._after]

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=hints.language)
