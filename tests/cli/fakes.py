"""Scripted models for the command line's tests: of speech, of the bytes of files, and of text."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.text.params import NO_DEFAULTS, GenerationDefaults
from kvcast.transcripts.segments import Segment

DOCS = Path(__file__).parents[2] / "docs"


def schema(name: str) -> Any:
    return json.loads((DOCS / f"{name}.schema.json").read_text(encoding="utf-8"))


def write_files(folder: Path, contents: Mapping[str, str]) -> Path:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    return folder


def transcripts(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and ".kvcast" not in path.parts
    }


def segment(**given: Any) -> Segment:
    usual = {"seek": 0, "tokens": (50363, 2425, 50463), "language": "en", "temperature": 0.0}
    usual |= {"avg_logprob": -0.25, "compression_ratio": 1.5, "no_speech_prob": 0.01}
    return Segment(**usual | {"id": 0, "fallback": ()} | given)


ESCAPES = "\x1b]0;owned\x07 \x9b31m\x08\r\x7f"
SEGMENTS = (
    segment(id=0, start=0.0, end=2.5, text=" Hello there,"),
    segment(id=1, start=2.5, end=3661.25, text=' Grüße aus 東京 --> \t"quoted".'),
)


@dataclass
class FakeTranscription:
    segments: Iterator[Segment]
    language: str = "en"
    duration: float = 3661.25
    notices: tuple[str, ...] = ()
    skipped: None = None
    draft: Any = None
    before_opening: Callable[[], None] = lambda: None

    def remember(self, memory: Any) -> bool:
        del memory
        return False

    def __iter__(self) -> Iterator[Segment]:
        return self.segments

    def __enter__(self) -> Self:
        self.before_opening()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


@dataclass
class FakeModel:
    """Yields SEGMENTS for every path, except for names in `failures`."""

    task: ClassVar[str] = "transcribe"
    failures: dict[str, BaseException] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    draft: Any = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def transcribe_all(self, sources: Sequence[str], **keywords: Any) -> list[FakeTranscription]:
        self.calls += [(source, keywords) for source in sources]
        return [
            FakeTranscription(
                self._segments(Path(source).name), notices=self.notices, draft=self.draft
            )
            for source in sources
        ]

    def _segments(self, name: str) -> Iterator[Segment]:
        yield SEGMENTS[0]
        if name in self.failures:
            raise self.failures[name]
        yield SEGMENTS[1]


class ReadingModel:
    """Transcribes a file to digests of its bytes; one that begins with "bad" is damaged."""

    task: ClassVar[str] = "transcribe"

    def transcribe(self, source: str, **_: Any) -> FakeTranscription:
        content = Path(source).read_bytes()
        return FakeTranscription(self._segments(source, content), duration=2.0)

    def transcribe_all(self, sources: Sequence[str], **options: Any) -> list[FakeTranscription]:
        return [self.transcribe(source, **options) for source in sources]

    def _segments(self, source: str, content: bytes) -> Iterator[Segment]:
        for number, digest in enumerate((hashlib.sha1(content), hashlib.md5(content))):
            time.sleep(float(os.environ.get("KVCAST_PAUSE", "0")))
            text = f" {digest.hexdigest()}"
            yield segment(id=number, start=float(number), end=number + 1.0, text=text)
            if content.startswith(b"bad"):
                raise InputOutputError(f"{source} is damaged")


PIECES = (" in", " 東京,\n", "well")
TEXT = "".join(PIECES)
LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class FakeTimings:
    first_token: float = 0.25
    seconds: float = 0.5
    per_token: float = 0.125
    tokens_per_second: float = 6.0


@dataclass(frozen=True, kw_only=True)
class FakeGeneration:
    text: str = TEXT
    tokens: tuple[int, ...] = (11, 12, 13)
    logprobs: tuple[float, ...] = (-0.5, -1.25, float("-inf"))
    finish_reason: str = "stop"
    prompt_tokens: int = 4
    timings: FakeTimings = FakeTimings()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    score: float | None = None
    similarity: float | None = None
    draft: Any = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)


class FakePieces(Iterator[str]):
    def __init__(self, pieces: Iterator[str], result: FakeGeneration) -> None:
        self._pieces = pieces
        self.result = result

    def __next__(self) -> str:
        return next(self._pieces)


@dataclass
class FakeTextModel:
    """Streams PIECES, or generates "PROMPT#k"; a prompt in `failures` fails after it began.

    A prompt "slow" waits until it is interrupted. With `ranks` a text is left out, and texts have
    similarities and scores.
    """

    task: str = "generate"
    has_chat_template: bool = False
    defaults: GenerationDefaults = NO_DEFAULTS
    failures: dict[str, BaseException] = field(default_factory=dict)
    refuses: KvcastError | None = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    ranks: bool = False
    drafts: Any = None
    tops: tuple[tuple[tuple[int, float], ...], ...] | None = None

    def stream(self, prompt: str, **keywords: Any) -> FakePieces:
        self._begin(prompt, [prompt], keywords)
        return FakePieces(self._pieces(prompt), FakeGeneration(draft=self.drafts))

    def generate_each(
        self, prompts: Sequence[str], *, n: int = 1, **keywords: Any
    ) -> Iterator[list[FakeGeneration]]:
        self._begin(prompts, prompts, {"n": n, **keywords})
        return self._texts(prompts, n)

    def _begin(self, given: object, prompts: Sequence[str], keywords: dict[str, Any]) -> None:
        self.calls.append((given, keywords))
        if self.refuses:
            raise self.refuses
        if any(len(prompt) > LONGEST for prompt in prompts):
            raise UsageError(f"the prompt is longer than {LONGEST}: shorten it")

    def _compute(self, prompt: str) -> None:
        if prompt in self.failures:
            raise self.failures[prompt]
        if prompt == "slow":
            time.sleep(600)

    def _pieces(self, prompt: str) -> Iterator[str]:
        yield PIECES[0]
        self._compute(prompt)
        yield from PIECES[1:]

    def _texts(self, prompts: Sequence[str], n: int) -> Iterator[list[FakeGeneration]]:
        for prompt in prompts:
            self._compute(prompt)
            self.taken.append(prompt)
            if self.ranks:
                yield [
                    FakeGeneration(text=f"{prompt}#{k}", score=-0.5 - k, similarity=1 / (1 + k))
                    for k in range(max(1, n - 1))
                ]
            else:
                others = {"draft": self.drafts, "top_logprobs": self.tops}
                yield [FakeGeneration(text=f"{prompt}#{k}", **others) for k in range(n)]
