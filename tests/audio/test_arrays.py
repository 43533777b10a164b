"""Arrays, bytes and lists are read as the same audio in files, or refused in one line."""

import array
import io

import numpy as np
import pytest
import soxr

from audio.test_decode import decoded
from kvcast.audio.decode import open_audio
from kvcast.errors import KvcastError


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
@pytest.mark.parametrize("scale", [2**15, 2**31])
def test_floats_in_the_range_of_integers_are_scaled_with_a_notice(clip, dtype, scale):
    if dtype == "float16":
        scale = 2**15
    samples, [notice] = decoded((0.9 / np.abs(clip).max() * clip * scale).astype(dtype))
    np.testing.assert_allclose(samples, 0.9 / np.abs(clip).max() * clip, rtol=0, atol=1e-3)
    assert f"divided by {scale}" in notice


@pytest.mark.parametrize("subtype", ["FLOAT", "DOUBLE"])
def test_files_of_such_floats_too(encode, clip, subtype):
    path = encode("a.wav", clip * 2**15, 16_000, subtype=subtype)
    samples, [notice] = decoded(path)
    np.testing.assert_array_equal(samples, clip)
    assert "a.wav has floats up to" in notice
    assert "16-bit" in notice


@pytest.mark.parametrize("loudness", [0.001, 1.0, 3.0])
def test_other_floats_are_as_they_are(clip, loudness):
    samples, notices = decoded(clip * np.float32(loudness))
    np.testing.assert_array_equal(samples, clip * np.float32(loudness))
    assert notices == ()


def test_a_click_makes_no_integers_of_floats(clip):
    samples, notices = decoded(np.append(clip, np.float32(1000)))
    np.testing.assert_array_equal(samples[:-1], clip)
    assert notices == ()


def test_integers_have_the_full_scale_of_their_type_or_of_16_bits(clip):
    words = np.round(clip * 2**15).astype(np.int16)
    for samples in (
        words,
        words.astype(">i2"),
        words.astype(np.int32) << 16,
        words.astype(np.int64) << 16,
        (words.astype(np.int32) + 2**15).astype(np.uint16),
        array.array("h", words.tolist()),
    ):
        actual, notices = decoded(samples)
        np.testing.assert_allclose(actual, clip, rtol=0, atol=1e-7)
        assert notices == ()
    for samples in words.astype(np.int32), words.astype(np.int64), words.tolist():
        actual, [notice] = decoded(samples)
        np.testing.assert_allclose(actual, clip, rtol=0, atol=1e-7)
        assert "taken as 16-bit" in notice
    bytes_, _ = decoded(np.clip(np.round(clip * 128) + 128, 0, 255).astype(np.uint8))
    np.testing.assert_allclose(bytes_, clip, rtol=0, atol=1 / 128)


def test_channels_lie_in_either_order(clip):
    for samples in np.stack([clip, 0.5 * clip], axis=1), np.stack([clip, 0.5 * clip]):
        np.testing.assert_allclose(decoded(samples)[0], 0.75 * clip, rtol=0, atol=1e-7)
    for samples in clip[None], clip[:, None]:
        np.testing.assert_array_equal(decoded(samples)[0], clip)


def test_lists_and_bytes_are_taken(encode, clip):
    np.testing.assert_allclose(decoded(clip.tolist())[0], clip, rtol=0, atol=1e-7)
    content = encode("a.flac", clip).read_bytes()
    for source in content, bytearray(content), memoryview(content), io.BytesIO(content):
        np.testing.assert_array_equal(decoded(source)[0], clip)


@pytest.mark.parametrize("rate", [8_000, 44_100, 48_000])
def test_an_array_of_another_rate_is_resampled(clip, rate):
    samples, _ = decoded(soxr.resample(clip, 16_000, rate), sampling_rate=rate)
    assert len(samples) == pytest.approx(len(clip), abs=2)
    assert np.corrcoef(samples[:47_000], clip[:47_000])[0, 1] > 0.9


REFUSED = {
    "complex": np.zeros(16_000, np.complex64),
    "bool": np.zeros(16_000, bool),
    "three": np.zeros((2, 16_000, 2)),
    "nothing": np.float32(0),
    "square": np.zeros((3_000, 3_000)),
    "words": np.array(["a", "b"]),
    "objects": np.array([object()]),
    "files": ["a.wav", "b.wav"],
    "ragged": [[0.0], [0.0, 1.0]],
    "number": 5,
    "none": None,
    "dictionary": {},
    "text": io.StringIO("a"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_audio_is_refused_in_one_line(name):
    with pytest.raises(KvcastError) as refused:
        decoded(REFUSED[name])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("rate", [0, -1, 100, 10_000_000])
def test_a_rate_that_none_has_is_refused(clip, rate):
    with pytest.raises(KvcastError, match="sampling_rate must be from"):
        decoded(clip, sampling_rate=rate)


def test_a_file_knows_its_rate(encode, clip):
    with pytest.raises(KvcastError, match="sampling_rate is for arrays"):
        decoded(encode("a.flac", clip), sampling_rate=8_000)


def opposite(clip):
    noise = np.random.default_rng(0).normal(0, 0.001, (len(clip), 2))
    return (np.stack([clip, -0.8 * clip], axis=1) + noise).astype(np.float32)


@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("extension", ["wav", "m4a"])
def test_channels_that_cancel_out_are_noticed_and_one_is_used(encode, clip, extension, rate):
    stored = opposite(soxr.resample(clip, 16_000, rate))
    samples, [notice] = decoded(encode(f"a.{extension}", stored, rate))
    assert f"a.{extension} has channels that cancel each other out" in notice
    assert np.square(samples).mean() == pytest.approx(np.square(clip).mean(), rel=0.2)
    assert "cancel" in decoded(opposite(clip))[1][0]


def test_channels_of_two_speakers_do_not_cancel_out(speech):
    both = np.stack([speech[:48_000], speech[100_000:148_000]], axis=1)
    samples, notices = decoded(both)
    np.testing.assert_allclose(samples, both.mean(axis=1), rtol=0, atol=1e-7)
    assert notices == ()


def test_a_channel_is_read_alone(encode, speech):
    both = np.stack([speech[:48_000], speech[100_000:148_000]], axis=1)
    for source in both, encode("a.wav", both, subtype="PCM_16"):
        audio = open_audio(source)
        assert audio.channels == 2
        for channel in range(2):
            samples = np.concatenate(list(audio.of_channel(channel)))
            np.testing.assert_allclose(samples, both[:, channel], rtol=0, atol=1e-4)
        audio.close()
