"""Voxtral Realtime: one token for each 80 ms of audio, most of them padding.

Live, every piece is encoded once and gives one token, which never changes; a word is confirmed when
the next one begins. The text of an utterance equals the text of the same audio in a file.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalise
from kvcast.engine.requests import Input
from kvcast.families.causal_encoder import CausalEncoder, write_streamed_source
from kvcast.families.programs import StreamedSource
from kvcast.runtimes.base import EncoderDecoder, Float32, exclusive
from kvcast.speech.abilities import ABILITIES
from kvcast.speech.live import ConfirmedWord, UtteranceWindow
from kvcast.speech.recognition import (
    AudioFeatures,
    AudioTokenRecognition,
    SpeechContext,
)
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.decoder import TextStream


@dataclass(frozen=True, kw_only=True)
class FrameTiming:
    """How a model's audio and text advance.

    `features`: maps the samples of pieces, and `overlap` more, to features [pieces, n]. `overlap`:
    samples that a piece needs after its end. `most`: pieces of the longest audio with its silence.
    """

    source: StreamedSource
    features: Callable[[Float32], Float32]
    samples: int
    lead: int
    overlap: int
    silence: int
    after: int
    most: int
    prompt: Sequence[int]
    ends: Sequence[int]


class VoxtralRealtimeWindow(UtteranceWindow):
    def __init__(
        self,
        runtime: EncoderDecoder,
        timing: FrameTiming,
        stream: Callable[[], TextStream],
        *,
        language: str,
        step: float,
    ) -> None:
        super().__init__(language, step)
        self._runtime, self._timing, self._stream = runtime, timing, stream
        self._cache: Any = runtime.new_cache(1, timing.most, inputs=1)
        self._begin()

    def _begin(self) -> None:
        timing = self._timing
        self._begun, self._over, self._samples = False, False, 0
        silence = timing.silence * timing.samples
        self._waiting = np.zeros(timing.lead + silence, np.float32)
        self._cache = self._runtime.reset(self._cache, [0])
        self._source = self._runtime.stream(self._cache, 0, timing.source, timing.most)
        self._cache = self._runtime.reset(self._cache, [0], [0])
        self._given, self._fed = list(timing.prompt), 0  # tokens to feed, and how many were fed
        self._text, self._is_first = self._stream(), True
        self._word, self._tokens = "", list[int]()  # not confirmed yet
        self._spoken = 0  # pieces of audio up to the end of the word

    @property
    @override
    def room(self) -> int:
        timing, samples = self._timing, self._samples if self._begun else self.end - self.start
        return (timing.most - timing.after - timing.silence) * timing.samples - samples

    @property
    @override
    def unconfirmed(self) -> str:
        return self._word

    @override
    def add_audio(self, samples: Float32) -> None:
        self._samples += len(samples)
        self._encode(samples)

    @override
    def transcribe(self) -> list[ConfirmedWord]:
        self.decoded_to = self._end
        return list(self._confirmed_words(self._source.done))

    @override
    def finish_utterance(self, speech_end: int) -> list[ConfirmedWord]:
        timing, confirmed = self._timing, list[ConfirmedWord]()
        self.decoded_to = self._end
        if self._begun:
            rest = -self._samples % timing.samples + timing.after * timing.samples
            self._encode(np.zeros(rest + timing.lead, np.float32))
            # The last token is not fed.
            confirmed += self._confirmed_words(self._source.done - 1)
            self._add(self._text.finish())
            confirmed += self._confirm()
        self._begin()
        return confirmed

    def _encode(self, samples: Float32) -> None:
        timing = self._timing
        self._waiting = np.concatenate([self._waiting, samples])
        whole = (len(self._waiting) - timing.overlap) // timing.samples
        if whole > 0:
            length = whole * timing.samples
            self._source.listen(timing.features(self._waiting[: length + timing.overlap]))
            self._waiting = self._waiting[length:]

    def _confirmed_words(self, most: int) -> Iterator[ConfirmedWord]:
        """Decode until `most` tokens are fed; yield each word that a word or a pause follows."""
        for token in self._generate(most):
            piece = self._text.push(token)
            if not piece or piece.startswith(" "):
                yield from self._confirm()
            self._tokens.append(token)
            self._add(piece)

    def _generate(self, most: int) -> Iterator[int]:
        while not self._over and self._fed + len(self._given) <= most:
            with exclusive(self._runtime):
                given = [np.array(self._given, np.int64)]
                last = [len(self._given) - 1]
                logits, self._cache = self._runtime.decode(given, self._cache, positions=last)
                token = int(logits[0, -1].argmax())
            self._fed += len(self._given)
            self._given, self._over = [token], token in self._timing.ends
            if not self._over:
                yield token

    def _add(self, piece: str) -> None:
        """Append a piece of text to the word; the first begins with a space, as Whisper's do."""
        if piece:
            self._word += f" {piece}" if self._is_first and piece[0] != " " else piece
            self._spoken = self._fed - len(self._timing.prompt) + 1

    def _confirm(self) -> list[ConfirmedWord]:
        if not self._word:
            return []
        start, tokens = self.start / SAMPLE_RATE, tuple(self._tokens)
        end = min(self.start + self._spoken * self._timing.samples, self._end)
        started = start if self._is_first else None
        word = ConfirmedWord(
            text=self._word, tokens=tokens, ended=None, started=started, spoken=end / SAMPLE_RATE
        )
        self._word, self._tokens, self._is_first = "", [], False
        return [word]


_LOUDEST = np.float32(1.5)  # log10 of the power that features are floored below


class VoxtralRealtimeRecognition(AudioTokenRecognition):
    """One token per 80 ms frame, most of them padding; the language is auto-detected."""

    audio: CausalEncoder
    frame_synchronous = True
    abilities = ABILITIES["voxtral_realtime"]

    def __init__(self, tokenizer: TextTokenizer, audio: CausalEncoder, vocab_size: int) -> None:
        super().__init__(tokenizer, audio, vocab_size)
        begin, pad = self.special("<s>", "[STREAMING_PAD]")
        self._before = [begin, *[pad] * (audio.silence + audio.delay)]
        self.most_tokens = audio.positions - len(self._before)

    @property
    def _each(self) -> int:
        return HOP * self.audio.each

    @override
    def input(self, samples: Float32) -> Input:
        before = self.audio.silence * self._each
        after = -len(samples) % self._each + self.audio.after * self._each
        # Reflected, silence is silence.
        padded = np.pad(samples, (before + N_FFT // 2, after + N_FFT // 2 - HOP))
        return AudioFeatures(self._features(padded), self.audio)

    def _features(self, samples: Float32) -> Float32:
        log_mel_tm = log_mel_frames(samples, self.audio.n_mels)
        return normalise(log_mel_tm, _LOUDEST)

    @property
    def frame_timing(self) -> FrameTiming:
        return FrameTiming(
            source=write_streamed_source(self.audio),
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
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        return list(self._before)

    @override
    def tokens_of(self, seconds: float, context: SpeechContext) -> int:
        frames = -(-round(seconds * SAMPLE_RATE) // self._each)
        return self.audio.silence + frames + self.audio.after - len(self._before)
