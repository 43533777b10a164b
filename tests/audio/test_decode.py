"""All formats, rates, channel counts and kinds of input give the same waveform."""

import io
import os
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from kvcast.audio.decode import open_audio
from kvcast.errors import InputOutputError


def decoded(source, **options):
    audio = open_audio(source, **options)
    try:
        samples = np.concatenate(list(audio.blocks()))
    finally:
        audio.close()
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    return samples, audio.notices


def likeness(samples, expected):
    """Largest correlation over all delays: 1 for the same audio, codec losses and scale aside."""
    length = 2 * max(len(samples), len(expected))
    spectrum = np.fft.rfft(samples, length) * np.fft.rfft(expected, length).conj()
    return np.fft.irfft(spectrum).max() / np.linalg.norm(samples) / np.linalg.norm(expected)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.aiff", "a.au", "a.w64", "a.caf"])
def test_lossless_formats_give_the_samples_themselves(encode, speech, name):
    samples, notices = decoded(encode(name, speech, subtype="PCM_16"))
    np.testing.assert_array_equal(samples, speech)
    assert notices == ()


@pytest.mark.parametrize("name", ["a.mp3", "a.ogg", "a.m4a", "a.mp4", "a.webm"])
@pytest.mark.parametrize(("rate", "channels"), [(16_000, 1), (48_000, 2)])
def test_lossy_formats_give_similar_audio(encode, speech, name, rate, channels):
    stored = soxr.resample(speech[:160_000], 16_000, rate)
    stored = np.stack([stored] * channels, axis=1) if channels > 1 else stored
    samples, notices = decoded(encode(name, stored, rate))
    assert notices == ()
    assert len(samples) == pytest.approx(160_000, abs=2_500)
    assert likeness(samples, speech[:160_000]) > 0.97


@pytest.mark.parametrize("rate", [1_000, 8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 768_000])
def test_any_rate_is_resampled_as_soxr_does_in_one_piece(encode, rate):
    stored = np.random.default_rng(0).normal(0, 0.1, 2 * rate + 77).astype(np.float32)
    samples, _ = decoded(encode("a.wav", stored, rate, subtype="FLOAT"))
    expected = soxr.resample(stored, rate, 16_000, quality="HQ")
    assert len(samples) == len(expected)
    np.testing.assert_allclose(samples, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("channels", [2, 3, 6, 300])
def test_channels_are_averaged(encode, channels):
    shape = (4_000, channels)
    stored = np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)
    samples, _ = decoded(encode("a.wav", stored, subtype="FLOAT"))
    np.testing.assert_allclose(samples, stored.mean(axis=1), rtol=0, atol=1e-6)


def test_blocks_stay_small_whatever_the_channel_count(encode):
    path = encode("a.wav", np.zeros((50_000, 64), np.float32), subtype="FLOAT")
    audio = open_audio(path)
    assert max(len(block) for block in audio.blocks()) == 512
    audio.close()


def test_path_text_file_object_and_standard_input_agree(encode, speech, pipe, monkeypatch):
    path = encode("a.flac", speech)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=pipe(path.read_bytes())))
    with path.open("rb") as file:
        for source in (path, str(path), file, io.BytesIO(path.read_bytes()), "-"):
            np.testing.assert_array_equal(decoded(source)[0], speech)
        assert not file.closed


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.ogg", "a.m4a", "a.webm"])
def test_a_pipe_can_be_passed_over_twice(encode, speech, pipe, name):
    audio = open_audio(pipe(encode(name, speech).read_bytes()))
    first = np.concatenate(list(audio.blocks()))
    np.testing.assert_array_equal(np.concatenate(list(audio.blocks())), first)
    audio.close()


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.m4a"])
def test_a_file_object_may_give_less_than_it_is_asked_for(encode, speech, name):
    class Few(io.BytesIO):
        def read(self, count=-1):
            return super().read(min(count, 999))

    joined = encode(name, speech[:80_000]).read_bytes() * 2
    samples, _ = decoded(io.BytesIO(joined))
    assert len(samples) == pytest.approx(160_000, abs=5_000)
    np.testing.assert_array_equal(decoded(Few(joined))[0], samples)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_a_path_that_is_a_pipe_is_read(encode, speech):
    data = encode("a.wav", speech[:8_000], subtype="PCM_16").read_bytes()
    read_end, write_end = os.pipe()
    os.write(write_end, data)
    os.close(write_end)
    try:
        samples, _ = decoded(f"/dev/fd/{read_end}")
    finally:
        os.close(read_end)
    np.testing.assert_array_equal(samples, speech[:8_000])


def test_a_pass_may_stop_early_and_start_again(encode, speech):
    audio = open_audio(encode("a.flac", speech))
    blocks = audio.blocks()
    next(blocks)
    blocks.close()
    np.testing.assert_array_equal(np.concatenate(list(audio.blocks())), speech)
    audio.close()


