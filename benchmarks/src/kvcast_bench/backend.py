"""The protocols of programs that take part, and their common inputs."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from kvcast.inspect.roofline import Arithmetic
from kvcast_bench.models import BenchModel
from kvcast_bench.turns import Trial

Samples = NDArray[np.float32]
Tokens = list[int]


@dataclass(kw_only=True)
class Backend:
    """One program with one setting. Methods are called in the order of their definition here.

    Can be pickled before it is loaded. Making one imports none of the program's packages.
    """

    model: BenchModel  # to load
    name: str  # how tables and `--peers` call it
    dtype: str = "fp32"  # of weights and arithmetic, in words
    precision: str = "fp32"  # of its weights: fp32, bf16, fp16, int8 or int4
    kind: str = ""  # which of the program's dtypes or files, if it has several
    arithmetic: Arithmetic | None = None  # for floors; None where kvcast's counts do not apply
    recomputes: bool = False  # whether it recomputes cross-attention keys and values in every call
    # of every layer, where it runs a model of the same sizes whose layers are rings
    window: int | None = None
    engine: Any = field(default=None, init=False)  # the program's own object, once it is loaded

    # distributions that it needs, whose versions are printed
    packages: Sequence[str] = field(default=(), init=False)
    # ids of processes that it started when it was loaded, and that do the work
    processes: Sequence[int] = field(default=(), init=False)
    # imported before a model can be loaded
    modules: Sequence[str] = field(default=(), init=False)
    # choices that differ from the program's defaults, in words
    settings: str = field(default="", init=False)
    # variable that names the Python of a separate environment, if it needs one
    environment: str = field(default="", init=False)

    @property
    def python(self) -> str | None:
        """The interpreter that runs it; None is this one."""
        return os.environ.get(self.environment) if self.environment else None

    def variables(self) -> Mapping[str, str]:
        """Return further environment variables for its process."""
        return {}

    def unfit(self) -> str | None:
        """Say why it cannot take this model, or None."""
        return self.model.unfit()

    def takes(self, trial: Trial) -> bool:  # noqa: ARG002 - a choosy backend overrides it
        return True

    def files(self) -> Path:
        """Return the path to load; files that must be made of the model are made the first time."""
        return Path(self.model.folder)

    def load(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Way:
    """Options of a transcription: batch, voice activity filter, word timestamps."""

    batch: int | None = None  # windows to decode at once; None is one after the other
    vad: bool = False  # look for speech first, and leave out the rest
    words: bool = False  # say when each word is spoken

    @property
    def suffix(self) -> str:
        marks = {f"-batch{self.batch}": self.batch, "-vad": self.vad, "-words": self.words}
        return "".join(mark for mark, is_set in marks.items() if is_set)

    @property
    def described(self) -> str:
        words = {
            f"{self.batch} windows at once": self.batch,
            "voice activity filter": self.vad,
            "word timestamps": self.words,
        }
        return ", ".join(word for word, is_set in words.items() if is_set)


class Transcriber(Protocol):
    name: str
    settings: str
    way: Way = Way()

    def goes(self, way: Way) -> bool:  # noqa: ARG002 - a program with more ways overrides it
        return False

    def going(self, way: Way) -> Self:
        other = copy.copy(self)
        other.name += way.suffix
        other.settings = "; ".join(filter(None, (self.settings, way.described)))
        other.way = way
        return other

    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        """Turn mono 16 kHz float32 [samples] in a language, given by its code, into text.

        At temperature 0 without fallback, with timestamps, and with no text of one window as the
        prompt of the next.
        """

    def transcribe_all(self, recordings: Sequence[Samples], language: str, beam: int) -> list[str]:
        """Turn recordings into texts: in turn, unless the program has a better way."""
        return [self.transcribe(samples, language, beam) for samples in recordings]


@dataclass
class Ticks:
    """A clock that starts at once, and ticks whenever every row has one more token."""

    began: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)

    def tick(self) -> None:
        self.times.append(time.perf_counter())

    def reach(self, texts: Sequence[Tokens]) -> None:
        """Tick for each token that the shortest of the texts has and no tick was for."""
        for _ in range(min(map(len, texts)) - len(self.times)):
            self.tick()


class Continuer(Protocol):
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        """Continue prompts of equal length by `new` tokens each, the likeliest, all rows in step.

        End tokens end nothing. `ticks` ticks when every row has one more token.
        """


class Writer(Protocol):
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """Generate the best target of each source, with exactly this number of tokens.

        Sources are of equal length. End tokens are suppressed; the decoder start token is not
        returned.
        """
