"""A scripted model for the command line's tests, and a program that runs the CLI with it.

As a program: `python cli_fakes.py ARGS…` is `kvcast ARGS…` with the scripted model.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import kvcast
from kvcast.cli import main
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.loading import opening as loading
from kvcast.loading.params import LoadParams
from kvcast.spec.runtimes import OnPhase
from kvcast.transcripts.segments import Word


@dataclass(frozen=True, kw_only=True)
class FakeSegment:
    id: int
    start: float
    end: float
    text: str
    seek: int = 0
    tokens: tuple[int, ...] = (50363, 2425, 50463)
    language: str = "en"
    temperature: float = 0.0
    avg_logprob: float = -0.25
    compression_ratio: float = 1.5
    no_speech_prob: float = 0.01
    fallback: tuple[str, ...] = ()
    words: tuple[Word, ...] | None = None
    channel: int | None = None


ESCAPES = "\x1b]0;owned\x07 \x9b31m\x08\r\x7f"
SEGMENTS = (
    FakeSegment(id=0, start=0.0, end=2.5, text=" Hello there,"),
    FakeSegment(id=1, start=2.5, end=3661.25, text=' Grüße aus 東京 --> \t"quoted".'),
)


@dataclass
class FakeTranscription:
    segments: Iterator[FakeSegment]
    language: str = "en"
    duration: float = 3661.25
    notices: tuple[str, ...] = ()
    skipped: None = None
    draft: DraftCounts | None = None
    before_opening: Callable[[], None] = lambda: None

    def __iter__(self) -> Iterator[FakeSegment]:
        return self.segments

    def __enter__(self) -> Self:
        self.before_opening()
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held."""


@dataclass
class FakeModel:
    """Yields SEGMENTS for every path, but for paths that the script says fail."""

    task: ClassVar[str] = "transcribe"
    failures: dict[str, BaseException] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    draft: DraftCounts | None = None
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    pause: float = 0.0

    def transcribe_all(self, sources: Sequence[str], **keywords: Any) -> list[FakeTranscription]:
        self.calls += [(source, keywords) for source in sources]
        return [
            FakeTranscription(
                self._segments(Path(source).name), notices=self.notices, draft=self.draft
            )
            for source in sources
        ]

    def _segments(self, name: str) -> Iterator[FakeSegment]:
        yield SEGMENTS[0]
        if name in self.failures:
            raise self.failures[name]
        time.sleep(self.pause)
        yield SEGMENTS[1]


if __name__ == "__main__":
    from live_fakes import FakeLive

    # A recording named slow.wav holds the run until somebody interrupts it; odd.wav's text would
    # steer a terminal.
    class Patient(FakeModel):
        def _segments(self, name: str) -> Iterator[FakeSegment]:
            if name == "odd.wav":
                yield FakeSegment(id=0, start=0.0, end=1.0, text=f" a{ESCAPES}b")
                return
            self.pause = 600.0 if name == "slow.wav" else 0.0
            yield from super()._segments(name)

        def live(self, **_: Any) -> FakeLive:
            return FakeLive()

    def open_model(_: str, params: LoadParams, **__: Any) -> loading.OpenedModel:
        params.on_phase("compiling decode")
        if sys.stderr is not None and sys.stderr.isatty():
            time.sleep(0.3)  # a spinner is drawn again ten times a second
        return loading.OpenedModel(model=Patient(), runtime="onnx")

    def export_bundle(model: str, output: Path, *, on_phase: OnPhase, **_: Any) -> Path:
        open_model(model, LoadParams(on_phase=on_phase))
        return output

    loading.open_model, kvcast.export_bundle = open_model, export_bundle
    raise SystemExit(main())
