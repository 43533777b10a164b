"""Synthetic recordings, and models that transcribe them by a script.

Frames and samples encode their positions, so that a window's content shows where it was cut. There
is a script for files, one for openai-whisper's `transcribe`, and a recognizer of live speech.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise, takewhile
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import whisper.decoding as openai
from numpy.typing import NDArray

from kit.dimensions import LEAST_WHISPER
from kit.openai_whisper import openai_tokenizer_json
from kit.scripted_runtimes import ScriptedRuntime
from kvcast.audio.decode import SAMPLE_RATE
from kvcast.audio.timeline import Part, Timeline
from kvcast.audio.vad import BLOCK
from kvcast.engine.callers import Policy
from kvcast.engine.requests import OVER, Continuations, Prompt, Request
from kvcast.engine.scheduler import Scheduler
from kvcast.runtimes.base import Float32
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.local_agreement import Place, Unit
from kvcast.whisper.model import WhisperModel
from kvcast.whisper.requests import Features
from kvcast.whisper.streaming import LONGEST, Hypothesis, Recognizer
from kvcast.whisper.tokenizer import WhisperTokenizer

ENGLISH = replace(LEAST_WHISPER, vocab_size=51864)


@cache
def tokenizer() -> WhisperTokenizer:
    return WhisperTokenizer(openai_tokenizer_json(False), 51864)


@dataclass(frozen=True, kw_only=True)
class ScriptedResult:
    """The result of one scripted decoding."""

    tokens: tuple[int, ...]
    avg_logprob: float = -0.3
    compression_ratio: float = 1.0
    no_speech_prob: float = 0.0
    language: str = "en"
    repetition: str | None = None


_BEGIN = 50363

LAST = ScriptedResult(tokens=(50, 51))
"""The result of all windows after the script's end; missing timestamps end a recording soon."""


def stands_still(heard: ScriptedResult) -> bool:
    """The last cut is at 0.00: openai-whisper decodes this window again, and again for ever."""
    stamped = [token >= _BEGIN for token in heard.tokens]
    cuts = [i for i, pair in enumerate(pairwise(stamped)) if all(pair)]
    finished = stamped[-2:] == [False, True]
    return bool(cuts) and not finished and heard.tokens[cuts[-1]] == _BEGIN


def frames(content_frames: int) -> Float32:
    """[1, frames], counted from 1."""
    return np.arange(1, content_frames + 1, dtype=np.float32)[None]


def place(window_mt: Float32) -> tuple[int, int]:
    """First frame, counted from 0, and number of frames of audio in a window [1, 3000]."""
    assert window_mt.shape == (1, 3000)
    return int(window_mt[0, 0]) - 1, int(np.count_nonzero(window_mt))


@dataclass
class NumberedWindows:
    """Meets `kvcast.speech.recordings.Windows`."""

    content_frames: int
    notices: tuple[str, ...] = ()
    no_speech_notices: tuple[str, ...] = ()
    timeline: Timeline = field(default_factory=lambda: Timeline(()))
    skipped: tuple[Part, ...] | None = None
    silent: Sequence[range] = ()
    closed: bool = False

    @property
    def duration(self) -> float:
        return self.content_frames / 100

    def window(self, seek: int, end: int | None = None) -> Float32:
        assert not self.closed
        window_mt = frames(self.content_frames)[:, seek : min(seek + 3000, end or seek + 3000)]
        return np.pad(window_mt, ((0, 0), (0, 3000 - window_mt.shape[1])))

    def is_silent(self, seek: int, end: int) -> bool:
        """Return whether these frames are among the silent ones."""
        return any(seek in frames and end - 1 in frames for frames in self.silent)

    def first_window(self) -> Float32:
        return self.window(0)

    def close(self) -> None:
        self.closed = True


class OneStep(Request):
    """Is over after one step."""

    def __init__(self, window: Features) -> None:
        super().__init__(Prompt(np.zeros(1, np.int64), input=window), capacity=1)

    def advance(self, logits_rv: Float32) -> Continuations:
        return OVER