@pytest.mark.parametrize("suffix", [".raw", ".txt", ".mp3", ""])
def test_content_decides_not_the_name(encode, speech, suffix):
    path = encode("a.wav", speech, subtype="PCM_16")
    renamed = path.rename(path.with_name("renamed" + suffix))
    np.testing.assert_array_equal(decoded(renamed)[0], speech)


def without_xing_frame(path):
    """Drop an mp3's first frame, which has the number of frames and no audio."""
    data = path.read_bytes()
    assert b"Xing" in data[:200] or b"Info" in data[:200]
    path.write_bytes(data[data.index(data[:2], 4) :])
    return path


def test_an_mp3_without_a_frame_count_is_read_to_its_end(encode, capfd):
    loud = np.random.default_rng(0).normal(0, 0.2, 3 * 16_000)
    quiet = 0.01 * np.sin(np.arange(20 * 16_000) / 20)
    options = {"bitrate_mode": "VARIABLE", "compression_level": 0.5}
    path = without_xing_frame(encode("a.mp3", np.concatenate([loud, quiet]), **options))
    assert len(soundfile.read(path)[0]) < 15 * 16_000, "libsndfile now finds the end by itself"
    capfd.readouterr()
    samples, notices = decoded(path)
    assert len(samples) == pytest.approx(23 * 16_000, abs=3_000)
    assert notices == ()
    assert capfd.readouterr().err == ""


def without_length(data, size):
    """Return a FLAC whose header has no number of samples, or a WAV that was streamed."""
    data = bytearray(data)
    if data.startswith(b"fLaC"):
        data[21] &= 0xF0  # STREAMINFO's 36 bits of total samples: zero means unknown
        data[22:26] = bytes(4)
    else:
        at = data.index(b"data") + 4
        data[at : at + 4] = data[4:8] = size.to_bytes(4, "little")
    return data


@pytest.mark.parametrize(
    ("name", "size"), [("a.flac", 0), ("a.wav", 0xFFFFFFFF), ("a.wav", 0x7FFFF000)]
)
def test_a_file_of_unknown_length_is_read_to_its_end_and_not_called_cut_short(
    encode, speech, name, size
):
    path = encode(name, speech, subtype="PCM_16")
    path.write_bytes(without_length(path.read_bytes(), size))
    samples, notices = decoded(path)
    np.testing.assert_array_equal(samples, speech)
    assert notices == ()


def hide_pyav(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "kvcast.audio.media", raising=False)


@pytest.mark.parametrize(
    ("name", "is_format"),
    [
        ("talk.m4a", "is MPEG-4 audio"),
        ("talk.mp4", "is MP4"),
        ("talk.mov", "is QuickTime"),
        ("talk.3gp", "is 3GP"),
        ("talk.webm", "is WebM or Matroska"),
        ("talk.mkv", "is WebM or Matroska"),
        ("talk.aac", "is AAC"),
        ("talk.wma", "is WMA"),
        ("talk.wv", "is WavPack"),
        ("talk.ts", "is named .ts, a format"),
        ("talk.flv", "is named .flv, a format"),
    ],
)
def test_without_pyav_the_line_says_the_format_first(
    encode, speech, tmp_path, monkeypatch, name, is_format
):
    encoded = encode(name, speech)
    hide_pyav(monkeypatch)
    line = f"{is_format}, which needs PyAV: pip install 'kvcast[media]'"
    with pytest.raises(InputOutputError, match=re.escape(f"talk{encoded.suffix} {line}") + "$"):
        decoded(encoded)
    if "named" not in is_format:  # its content decides
        renamed = encoded.rename(tmp_path / "talk")
        with pytest.raises(InputOutputError, match=re.escape(f"talk {line}") + "$"):
            decoded(renamed)


def test_without_pyav_an_amr_file_is_named_and_a_damaged_file_is_not(tmp_path, monkeypatch):
    hide_pyav(monkeypatch)
    phone = tmp_path / "call.amr"
    phone.write_bytes(b"#!AMR\n" + bytes(320))
    with pytest.raises(InputOutputError, match=r"call\.amr is AMR, which needs PyAV"):
        decoded(phone)
    damaged = tmp_path / "talk.flac"
    damaged.write_bytes(b"fLaC" + bytes(100))
    with pytest.raises(InputOutputError, match=r"talk\.flac cannot be decoded"):
        decoded(damaged)


def test_a_playlist_cannot_make_pyav_open_another_file(encode, speech, tmp_path):
    target = encode("secret.m4a", speech)
    lists = {
        "a.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:30\n#EXTINF:30,\n{target}\n#EXT-X-ENDLIST\n",
        "a.ffconcat": f"ffconcat version 1.0\nfile {target}\n",
    }
    for name, text in lists.items():
        Path(tmp_path / name).write_text(text)
        with pytest.raises(InputOutputError, match="not recognised"):
            decoded(tmp_path / name)
