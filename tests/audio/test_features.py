"""Windows and samples of a recording of any length, against openai-whisper's spectrogram."""

import tracemalloc
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whisper
from kvcast.audio import features
from kvcast.audio.decode import ArrayAudio, open_audio
from kvcast.audio.features import MelWindows, SampledAudio, log_mel_stream, open_features
from kvcast.audio.mel import SILENCE, normalise
from kvcast.audio.source import AudioSource
from kvcast.errors import InputOutputError

PADDING = 480_000
CLOSE = {"rtol": 0, "atol": 3e-5}


def openai_features(samples, n_mels):
    return whisper.log_mel_spectrogram(np.array(samples), n_mels, padding=PADDING).numpy()


def openai_window(features, seek, end=None):
    """Cut a window as whisper.transcribe does: values past the end are zeros."""
    content_frames = features.shape[1] - 3000
    size = min(3000, content_frames - seek, (content_frames if end is None else end) - seek)
    return whisper.pad_or_trim(features[:, seek : seek + size], 3000)


class Blocks(AudioSource):
    """A source that yields the same array in blocks of a given size and counts its passes."""

    def __init__(self, samples, size):
        self.name, self.notices, self.passes = "test", (), 0
        self._samples, self._size = samples, size

    def blocks(self):
        self.passes += 1
        for start in range(0, len(self._samples), self._size):
            yield self._samples[start : start + self._size]

    def close(self):
        pass


@pytest.fixture(autouse=True)
def _few_frames_are_kept(monkeypatch):
    monkeypatch.setattr(features, "KEPT_FRAMES", 12_000)


@pytest.fixture(scope="module")
def long_speech(speech):
    """More speech than is kept, with the loudest part, which sets the floor, at the end."""
    repeated = np.tile(speech, 6)
    repeated[-16_000:] *= 3
    assert len(repeated) // 160 > 12_000
    return repeated


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("repeats", [1, 6])
def test_every_window_is_what_openai_transcribe_cuts(speech, n_mels, repeats):
    samples = np.tile(speech, repeats)
    expected = openai_features(samples, n_mels)
    with open_features(samples, n_mels) as windows:
        assert windows.content_frames == expected.shape[1] - 3000
        assert windows.duration == len(samples) / 16_000
        for seek in range(0, windows.content_frames, 2_718):
            window = windows.window(seek)
            assert window.shape == (n_mels, 3000)
            assert window.dtype == np.float32
            np.testing.assert_allclose(window, openai_window(expected, seek), **CLOSE)


@pytest.mark.parametrize("size", [997, 16_000, 32_768, 10**9])
def test_block_size_changes_nothing(long_speech, size):
    expected = openai_features(long_speech, 80)
    windows = MelWindows(Blocks(long_speech, size), 80)
    for seek in (0, 2_500, 5_500, 11_000, windows.content_frames - 7):
        np.testing.assert_allclose(windows.window(seek), openai_window(expected, seek), **CLOSE)


@pytest.mark.parametrize(
    ("seeks", "passes"),
    [
        ((9_000, 0, 14_000, 100, 99, 14_000), None),
        # Windows of the last two minutes are kept.
        ((0, 2_000, 12_500, 1_000, 12_900, 6_000), 2),
    ],
)
def test_any_order_of_seeks_gives_the_same_windows(long_speech, seeks, passes):
    expected = openai_features(long_speech, 80)
    source = Blocks(long_speech, 32_768)
    windows = MelWindows(source, 80)
    for seek in (*seeks, *(() if passes else (windows.content_frames,))):
        np.testing.assert_allclose(windows.window(seek), openai_window(expected, seek), **CLOSE)
    assert passes in (None, source.passes)


def test_a_short_recording_is_decoded_once_and_a_long_one_twice(speech, long_speech):
    for samples, passes in ((speech, 1), (long_speech, 2)):
        source = Blocks(samples, 32_768)
        windows = MelWindows(source, 80)
        for seek in range(0, windows.content_frames, 3_000):
            windows.window(seek)
        assert source.passes == passes


def test_a_clip_end_cuts_the_window_to_zeros_as_openai_does(speech):
    expected = openai_features(speech, 80)
    with open_features(speech, 80) as windows:
        for seek, end in ((0, 1_000), (400, 401), (2_000, 9_999), (500, 500), (600, 500)):
            cut = openai_window(expected, seek, max(seek, end))
            np.testing.assert_allclose(windows.window(seek, end), cut, **CLOSE)


@pytest.mark.parametrize("repeats", [1, 2])
def test_first_window_shows_silence_after_the_end_as_language_detection_expects(speech, repeats):
    samples = np.tile(speech, repeats)
    expected = whisper.pad_or_trim(openai_features(samples, 80), 3000)
    with open_features(samples, 80) as windows:
        np.testing.assert_allclose(windows.first_window(), expected, **CLOSE)


