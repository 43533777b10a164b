"""Log-mel spectrograms against the implementations that models' users know."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from transformers import (
    CohereAsrFeatureExtractor,
    ParakeetFeatureExtractor,
    WhisperFeatureExtractor,
)

import whisper
from kvcast.audio.features import open_features
from kvcast.audio.mel import HOP, N_FFT, SILENCE, log_mel_frames, mel_filters, normalised_log_mel

BANDS = pytest.mark.parametrize("n_mels", [80, 128])


@BANDS
def test_filters_are_those_that_openai_ships(n_mels):
    with np.load(Path(whisper.__file__).parent / "assets" / "mel_filters.npz") as shipped:
        expected = shipped[f"mel_{n_mels}"].T
    assert mel_filters(n_mels).dtype == np.float32
    np.testing.assert_allclose(mel_filters(n_mels), expected, rtol=0, atol=1e-8)


@BANDS
def test_filters_are_those_that_hugging_face_computes(n_mels):
    expected = WhisperFeatureExtractor(feature_size=n_mels).mel_filters
    np.testing.assert_allclose(mel_filters(n_mels), expected, rtol=0, atol=1e-8)


@BANDS
@pytest.mark.parametrize("seconds", [29.9, 24.73, 3])
def test_features_of_a_clip_are_those_of_hugging_face(speech, n_mels, seconds):
    clip = np.resize(speech, int(seconds * 16_000))
    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    expected = extractor(clip, sampling_rate=16_000, return_tensors="np").input_features[0]
    features = first_window(clip, n_mels)
    assert features.shape == expected.shape == (n_mels, 3000)
    np.testing.assert_allclose(features, expected, rtol=0, atol=1e-4)


def test_features_of_noise_are_those_of_hugging_face():
    noise = np.random.default_rng(0).normal(0, 0.1, 480_000).astype(np.float32)
    expected = WhisperFeatureExtractor()(noise, sampling_rate=16_000, return_tensors="np")
    expected = expected.input_features[0]
    # The last frame reaches beyond the clip, where Hugging Face reflects it and OpenAI adds zeros.
    features = first_window(noise, 80)
    np.testing.assert_allclose(features[:, :-1], expected[:, :-1], rtol=0, atol=1e-4)


def first_window(clip, n_mels):
    with contextlib.closing(open_features(clip, n_mels)) as windows:
        return windows.first_window()


def test_arithmetic_stays_in_float32():
    samples = np.ones(4_000, np.float32)
    assert np.fft.rfft(samples[:N_FFT]).dtype == np.complex64
    assert log_mel_frames(samples, 80).dtype == np.float32


@pytest.mark.parametrize("length", [400, 559, 560, 16_000, 256 * HOP + N_FFT])
def test_every_whole_frame_is_computed_and_none_beyond(length):
    frames = log_mel_frames(np.zeros(length, np.float32), 80)
    assert frames.shape == (1 + (length - 400) // 160, 80)
    assert (frames == SILENCE).all()


EXTRACTORS = {
    "parakeet": lambda n_mels: ParakeetFeatureExtractor(feature_size=n_mels),
    "cohere": lambda n_mels: CohereAsrFeatureExtractor(feature_size=n_mels, dither=0.0),
}


@BANDS
@pytest.mark.parametrize("extractor", EXTRACTORS)
@pytest.mark.parametrize("samples", [47_999, 325])
def test_normalised_features_are_those_of_hugging_face(speech, extractor, n_mels, samples):
    clip = speech[:samples]
    told = EXTRACTORS[extractor](n_mels)(clip, sampling_rate=16_000, return_tensors="np")
    features = normalised_log_mel(clip, n_mels)
    assert features.dtype == np.float32
    assert len(features) == told.attention_mask.sum() == samples // 160
    expected = told.input_features[0, : len(features)]
    np.testing.assert_allclose(features, expected, rtol=0, atol=2e-3 if samples < 1000 else 1e-4)


def test_dither_is_deterministic_and_small(speech):
    clip = speech[:48_000]
    once, again = (normalised_log_mel(clip, 80, noise=1e-5) for _ in range(2))
    assert (once == again).all()
    without = normalised_log_mel(clip, 80)
    assert 0 < np.abs(once - without).mean() < 0.01


def test_audio_of_no_frame_has_features():
    assert np.isfinite(normalised_log_mel(np.zeros(3, np.float32), 80)).all()
