"""Policies about single windows, among recordings."""

import threading
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvcast
from kit.recordings import EXAMPLE, read
from kit.text_models import until
from kvcast import Engine
from kvcast.audio.features import window_features
from kvcast.engine import DeadlineError
from kvcast.engine.callers import Policy
from kvcast.errors import InputMissingError, UsageError
from kvcast.whisper.decoding import DecodingOptions, DecodingResult
from kvcast.whisper.requests import Features
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import TokenTimes


@pytest.fixture(scope="module")
def model() -> Any:
    return kvcast.load("demo", quantize="none", threads=2)


@pytest.fixture(scope="module")
def samples() -> NDArray[np.float32]:
    return read(EXAMPLE)


@dataclass(frozen=True)
class WindowPolicy:
    """A window, and how to decode it; each `policy` asks it anew."""

    requests: WindowRequests
    window: Features
    options: DecodingOptions

    def policy(self) -> Policy[DecodingResult]:
        return self.requests.decode(self.window, self.options)


def asked(model: Any, samples: NDArray[np.float32], seconds: float, **options: Any) -> WindowPolicy:
    window = Features(window_features(samples[: round(seconds * 16_000)], 80))
    return WindowPolicy(model._requests(), window, DecodingOptions(language="en", **options))


def question(
    model: Any, samples: NDArray[np.float32], seconds: float, **options: Any
) -> Policy[DecodingResult]:
    return asked(model, samples, seconds, **options).policy()


def test_answers_are_those_of_the_model_alone(model: Any, samples: NDArray[np.float32]):
    questions = [asked(model, samples, seconds) for seconds in (3, 12)]
    questions.append(asked(model, samples, 5, beam=3))
    alone = model.decoder(DecodingOptions(beam=3))
    expected = [alone.answer(each.policy()) for each in questions]
    text = [token for token in expected[1].tokens if token < model.tokenizer.eot]

    def places() -> Policy[TokenTimes]:
        return model._requests().align(
            questions[1].window, text, language="en", task="transcribe", frames=600
        )

    with Engine(model, rows=4) as engine:
        jobs = [engine.submit(each.policy()) for each in questions]
        assert [job.result(600) for job in jobs] == expected
        begins_n = engine.submit(places()).result(600).begins_n
        assert begins_n.tolist() == alone.answer(places()).begins_n.tolist()
        assert len(begins_n) == len(text) + 1
        status = engine.status()
        assert status.finished == {"stop": 4}
        assert status.generated_tokens == sum(len(result.tokens) for result in expected)


@pytest.mark.slow
def test_tokens_of_recordings_are_counted_as_windows_end(model: Any, samples: NDArray[np.float32]):
    with Engine(model, rows=2) as engine:
        expected = engine.submit(samples, best_of=1).result(600)
        alone = engine.status().generated_tokens
        assert alone == sum(len(segment.tokens) for segment in expected.segments)
        long = engine.submit(np.tile(samples, 20), best_of=1)
        first = next(iter(long))
        # One that follows in the same step, so that the step before is over.
        engine.submit(question(model, samples, 3)).result(600)
        counted = engine.status().generated_tokens
        assert not long.done()
        assert counted > alone + len(first.tokens)
        long.cancel()
        with pytest.raises(CancelledError):
            long.result(600)
        assert engine.status().generated_tokens >= counted


@pytest.mark.slow
def test_a_window_waits_neither_for_recordings_nor_in_the_queue(
    model: Any, samples: NDArray[np.float32]
):
    long = np.tile(samples, 6)
    with Engine(model, rows=2, queue=1) as engine:
        # One waits: the queue is full.
        recordings = [engine.submit(long, best_of=1) for _ in range(3)]
        until(lambda: engine.status().running == 2)
        answer = engine.submit(question(model, samples, 3)).result(600)
        status = engine.status()
        assert "Dashwood" in answer.text
        assert (status.running, status.waiting, status.finished) == (2, 1, {"stop": 1})
        for recording in recordings:
            recording.cancel()


def test_what_takes_long_to_open_holds_up_nobody(
    model: Any, samples: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
):
    opened = threading.Event()
    closed: list[Any] = []
    opening = model._opening

    class Slow:
        def close(self) -> None:
            closed.append(self)

    def slow(audio: Any, params: Any) -> Any:
        if not (isinstance(audio, str) and audio == "slow"):
            return opening(audio, params)
        return lambda: Slow() if opened.wait(60) else None

    monkeypatch.setattr(model, "_opening", slow)
    with Engine(model, rows=2) as engine:
        late = engine.submit("slow", deadline=0.05)
        cancelled = engine.submit("slow")
        with pytest.raises(DeadlineError):
            late.result(600)
        assert engine.status().busy == []
        assert "Dashwood" in engine.submit(question(model, samples, 3)).result(600).text
        cancelled.cancel()
        with pytest.raises(CancelledError):
            cancelled.result(600)
        opened.set()
        transcript = engine.submit(samples[:80_000], best_of=1).result(600)
        assert "Dashwood" in "".join(segment.text for segment in transcript.segments)
        missing = engine.submit("nowhere.wav")
        with pytest.raises(InputMissingError):
            missing.result(600)
    assert len(closed) == 2


def test_a_window_that_cannot_be_answered_is_the_callers(model: Any, samples: NDArray[np.float32]):
    with Engine(model, rows=2) as engine:
        with pytest.raises(UsageError, match="cannot translate"):
            engine.submit(question(model, samples, 3, task="translate")).result(600)
        cancelled = [engine.submit(question(model, samples, 12)) for _ in range(4)]
        for job in cancelled:
            job.cancel()
        with pytest.raises(CancelledError):
            cancelled[-1].result(600)
        assert engine.submit(question(model, samples, 3)).result(600).text
        assert engine.status().running == 0
