"""Recognition by models without windows: inputs, prompts, and a request for each chunk."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.features import SampledAudio
from kvcast.audio.mel import HOP, N_FFT, log_mel_frames, normalise
from kvcast.decoding.logits_processors import LogitsProcessor, NoRepeatNgram, RepetitionPenalty
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.callers import Policy
from kvcast.engine.requests import Input, Prompt, Request
from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import AudioEncoder
from kvcast.runtimes.base import Float32, Int32, Int64
from kvcast.speech.abilities import Abilities
from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import chunk_frames
from kvcast.speech.strategies import MaximumLikelihood, SearchRequest, Strategy
from kvcast.speech.transcription import Plan, RecordingPart, clipped_frames
from kvcast.tokenizers.base import TextTokenizer
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Segment, Word, compression_ratio

if TYPE_CHECKING:
    from kvcast.speech.voxtral_realtime import FrameTiming


@dataclass(frozen=True, kw_only=True)
class SpeechContext:
    """Facts that users know: the language, and text with names and terms to expect."""

    language: str | None = None
    prompt: str = ""
    translates: bool = False


@dataclass(frozen=True, kw_only=True)
class Recognized:
    """The text of a chunk."""

    text: str
    language: str | None = None  # reported by the model or given by the user
    words: tuple[Word, ...] | None = None  # seconds from the chunk's start
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A request's tokens for a chunk; `logprob` is the sum of their logprobs."""

    tokens: tuple[int, ...]
    logprob: float
    recognized: Recognized


