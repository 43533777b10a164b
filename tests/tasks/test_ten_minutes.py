"""Ten minutes of real speech: in a batch and with drafts, what each recording gives alone."""

from typing import Any

import numpy as np
import pytest
from real_speech import Load, Samples, told

import kvcast

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"language": "en", "temperature": 0.0}


@pytest.fixture(scope="module")
def model(load: Load) -> kvcast.WhisperModel:
    return load("demo", runtime="onnx", quantize="none")


@pytest.fixture(scope="module")
def several(recordings: dict[str, Samples]) -> list[Samples]:
    """Pieces of 5 to 90 s that begin anywhere."""
    whole = np.concatenate([recordings["spoken"], recordings["example"]])
    rng = np.random.default_rng(0)
    pieces: list[Samples] = []
    while sum(map(len, pieces)) < 10 * 60 * 16000:
        begin = rng.integers(len(whole) - 5 * 16000)
        pieces.append(whole[begin : begin + rng.integers(5, 90) * 16000])
    return pieces


@pytest.fixture(scope="module")
def alone(model: kvcast.WhisperModel, several: list[Samples]) -> list[Any]:
    """What must be equal: windows one by one."""
    found = [list(model.transcribe(one, batch=1, **OPTIONS)) for one in several]
    assert all(found)
    return told(found)


def test_recordings_that_come_and_go_give_in_a_batch_what_each_gives_alone(model, several, alone):
    found = [list(one) for one in model.transcribe_all(several, batch=6, **OPTIONS)]
    assert told(found) == alone


def test_they_are_the_same_with_drafts(model, several, alone, load: Load):
    accepted = 0
    for one, expected in zip(several, alone, strict=True):
        drafted = model.transcribe(one, batch=1, draft=load("demo"), **OPTIONS)
        assert told([list(drafted)]) == [expected]
        assert drafted.draft is not None
        accepted += drafted.draft.accepted
    assert accepted > 0
