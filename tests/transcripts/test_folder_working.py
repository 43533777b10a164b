import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import kvcast
from kit.recordings import CARDS
from kit.scripted_whisper import NumberedWindows, scripted_model
from kvcast.errors import UsageError
from kvcast.speech.params import TranscribeParams
from kvcast.speech.transcription import Transcription
from kvcast.transcripts.folders.recordings import (
    Outcome,
    QueuedRecording,
    RecordingFile,
    transcribe_all,
)
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.long_form import WhisperPlan


def queue(*names: str) -> list[QueuedRecording]:
    return [
        QueuedRecording(recording=RecordingFile(path=n, size=1, mtime_ns=0), source=n)
        for n in names
    ]


@dataclass
class Model:
    """Transcribes to its source's name; waits in the middle for the expected number of others."""

    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    options: list = field(default_factory=list)

    def transcribe(self, source: str, **options):
        self.options.append(options)
        return FakeTranscription(self._segments(source))

    def transcribe_all(self, sources: list[str], **options):
        return [self.transcribe(source, **options) for source in sources]

    def _segments(self, source: str) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(end=1.0, text="so")
        self.together.wait(timeout=60)
        if source == "bad":
            raise ZeroDivisionError(source)
        yield SimpleNamespace(end=5.0, text=source)


@dataclass
class FakeTranscription:
    segments: Iterator
    duration: float = 4.0
    language: str = "en"
    notices: tuple[str, ...] = ("quiet",)
    skipped: None = None
    draft: None = None

    def __iter__(self):
        return self.segments

    def __enter__(self):
        return self

    def __exit__(self, *_: object):
        pass


def work(
    model: object,
    queued: Iterable[QueuedRecording],
    workers: int,
    watch: Callable[..., None] = lambda *_: None,
    **options: int,
) -> Iterator[Outcome]:
    return transcribe_all(model, queued, workers, options=options, watch=watch)


def ended(outcome: Outcome) -> str:
    if outcome.transcript is None:
        return f"{outcome.queued.source}: {type(outcome.error).__name__}"
    assert (outcome.transcript.language, outcome.transcript.notices) == ("en", ("quiet",))
    return f"{outcome.queued.source}: {outcome.transcript.segments[-1].text}"


@pytest.mark.parametrize(
    ("workers", "options"), [(1, {"beam": 2}), (3, {}), (50, {}), (1, {"batch": 4})], ids=str
)
def test_every_recording_ends_once_and_a_bad_one_alone(workers: int, options: dict):
    names = ["bad", *(f"r{n}" for n in range(20))]
    seen: dict[str, list[float]] = {name: [] for name in names}
    outcomes = work(
        Model(),
        queue(*names),
        workers,
        watch=lambda queued, share: seen[queued.source].append(share),
        **options,
    )
    assert sorted(map(ended, outcomes)) == sorted(
        ["bad: ZeroDivisionError", *(f"{name}: {name}" for name in names[1:])]
    )
    assert seen == {name: [0.25] if name == "bad" else [0.25, 1.0] for name in names}


def test_as_many_are_under_way_as_there_are_workers():
    model = Model(threading.Barrier(3))  # passes only if three arrive
    outcomes = work(model, queue(*"abcdef"), 3, beam=2)
    assert sorted(map(ended, outcomes)) == [f"{name}: {name}" for name in "abcdef"]
    assert model.options == [{"beam": 2}] * 6


@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_is_taken_when_a_worker_is_free(workers: int):
    taken = []

    def watched():
        for queued in queue(*"abcdef"):
            taken.append(queued.source)
            yield queued

    outcomes = work(Model(), watched(), workers)
    assert taken == []
    next(outcomes)
    assert len(taken) <= 2 * workers
    outcomes.close()
    assert len(taken) <= 2 * workers


def test_running_transcriptions_are_dropped_when_the_caller_leaves():
    finished = []
    threads = threading.active_count()
    model = Model()

    def segments(source: str):
        yield SimpleNamespace(end=1.0, text="so")
        while source == "endless":
            yield SimpleNamespace(end=2.0, text="and so")
        finished.append(source)

    model._segments = segments
    outcomes = work(model, queue("endless", "a", "b"), 2)
    assert next(outcomes).queued.source == "a"
    outcomes.close()
    assert "endless" not in finished
    assert threading.active_count() == threads


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "eager"])
def test_workers_transcribe_as_one_by_one(runtime: str):
    model = kvcast.load("demo", runtime=runtime, quantize="none", threads=1)
    names = [str(path) for path in CARDS]

    def segments(workers: int, **options: int) -> dict[str, tuple]:
        outcomes = work(model, queue(*names), workers, beam=2, **options)
        return {outcome.queued.source: outcome.transcript.segments for outcome in outcomes}

    def texts(transcripts: dict[str, tuple]) -> dict[str, list[str]]:
        return {name: [part.text for part in parts] for name, parts in transcripts.items()}

    assert len(names) > 2
    assert segments(3) == segments(1)
    alone = {name: tuple(model.transcribe(name, beam=2, batch=1)) for name in names}
    assert texts(segments(1, batch=3)) == texts(alone)


def test_in_a_batch_a_recording_is_looked_at_when_it_is_opened(tmp_path):
    """It may have grown while those before it were transcribed."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"1")
    model = scripted_model()

    def opened(source: str) -> NumberedWindows:
        if source == str(paths[0]):
            paths[1].write_bytes(b"longer")
        return NumberedWindows(1000 + len(Path(source).read_bytes()))

    def together(sources: list[str], **_: object) -> list[Transcription]:
        decoder, params = model.scripted, TranscribeParams(batch=1)
        return [
            Transcription(
                decoder.scheduler,
                partial(opened, source),
                WhisperPlan(decoder, [DecodingOptions()], params),
                params=params,
                priority=index,
            )
            for index, source in enumerate(sources)
        ]

    model.transcribe_all = together
    recordings = [RecordingFile.at(path, path.name) for path in paths]
    given = [
        QueuedRecording(recording=recording, source=str(path))
        for recording, path in zip(recordings, paths, strict=True)
    ]
    first, second = work(model, given, 1, batch=1)
    assert first.queued == given[0]
    assert second.queued.recording == RecordingFile.at(paths[1], "b") != given[1].recording
    assert second.transcript.duration == 10.06


def test_options_that_cannot_be_served_end_the_run():
    model = Model()

    def refuse(source: str, **_: object):
        raise UsageError("no such language")

    model.transcribe = refuse
    for workers, options in (1, {}), (2, {}), (1, {"batch": 2}):
        with pytest.raises(UsageError, match="no such language"):
            next(work(model, queue("a", "b"), workers, **options))
