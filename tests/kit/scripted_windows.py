"""Recordings and models without sound: windows say what a script says, one result after another.

Frames are numbered from 1 up, so what a window holds says where it was cut.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from kit.dimensions import LEAST_WHISPER
from kit.openai_whisper import openai_tokenizer_json
from kit.scripted_runtime import ScriptedRuntime
from kvcast.audio.timeline import Part, Timeline
from kvcast.engine.callers import Policy
from kvcast.engine.requests import OVER, Continuations, Prompt, Request
from kvcast.engine.scheduler import Scheduler
from kvcast.runtimes.base import Float32
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.model import WhisperModel
from kvcast.whisper.requests import Features
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
"""What all windows say after the script's end; the absence of timestamps ends a recording soon."""


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
    """First frame, counted from 0, and number of frames of sound in a window [1, 3000]."""
    assert window_mt.shape == (1, 3000)
    return int(window_mt[0, 0]) - 1, int(np.count_nonzero(window_mt))


@dataclass
class NumberedWindows:
    """Meets `kvcast.whisper.sound.Windows`."""

    content_frames: int
    notices: tuple[str, ...] = ()
    timeline: Timeline = field(default_factory=lambda: Timeline(()))
    skipped: tuple[Part, ...] | None = None
    closed: bool = False

    @property
    def duration(self) -> float:
        return self.content_frames / 100

    def window(self, seek: int, end: int | None = None) -> Float32:
        assert not self.closed
        window_mt = frames(self.content_frames)[:, seek : min(seek + 3000, end or seek + 3000)]
        return np.pad(window_mt, ((0, 0), (0, 3000 - window_mt.shape[1])))

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
    """The language of the sound that begins at this frame."""

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
    return model
