"""Samples of a recording, read forwards, are those that it has, however long it is."""

from typing import Any

import numpy as np
import pytest

from kvcast.audio import features
from kvcast.audio.decode import open_audio
from kvcast.audio.features import SampledAudio

SOUND = np.random.default_rng(0).normal(0, 0.1, 16_000 * 5 + 77).astype(np.float32)
PLACES = ((0, 100), (0, 40), (40, 130), (130, 500), (20, 60), (499, 500), (300, 501))


@pytest.mark.parametrize("kept", [0, 10**7], ids=["read again", "kept"])
def test_chunks_have_their_samples_in_any_order(kept: int, monkeypatch: Any):
    monkeypatch.setattr(features, "_KEPT", kept)
    sound = SampledAudio(open_audio(SOUND))
    assert (sound.content_frames, sound.duration) == (500, len(SOUND) / 16_000)
    for first, end in PLACES:
        stop = end * 160 if end < 500 else len(SOUND)
        np.testing.assert_array_equal(sound.samples(first, end), SOUND[first * 160 : stop])
    assert not sound.is_silent(0, 500)
    sound.close()
