"""Minutes of real speech in a batch and with drafts, as each recording alone."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from test_whisper_drafts import shallower

import kvcast
from kit.marks import slow, soak
from kit.recordings import Load, Samples, told
from kvcast.decoding.speculative_decoding import Ledger
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recordings import open_windows
from kvcast.speech.transcription import Transcription
from kvcast.whisper.long_form import WhisperPlan

OPTIONS: dict[str, Any] = {"language": "en", "temperature": 0.0}
LEAST = {"int8": 50, "three layers of four": 5, "ngram": 2}
"""Drafted tokens that are accepted, at least, a minute."""


@pytest.fixture(
    scope="module", params=[slow(1), soak(10)], ids=lambda minutes: f"{minutes} minutes"
)
def minutes(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def model(load: Load) -> kvcast.WhisperModel:
    return load("demo", runtime="onnx", quantize="none")


@pytest.fixture(scope="module")
def several(recordings: dict[str, Samples], minutes: int) -> list[Samples]:
    """Pieces of 5 to 20 or 90 s that begin anywhere."""
    whole = np.concatenate([recordings["spoken"], recordings["example"]])
    rng = np.random.default_rng(0)
    pieces: list[Samples] = []
    longest = 90 if minutes == 10 else 20
    while sum(map(len, pieces)) < minutes * 60 * 16000:
        begin = rng.integers(len(whole) - 5 * 16000)
        pieces.append(whole[begin : begin + rng.integers(5, longest) * 16000])
    return pieces


@pytest.fixture(scope="module")
def alone(model: kvcast.WhisperModel, several: list[Samples]) -> list[Any]:
    """The expected transcripts: windows one by one."""
    transcripts = [list(model.transcribe(recording, batch=1, **OPTIONS)) for recording in several]
    assert all(transcripts)
    return told(transcripts)


def test_recordings_in_a_changing_batch_are_transcribed_as_alone(model, several, alone):
    transcripts = [list(segments) for segments in model.transcribe_all(several, batch=6, **OPTIONS)]
    assert told(transcripts) == alone


@pytest.fixture
def _all_drafts_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that pays or not."""
    monkeypatch.setattr(Ledger, "affordable", lambda _ledger, _kind, most: min(most, 5))
    monkeypatch.setattr(Ledger, "can_begin", lambda _ledger: True)


@pytest.mark.usefixtures("_all_drafts_are_checked")
@pytest.mark.parametrize("draft", ["int8", soak("three layers of four"), "ngram"])
def test_they_are_the_same_with_drafts(draft, model, several, minutes, alone, load: Load, tmp_path):
    drafters = {
        "int8": lambda: load("demo"),
        "three layers of four": lambda: kvcast.load(
            shallower("demo", 3, tmp_path / "three"), runtime="eager", threads=1
        ),
        "ngram": lambda: "ngram",
    }
    drafter = drafters[draft]()
    accepted = rejected = 0
    for recording, expected in zip(several, alone, strict=True):
        drafted = model.transcribe(recording, batch=1, draft=drafter, **OPTIONS)
        assert told([list(drafted)]) == [expected]
        assert drafted.draft is not None
        accepted += drafted.draft.accepted
        rejected += drafted.draft.proposed - drafted.draft.accepted
    print(f"{draft}: {accepted} drafted tokens accepted, {rejected} rejected")
    assert accepted > LEAST[draft] * minutes
    assert rejected > 2 * minutes


@pytest.mark.parametrize("seed", [1, soak(2)])
def test_on_the_native_runtime_recordings_may_arrive_at_any_time(seed, several, minutes, load):
    model = load("demo", runtime="native", quantize="none")
    params = TranscribeParams(batch=5, **OPTIONS)
    attempts = model.attempts(params)
    decoder = model.decoder(*attempts, windows=5)
    rng = np.random.default_rng(seed)
    waiting = rng.permutation(len(several)).tolist()
    running: dict[int, Transcription] = {}
    transcripts: dict[int, list[Any]] = {index: [] for index in waiting}
    together = Counter()
    arrival = 0.02 if minutes == 10 else 0.1  # few recordings have to meet in few steps
    while waiting or running:
        if waiting and (not running or rng.random() < arrival):
            for index in waiting[: rng.integers(1, 4)]:
                running[index] = Transcription(
                    decoder.scheduler,
                    partial(open_windows, several[index], model.dimensions.n_mels, params),
                    WhisperPlan(decoder.requests, attempts, params),
                    params=params,
                )
                waiting.remove(index)
        decoder.scheduler.step()
        together[sum(caller.rows > 0 for caller in decoder.scheduler.callers)] += 1
        for index, transcription in list(running.items()):
            while (segment := transcription.take_segment()) is not None:
                transcripts[index].append(segment)
            if transcription.over:
                del running[index]
    print(f"steps with so many windows at once: {sorted(together.items())}")
    assert {1, 3} <= together.keys()
    assert max(together) >= (5 if minutes == 10 else 4)
    alone = [list(model.transcribe(recording, batch=1, **OPTIONS)) for recording in several]
    assert told([transcripts[index] for index in range(len(several))]) == told(alone)
