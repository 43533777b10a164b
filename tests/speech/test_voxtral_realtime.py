"""Live text of a model whose text advances with its sound is that of each whole utterance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcast
from kit.audio_decoders import random_voxtral_realtime, save_audio_decoder
from kvcast.errors import UsageError
from kvcast.speech.params import LiveParams

RATE, PIECE = 16_000, 1280


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_audio_decoder(random_voxtral_realtime(), tmp_path_factory.mktemp("realtime"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return kvcast.load(folder, runtime="native", quantize="none", threads=1)


def noise(seconds: float, seed: int) -> Any:
    samples = np.random.default_rng(seed).normal(0, 0.1, round(RATE * seconds))
    return samples.astype(np.float32)


def listener(blocks_nb: Any) -> Any:
    """Speech is what is loud."""
    return (np.abs(blocks_nb).mean(axis=1) > 0.01).astype(np.float32)


def test_pieces_of_any_length_give_the_text_of_the_whole(model: Any):
    """Both rings turn over: 200 positions of sound against a window of 50, 95 tokens against 30."""
    window = model.streaming_window(None, LiveParams())
    begin = 0
    for i, (seconds, length) in enumerate(((4.03, 511), (0.7, 20_000), (2.0, PIECE))):
        samples, words, early = noise(seconds, i), [], 0
        assert window.room == 375 * PIECE
        for first in range(0, len(samples), length):
            window.append(samples[first : first + length])
            words += window.listen()
            early = len(words)
        words += window.conclude(window.end)
        window.keep_last(0)
        [whole] = model.transcribe(samples)
        assert [token for word in words for token in word.tokens] == list(whole.tokens)
        assert "".join(word.text for word in words).split() == whole.text.split()
        assert early > 0 or seconds < 1
        assert words[0].started == begin / RATE
        ends = [word.spoken for word in words]
        assert ends == sorted(ends)
        assert ends[-1] <= window.end / RATE
        begin = window.end


def test_a_full_window_makes_room(model: Any):
    window = model.streaming_window(None, LiveParams())
    window.append(noise(1.0, 0))
    assert window.room == 375 * PIECE - RATE
    words = [*window.listen(), *window.make_room()]
    [whole] = model.transcribe(noise(1.0, 0))
    assert [token for word in words for token in word.tokens] == list(whole.tokens)
    assert (window.room, window.start) == (375 * PIECE, RATE)


def test_utterances_end_with_pauses(model: Any):
    quiet = np.zeros(RATE, np.float32)
    sound = np.concatenate([quiet, noise(1.5, 1), quiet, noise(1.0, 2), quiet])
    live = model.live(listener, pause=0.3, language="fr")
    updates = [
        update for at in range(0, len(sound), 700) for update in live.feed(sound[at : at + 700])
    ]
    updates += live.finish()
    lines = [update.segment for update in updates if update.segment]
    assert len(lines) == 2
    assert "".join(update.settled for update in updates) == "".join(line.text for line in lines)
    assert all(line.text.strip() for line in lines)
    assert 0.4 < lines[0].start < 1.1
    assert 2.9 < lines[1].start < 3.6
    assert live.language == "fr"


def test_options_and_runtimes_without_use_are_refused(folder: Path, model: Any):
    with pytest.raises(UsageError, match="agreement"):
        model.live(listener, agreement=3)
    eager = kvcast.load(folder, runtime="eager")
    with pytest.raises(UsageError, match="runtime native"):
        eager.live(listener)