@dataclass
class ScriptedDecoder:
    """Stands in for `WindowDecoder` and its requests, which take one step.

    It notes where and how each window was decoded.
    """

    script: Sequence[ScriptedResult]
    calls: list[tuple[Any, DecodingOptions, list[int]]] = field(default_factory=list)
    tokenizer: WhisperTokenizer = field(default_factory=tokenizer)
    heard: list[Features] = field(default_factory=list)
    prompt_languages: list[str | None] = field(default_factory=list)
    place: Callable[[Float32], Any] = place
    spoken: Callable[[int], str] = lambda _: "en"
    """The language of the audio that begins at this frame."""

    def __post_init__(self) -> None:
        self._results: Iterator[ScriptedResult] = iter(self.script)
        self.requests = self
        runtime = ScriptedRuntime(lambda *_: np.zeros(1, np.float32))
        self.scheduler = Scheduler(runtime, rows=1, capacity=448, inputs=1, requests=1)

    @property
    def encoded(self) -> int:
        """How many different windows there were."""
        return len(set(self.heard))

    def decode(
        self,
        window: Features,
        options: DecodingOptions,
        *,
        prompt: Sequence[int],
        prompt_language: str | None,
        stream: int,
    ) -> Policy[DecodingResult]:
        del stream
        self.heard.append(window)
        self.prompt_languages.append(prompt_language)
        self.calls.append((self.place(window.features_mt), options, list(prompt)))
        heard = next(self._results, LAST)
        result = DecodingResult(
            language=options.language or heard.language,
            tokens=heard.tokens,
            text=self.tokenizer.decode(heard.tokens).strip(),
            avg_logprob=heard.avg_logprob,
            no_speech_prob=heard.no_speech_prob,
            temperature=options.temperature,
            compression_ratio=heard.compression_ratio,
            repetition=heard.repetition,
        )
        yield OneStep(window)
        return result

    def languages(self, window: Features) -> Policy[dict[str, float]]:
        spoken = self.spoken(self.place(window.features_mt)[0])
        yield OneStep(window)
        return {code: 0.8 if code == spoken else 0.1 for code in ("en", "de", "fr")}


class NoRuntime:
    """A model needs one, and must not use it."""


def scripted_model(script: Sequence[ScriptedResult] = ()) -> Any:
    """A WhisperModel that decodes with `scripted`, a ScriptedDecoder."""
    model: Any = WhisperModel(NoRuntime(), tokenizer(), ENGLISH)  # type: ignore[arg-type]
    model.scripted = ScriptedDecoder(script)
    model.decoder = lambda *_, **__: model.scripted
    model._own_scheduler = lambda *_: model.scripted.scheduler
    model._requests = lambda *_: model.scripted.requests
    return model


def scripted_translator(texts: Mapping[str, str]) -> WhisperModel:
    """Return a multilingual model that ignores the audio: it generates a text for each task.

    The language is German, and the text goes from the window's begin to its second 1.
    """
    vocab = 51865
    tokenizer = WhisperTokenizer(openai_tokenizer_json(True), vocab)
    begin, german = tokenizer.timestamp_begin, tokenizer.languages.index("de")
    written_after = {
        getattr(tokenizer, task): (begin, *tokenizer.encode(text), begin + 50, tokenizer.eot)
        for task, text in texts.items()
    }

    def script(_: int, written: tuple[int, ...]) -> Float32:
        task = next((token for token in written if token in written_after), None)
        if task is None:
            certain = tokenizer.language_tokens[german]
        else:
            certain = written_after[task][len(written) - 1 - written.index(task)]
        logits_v = np.zeros(vocab, np.float32)
        logits_v[certain] = 40.0
        return logits_v

    return WhisperModel(
        ScriptedRuntime(script), tokenizer, replace(LEAST_WHISPER, vocab_size=vocab)
    )


class ScriptedWhisper:
    """The part of a model that `whisper.transcribe` uses."""

    device = torch.device("cpu")
    is_multilingual = False
    num_languages = 99
    dims = SimpleNamespace(n_mels=1, n_audio_ctx=1500, n_text_ctx=448)

    def __init__(self, script: list[ScriptedResult]) -> None:
        self.results = iter(script)
        self.calls: list[tuple[tuple[int, int], openai.DecodingOptions, list[int]]] = []

    def decode(self, mel: torch.Tensor, options: openai.DecodingOptions) -> openai.DecodingResult:
        self.calls.append((place(mel.numpy()), options, list(options.prompt)))
        heard = next(self.results, LAST)
        return openai.DecodingResult(
            audio_features=mel,
            language="en",
            tokens=list(heard.tokens),
            avg_logprob=heard.avg_logprob,
            no_speech_prob=heard.no_speech_prob,
            temperature=options.temperature,
            compression_ratio=heard.compression_ratio,
        )


STEP = 320
RATE = SAMPLE_RATE


@dataclass(frozen=True)
class Word:
    """A word spoken in these samples; `opens` a segment."""

    start: int
    end: int
    text: str
    opens: bool


def speech(
    count: int, *, seed: int = 0, pause_every: int = 25, segment_every: int = 8
) -> list[Word]:
    """Return words of 0.1 to 0.5 s in segments, with a pause of 1.5 s now and then."""
    rng = random.Random(seed)
    words: list[Word] = []
    at = 50 * STEP
    for number in range(count):
        paused = number % pause_every == 0
        opens = paused or number % segment_every == 0
        at += 75 * STEP if paused and number else 0
        end = at + rng.randint(5, 25) * STEP
        words.append(Word(at, end, f" w{number}", opens))
        at = end + rng.randint(0, 3) * STEP
    return words


FULL_SCALE = 2**15
"""Of the values of samples: larger floats would be taken for integers."""