def test_a_window_is_the_callers_own(speech):
    with open_features(speech, 80) as windows:
        first = windows.window(0)
        kept = first.copy()
        first[:] = 7
        np.testing.assert_array_equal(windows.window(0), kept)


@settings(deadline=None, max_examples=60)
@given(
    length=st.one_of(st.integers(1, 1_000), st.integers(1, 40_000)),
    size=st.integers(1, 5_000),
    seed=st.integers(0, 2**32 - 1),
)
def test_frames_of_any_length_in_any_blocks_are_those_of_openai(length, size, seed):
    samples = np.random.default_rng(seed).uniform(-1, 1, length).astype(np.float32)
    size = max(size, length // 50)
    frames = np.concatenate(list(log_mel_stream(Blocks(samples, size).blocks(), 80)))
    expected = openai_features(samples, 80)
    padded = np.full((expected.shape[1], 80), SILENCE)
    padded[: len(frames)] = frames
    features = normalise(padded, padded.max())
    np.testing.assert_allclose(features.T, expected, rtol=0, atol=1e-4)


class FortyMinutes(AudioSource):
    """Forty minutes of noise, generated while it is read."""

    name, notices = "forty minutes", ()
    block = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)

    def blocks(self):
        for second in range(2_400):
            yield self.block * np.float32(0.5 + second / 4_800)

    def close(self):
        pass


@contextmanager
def traced():
    """Append the peak of traced memory to the list that it gives."""
    peaks = []
    tracemalloc.start()
    try:
        yield peaks
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_length():
    whole = 2_400 * 16_000 * 4
    with traced() as peaks:
        windows = MelWindows(FortyMinutes(), 80)
        for seek in range(0, windows.content_frames, 3_000):
            windows.window(seek)
    assert windows.content_frames == 240_000
    assert peaks[0] < whole / 10


def test_a_long_file_is_decoded_in_bounded_memory(encode):
    samples = np.random.default_rng(0).normal(0, 0.1, (600 * 8_000, 2)).astype(np.float32)
    path = encode("long.wav", samples, 8_000, subtype="FLOAT")
    with traced() as peaks, open_features(path, 80) as windows:
        windows.window(40_000)
    assert peaks[0] < samples.nbytes / 3


@pytest.mark.parametrize("length", [0, 1, 159])
def test_less_than_one_frame_is_an_error(length):
    with pytest.raises(InputOutputError, match="too short to hold speech"):
        open_features(np.ones(length, np.float32), 80)


_STEP = 1 / 2**15


@pytest.mark.parametrize(
    ("samples", "silent"),
    [
        (np.zeros(16_000), True),
        (np.full(16_000, 0.01), True),  # an offset
        (np.random.default_rng(0).integers(-2, 3, 16_000) * _STEP, True),  # dither of 16 bits
        (np.tile([0, 0, 0, 5], 4_000) * _STEP, False),
        (np.append(np.zeros(15_999), 0.01), False),
    ],
)
def test_silence_is_a_flag_and_a_notice(samples, silent):
    with open_features(samples.astype(np.float32), 80) as windows:
        assert windows.silent == silent
        notice = "the array is silent: there is no speech to transcribe"
        assert windows.notices == ((notice,) if silent else ())


@pytest.mark.parametrize("minutes", [1, 11])  # kept, and read again
def test_silent_frames_are_known_wherever_blocks_end(minutes):
    samples = np.zeros(minutes * 60 * 16_000 + 100, np.float32)
    samples[32_767] = samples[-1] = 0.1
    with open_features(samples, 80) as windows:
        end = len(samples) // 160
        spans = [(0, 204), (205, end), (204, 205)]
        assert [windows.is_silent(*span) for span in spans] == [True, True, False]
        assert not windows.is_silent(end, end + 1)


def test_arrays_are_served_in_blocks_of_bounded_size():
    samples = np.zeros(1_000_000, np.int16)
    assert max(len(block) for block in ArrayAudio(samples).blocks()) <= 32_768


NOISE = np.random.default_rng(0).normal(0, 0.1, 16_000 * 5 + 77).astype(np.float32)
PLACES = ((0, 100), (0, 40), (40, 130), (130, 500), (20, 60), (499, 500), (300, 501))


@pytest.mark.parametrize("kept", [0, 10**7], ids=["read again", "kept"])
def test_chunks_have_their_samples_in_any_order(kept: int, monkeypatch: Any):
    monkeypatch.setattr(features, "_KEPT", kept)
    audio = SampledAudio(open_audio(NOISE))
    assert (audio.content_frames, audio.duration) == (500, len(NOISE) / 16_000)
    for first, end in PLACES:
        stop = end * 160 if end < 500 else len(NOISE)
        np.testing.assert_array_equal(audio.samples(first, end), NOISE[first * 160 : stop])
    assert not audio.is_silent(0, 500)
    audio.close()