class Recognition(ABC):
    """How a model transcribes a chunk.

    `refused`: names of options of `kvcast.speech.model.TAKEN` that it does not support.
    `frame_synchronous`: whether text and audio advance together, so that `tokens_of` is exact.
    `longest`: frames of 10 ms in a chunk, at most. `most_tokens`: of the longest chunk's text,
    unless the user says otherwise.
    """

    tokenizer: TextTokenizer
    abilities: Abilities
    refused: frozenset[str] = frozenset()
    frame_synchronous: bool = False
    longest: int = 28 * FRAMES_PER_SECOND
    most_tokens: int = 512
    most_positions: int
    ends: Sequence[int]

    @abstractmethod
    def input(self, samples: Float32) -> Input:
        """Return the encoder's input for mono samples at 16 kHz [n], of at most `longest`."""

    @abstractmethod
    def prompt(self, positions: int, context: SpeechContext) -> list[int]:
        """Return the tokens before the text of a chunk of `positions` encoded positions."""

    def tokens_of(self, seconds: float, context: SpeechContext) -> int:  # noqa: ARG002
        """Return the most tokens of a chunk's text, unless the user says otherwise."""
        return self.most_tokens

    def read(self, tokens: Sequence[int], context: SpeechContext) -> Recognized:
        """Return the text of the tokens after the prompt, which exclude the end token."""
        language = "en" if context.translates else context.language
        return Recognized(text=self.tokenizer.decode(tokens).strip(), language=language)

    def special(self, *texts: str) -> list[int]:
        known = self.tokenizer.control_tokens(texts)
        for text in texts:
            if text not in known:
                raise KvcastError(f"the tokenizer has no token {text}: it is another model's")
        return [known[text] for text in texts]

    def request(self, source: Input) -> Request | None:  # noqa: ARG002 - most search for a text
        """Return the request of a model without a search (a transducer); None for others."""
        return None

    @property
    def frame_timing(self) -> "FrameTiming | None":
        """How live audio is fed to a model whose text advances with it; None: it cannot be."""
        return None

    def generated(self, request: Any, context: SpeechContext) -> Generated:
        """Return the tokens of such a request, once it is done."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class LogMelFeatures(Input):
    features_tm: Float32
    embedding_count: int

    # One chunk alone fills the encoder's GEMMs, and needs no padding.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.embedding_count

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Float32, Int32]:
        features_btm = np.stack([chunk.features_tm for chunk in inputs])
        return features_btm, np.array([chunk.embedding_count for chunk in inputs], np.int32)


def features_of(samples: Float32, n_mels: int) -> Float32:
    """Return scaled log-mel frames of a waveform by itself, fp32 [samples / 160, n_mels].

    As transformers' Whisper extractor: reflected on both sides, floored at 8 below the maximum.
    """
    reflected = np.pad(samples, N_FFT // 2, mode="reflect")
    frames_tm = log_mel_frames(reflected, n_mels)[: len(samples) // HOP]
    return normalise(frames_tm, frames_tm.max())


@dataclass(frozen=True, eq=False)
class AudioFeatures(Input):
    features_tm: Float32
    encoder: AudioEncoder

    # Lengths differ, and each chunk alone fills the encoder's GEMMs.
    most_together: ClassVar[int | None] = 1

    @property
    @override
    def positions(self) -> int:
        return self.encoder.embedding_count(len(self.features_tm))

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[NDArray[Any], ...]:
        features_btm = np.stack([chunk.features_tm for chunk in inputs])
        return inputs[0].encoder.source(features_btm)


class AudioTokenRecognition(Recognition):
    """Base class of models whose prompt contains the audio embeddings."""

    def __init__(self, tokenizer: TextTokenizer, audio: AudioEncoder, vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.audio = audio
        self.vocab_size = vocab_size
        self.most_positions = audio.positions
        self.ends = tokenizer.end_tokens

    def audio_tokens(self, positions: int) -> list[int]:
        return list(range(self.vocab_size, self.vocab_size + positions))


UNKNOWN = "und"  # the code of a language that is not known (ISO 639)
_LEAST_POWER = 1e-10
_HOP = 160  # samples of a frame
_ENDS = (".", "?", "!", "…")
_PAUSE = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class ChunkOptions:
    """How chunks are decoded; `strategy` takes a number that seeds each chunk differently."""

    recognition: Recognition
    context: SpeechContext
    strategy: Callable[[int], Strategy]
    temperature: float
    room: int
    positions: int
    params: TranscribeParams


@dataclass(frozen=True)
class EndsAsOne(LogitsProcessor):
    """Replaces any of several end tokens by the first, if one is chosen."""

    ends: Sequence[int]

    @override
    def apply(self, logits_rv: Float32, generated_rn: Int64) -> None:
        first, *others = self.ends
        logits_rv[:, first] = logits_rv[:, list(self.ends)].max(axis=1)
        logits_rv[:, others] = -np.inf


class Chunk(RecordingPart):
    def __init__(
        self,
        options: ChunkOptions,
        place: tuple[int, int],
        samples: Float32 | None,  # None where it is silent
        ended: Callable[[str | None], None],  # called with the language of its text
    ) -> None:
        """Prepare frames `place[0]` to `place[1]`."""
        self._options, self._place, self._samples, self._ended = options, place, samples, ended
        self.drafts: list[DraftCounts] = []
        self.notices: list[tuple[float, str]] = []
        self.segments: deque[Segment] = deque()
        self.over = False

    @override
    def decode(self) -> Policy[None]:
        language = None
        if self._samples is not None:
            recognized = yield from self._recognize(self._samples)
            self._samples, language = None, recognized.language
        self.over = True
        self._ended(language)

    def _recognize(self, samples: Float32) -> Policy[Recognized]:
        options = self._options
        source = options.recognition.input(samples)
        request = options.recognition.request(source)
        if request is None:
            generated = yield from self._search(source)
        else:
            yield request
            generated = options.recognition.generated(request, options.context)
        if generated.recognized.text:
            self.segments += self._segments(generated)
        return generated.recognized

    def _search(self, source: Input) -> Policy[Generated]:
        options, (first, end) = self._options, self._place
        recognition, params = options.recognition, options.params
        prompt = recognition.prompt(source.positions, options.context)
        seconds = (end - first) / FRAMES_PER_SECOND
        most = recognition.tokens_of(seconds, options.context)
        if params.max_new_tokens is not None:
            given = params.max_new_tokens
            most = min(given, most) if recognition.frame_synchronous else given
        room = min(most, options.room, options.positions + 1 - len(prompt))
        request = SearchRequest(
            Prompt(np.array(prompt, np.int64), input=source),
            strategy=options.strategy(first),
            filters=list(_filters(params, recognition.ends)),
            eot=recognition.ends[0],
            max_new_tokens=room,
        )
        yield request
        best = MaximumLikelihood(params.length_penalty).best(request.search.candidates())
        is_cut = len(best.tokens) == room and not recognition.frame_synchronous
        if is_cut and params.max_new_tokens is None:
            notice = f"the text has more than {room} tokens: cut"
            self.notices.append((first / FRAMES_PER_SECOND, notice))
        recognized = recognition.read(best.tokens, options.context)
        return Generated(tokens=best.tokens, logprob=best.sum_logprob, recognized=recognized)

    def _segments(self, generated: Generated) -> Iterator[Segment]:
        options, (first, end) = self._options, self._place
        recognized, start = generated.recognized, first / FRAMES_PER_SECOND
        whole = Segment(
            id=0,
            seek=first,
            start=start,
            end=end / FRAMES_PER_SECOND,
            text=recognized.text
            if recognized.language in WITHOUT_SPACES
            else f" {recognized.text}",
            tokens=generated.tokens,
            language=recognized.language or UNKNOWN,
            temperature=options.temperature,
            avg_logprob=generated.logprob / (len(generated.tokens) + 1),
            compression_ratio=compression_ratio(recognized.text),
            no_speech_prob=0.0,
            fallback=(),
        )
        if not recognized.words:
            yield whole
            return
        words, taken = _placed(recognized.words, start, whole.end), 0
        for begin, stop in _sentences(words):
            count = sum(recognized.counts[begin:stop])
            yield replace(
                whole,
                start=words[begin].start,
                end=words[stop - 1].end,
                text="".join(word.word for word in words[begin:stop]),
                tokens=generated.tokens[taken : taken + count],
                words=words[begin:stop] if options.params.word_timestamps else None,
            )
            taken += count


def _sentences(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield the first word of each sentence and the word after its last; pauses also end one."""
    begin = 0
    for i, (word, following) in enumerate(pairwise(words), 1):
        if word.word.endswith(_ENDS) or following.start - word.end > _PAUSE:
            yield begin, i
            begin = i
    yield begin, len(words)