def sound(start: int, end: int) -> NDArray[np.float32]:
    """Return samples `start` to `end`."""
    return ((np.arange(start, end) // STEP + 1) / FULL_SCALE).astype(np.float32)


def listener(words: Sequence[Word]):
    """Return a voice detector that separates speech from silence, block by block."""
    starts = np.array([word.start for word in words])
    ends = np.array([word.end for word in words])
    heard = 0

    def listen(blocks_nb: NDArray[np.float32]) -> NDArray[np.float32]:
        nonlocal heard
        assert blocks_nb.shape[1] == BLOCK
        begins = heard + BLOCK * np.arange(len(blocks_nb))
        heard += blocks_nb.size
        # Speech if the last word that began before the block's end reaches into it.
        last = np.searchsorted(starts, begins + BLOCK) - 1
        return ((last >= 0) & (ends[last] > begins)).astype(np.float32)

    return listen


@dataclass
class ScriptedRecognizer(Recognizer):
    """Recognizes every finished word, and guesses at the end; counts its work.

    Attributes:
        words: all spoken words.
        late: samples at the end of a window in which words are not recognized yet.
        failures: hypotheses from here on that run in circles, unless decoded thoroughly.
        breaks: hypotheses that end where a second segment begins, without a word of it.
        jitter: how far times between words are off, in steps.
        unsure: words that are improbable.
        respells: whether words that end more than 4 s before the end get another spelling.

    """

    words: Sequence[Word]
    late: int = 10 * STEP
    failures: frozenset[int] = frozenset()
    breaks: frozenset[int] = frozenset()
    jitter: int = 3
    unsure: frozenset[int] = frozenset()
    respells: bool = False
    language: str = "en"
    room: int = 224
    decoded: int = 0
    samples: int = 0
    thorough: int = 0
    prompts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(1)
        self._index = {word.text: number for number, word in enumerate(self.words)}

    def keep_language(self) -> None:
        """Nothing to keep."""

    def encoder_input(self, samples: NDArray[np.float32]) -> tuple[int, int]:
        assert 0 < len(samples) <= LONGEST
        head = sum(1 for _ in takewhile(lambda value: value == samples[0], samples[:STEP]))
        start = int(samples[0] * FULL_SCALE) * STEP - head
        assert np.array_equal(samples, sound(start, start + len(samples)))
        return start, start + len(samples)

    def decode(
        self,
        heard: tuple[int, int],
        *,
        prompt: Sequence[int],
        forced: Sequence[Unit],
        thoroughly: bool,
    ) -> Hypothesis:
        start, end = heard
        self.decoded += 1
        self.samples += end - start
        self.thorough += thoroughly
        self.prompts.append(len(prompt))
        assert len(prompt) <= self.room
        if self.decoded in self.failures and not thoroughly:
            return Hypothesis(units=[Unit((0,), (1,), " round")] * 9, doubtful=True)
        at = self._next(start, forced)
        units: list[Unit] = []
        while at < len(self.words) and self.words[at].start < end:
            word = self.words[at]
            if units and self.decoded in self.breaks and self._goes_on(at):
                return Hypothesis(
                    units=[*units, Unit(self._stamps(at, start, opens=False), (), "")]
                )
            understood = word.end <= end - self.late
            text = word.text if understood else f" ~{self._rng.random()}"
            if self.respells and word.end < end - 4 * RATE:
                text = text.replace(" w", " V")
            stamps = self._stamps(at, start, opens=not (forced or units))
            units.append(Unit(stamps, (at,), text))
            at += 1
        if units:
            units.append(Unit(((min(self.words[at - 1].end, end) - start) // STEP,), (), ""))
        return Hypothesis(units=units)

    def places(self, heard: tuple[int, int], units: Sequence[Unit]) -> list[Place]:
        start, end = heard
        spoken = [self.words[unit.tokens[0]] for unit in units if unit.tokens]
        assert spoken == sorted(spoken, key=lambda word: word.start)
        places: list[Place] = []
        for unit in units:
            last = self.words[unit.tokens[0]].end if unit.tokens else end
            off = self._rng.randint(-self.jitter, self.jitter)
            probability = 0.1 if self.unsure.intersection(unit.tokens) else 1.0
            at = max(0, (min(last, end) - start) // STEP + off)
            places.append(Place(at, probability, max(0, at - 1)))
        return places

    def _goes_on(self, at: int) -> bool:
        """Return whether a segment begins that has several words."""
        words = self.words[at : at + 5]
        pauses = (after.start - before.end > RATE // 2 for before, after in pairwise(words))
        return words[0].opens and len(words) == 5 and not any(pauses)

    def _next(self, start: int, forced: Sequence[Unit]) -> int:
        if forced:
            return self._index[forced[-1].text] + 1
        middles = ((word.start + word.end) // 2 >= start for word in self.words)
        return next((at for at, is_heard in enumerate(middles) if is_heard), len(self.words))

    def _stamps(self, at: int, start: int, *, opens: bool) -> tuple[int, ...]:
        own = max(0, (self.words[at].start - start) // STEP)
        if opens:
            return (own,)
        if self.words[at].opens:
            return max(0, (self.words[at - 1].end - start) // STEP), own
        return ()


def seconds(samples: int) -> float:
    """Return the seconds of a number of samples."""
    return samples / RATE
