"""Voxtral Realtime: sound and text advance together, a token for each 80 ms.

Silence lies around the sound, as transformers' processor pads it: before it tokens tell of nothing,
and after it the text ends, which comes later than what is said. Knows no recording and no runtime.
"""

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalised
from kvcast.engine.requests import Input
from kvcast.families.causal_encoder import CausalEncoder, streamed
from kvcast.runtimes.base import Float32
from kvcast.speech.abilities import ABILITIES
from kvcast.speech.hearing import Hearing, Sound
from kvcast.speech.paced_window import Pacing
from kvcast.speech.recognition import Heard, Hints
from kvcast.tokenizers.base import TextTokenizer

_LOUDEST = np.float32(1.5)  # log10 of the power that features are floored below


class VoxtralRealtimeRecognition(Hearing):
    """A text as long as its sound, in whose tokens most say nothing; it hears the language."""

    audio: CausalEncoder
    paced = True
    abilities = ABILITIES["voxtral_realtime"]

    def __init__(self, tokenizer: TextTokenizer, audio: CausalEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        begin, pad = self.special("<s>", "[STREAMING_PAD]")
        self._before = [begin, *[pad] * (audio.silence + audio.delay)]
        self.most_tokens = audio.positions - len(self._before)

    @property
    def _each(self) -> int:
        """Samples of a token."""
        return HOP * self.audio.each

    @override
    def input(self, samples: Float32) -> Input:
        before = self.audio.silence * self._each
        after = -len(samples) % self._each + self.audio.after * self._each
        # Reflected, silence is silence.
        padded = np.pad(samples, (before + N_FFT // 2, after + N_FFT // 2 - HOP))
        return Sound(self._features(padded), self.audio)

    def _features(self, samples: Float32) -> Float32:
        log_mel_tm = log_mel_frames(samples, self.audio.n_mels)
        return normalised(log_mel_tm, _LOUDEST)

    @property
    def pacing(self) -> Pacing:
        """How sound is heard live."""
        return Pacing(
            source=streamed(self.audio),
            features=lambda samples: self._features(samples).reshape(
                -1, self.audio.each * self.audio.n_mels
            ),
            samples=self._each,
            lead=N_FFT // 2,
            overlap=N_FFT - HOP,
            silence=self.audio.silence,
            after=self.audio.after,
            most=self.audio.positions,
            prompt=self._before,
            ends=self.ends,
        )

    @override
    def prompt(self, positions: int, hints: Hints) -> list[int]:
        return list(self._before)

    @override
    def tokens_of(self, seconds: float, hints: Hints) -> int:
        sound = -(-round(seconds * SAMPLE_RATE) // self._each)
        return self.audio.silence + sound + self.audio.after - len(self._before)

    @override
    def read(self, tokens: Sequence[int], hints: Hints) -> Heard:
        return Heard(text=self.tokenizer.decode(tokens).strip(), language=hints.language)