def _placed(words: Sequence[Word], start: float, end: float) -> tuple[Word, ...]:
    """Return the words in seconds of the recording; the last position exceeds the chunk's end."""
    return tuple(
        replace(word, start=min(start + word.start, end), end=min(start + word.end, end))
        for word in words
    )


def _filters(params: TranscribeParams, ends: Sequence[int]) -> Iterator[LogitsProcessor]:
    if params.repetition_penalty != 1:
        yield RepetitionPenalty(params.repetition_penalty)
    if params.no_repeat_ngram:
        yield NoRepeatNgram(params.no_repeat_ngram)
    if len(ends) > 1:
        yield EndsAsOne(ends)


class ChunkPlan(Plan[SampledAudio]):
    def __init__(self, options: ChunkOptions) -> None:
        self._options = options
        self._running = 0
        self._all_cut = False
        self.language = options.context.language

    @override
    def parts(
        self, recording: SampledAudio, begin: Callable[[RecordingPart], None]
    ) -> Policy[None]:
        joints = [round(at * FRAMES_PER_SECOND) for at in recording.timeline.joints]
        for seek, end in clipped_frames(self._options.params, recording.content_frames):
            while seek < end:
                stop = seek + _frames(recording, (seek, end), joints, self._options.recognition)
                silent = recording.is_silent(seek, stop)
                samples = None if silent else recording.samples(seek, stop)
                self._running += 1
                begin(Chunk(self._options, (seek, stop), samples, self._ended))
                seek = stop
                yield None
        self._all_cut = True
        self._set_language(None)

    def _ended(self, language: str | None) -> None:
        self._running -= 1
        self._set_language(language)

    def _set_language(self, language: str | None) -> None:
        if self.language is None and self._all_cut and not self._running:
            language = language or UNKNOWN
        self.language = self.language or language


def _frames(
    recording: SampledAudio, clip: tuple[int, int], joints: Sequence[int], recognition: Recognition
) -> int:
    seek, end = clip
    longest = recognition.longest
    if end - seek <= longest:
        return end - seek

    def loudness() -> Float32:
        samples = recording.samples(seek, seek + longest)
        frames = samples[: len(samples) // _HOP * _HOP].reshape(-1, _HOP)
        loudness_t: Float32 = np.log10(np.square(frames).mean(axis=1) + np.float32(_LEAST_POWER))
        return loudness_t[None]

    near = [joint - seek for joint in joints]
    return chunk_frames(end - seek, near, loudness, longest)
