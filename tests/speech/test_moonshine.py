"""Moonshines transcribe as transformers generates; streaming ones while the sound arrives."""

from typing import Any

import numpy as np
import pytest

import kvcast
from kit.random_moonshines import END, heard, random_moonshine, save_moonshine
from kvcast.errors import UsageError

RATE = 16_000


@pytest.fixture(scope="module", params=["moonshine", "streaming"])
def theirs(request: pytest.FixtureRequest) -> Any:
    return random_moonshine(request.param)


@pytest.fixture(scope="module")
def folder(theirs: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return save_moonshine(theirs, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def model(folder: Any) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def recording(seconds: float, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.normal(0, 0.1, round(RATE * seconds)).astype(np.float32)


def generated(theirs: Any, sound: Any, **options: Any) -> tuple[int, ...]:
    [tokens] = theirs.generate(**heard(theirs, sound), do_sample=False, **options)[:, 1:].tolist()
    return tuple(tokens[: tokens.index(END)] if END in tokens else tokens)


@pytest.mark.parametrize("seconds", [0.9, 1.5])
def test_a_transcript_has_the_tokens_that_transformers_generates(theirs, model, seconds):
    sound = recording(seconds)
    # As published: 6.5 tokens a second, the first included.
    expected = generated(theirs, sound, max_length=int(6.5 * seconds))
    assert len(expected) > 2
    [segment] = model.transcribe(sound)
    assert segment.tokens == expected
    assert (segment.start, segment.end, segment.language) == (0, seconds, "en")
    [other] = model.transcribe(sound, language="ja")
    assert other.tokens == generated(theirs, sound, max_length=int(13 * seconds))


def test_batches_and_engines_give_what_each_gives_alone(model):
    sounds = [recording(seconds, seed=3) for seconds in (1.0, 1.7, 4.0)]
    options = {"max_new_tokens": 5}
    alone = [list(model.transcribe(sound, **options)) for sound in sounds]
    assert [segments[-1].end for segments in alone] == [1.0, 1.7, 4.0]
    # The streaming one has positions for less than 2 seconds.
    assert len(alone[-1]) == (1 if model.dimensions.frame == 0 else 3)
    assert [list(each) for each in model.transcribe_all(sounds, batch=3, **options)] == alone
    with kvcast.Engine(model, rows=2) as engine:
        jobs = [engine.submit(sound, **options) for sound in sounds]
        assert [list(job.result().segments) for job in jobs] == alone
    beams = [list(model.transcribe(sound, beam=3, **options)) for sound in sounds]
    assert beams != alone
    assert [
        list(each) for each in model.transcribe_all(sounds, batch=3, beam=3, **options)
    ] == beams


def test_int8_transcribes_on_other_runtimes_one_line_says_why_not(folder):
    model = kvcast.load(folder, runtime="native", quantize="int8", threads=1)
    assert any(segment.text for segment in model.transcribe(recording(1.0)))
    with pytest.raises(UsageError, match="use --runtime native"):
        kvcast.load(folder, runtime="onnx")
