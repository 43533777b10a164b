"""Audio that arrives in bytes: raw PCM, G.711, WAV of any coding and without a length."""

import io
import struct
from collections.abc import Callable
from itertools import cycle

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kit.recordings import SPOKEN
from kvcast.audio.formats import foreign
from kvcast.audio.stream import AudioStream, decode_a_law, decode_mu_law
from kvcast.errors import InputOutputError

TONE = (0.5 * np.sin(np.arange(4000) * 0.05)).astype(np.float32)
TONE_16 = (TONE * 2**15).astype("<i2")


def wav(samples: np.ndarray, subtype: str = "PCM_16", rate: int = 16_000, **settings) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, subtype=subtype, format="WAV", **settings)
    return file.getvalue()


def fed(stream: AudioStream, data: bytes, sizes: tuple[int, ...] = (1000,)) -> np.ndarray:
    pieces, rest = [], data
    for size in cycle(sizes):
        if not rest:
            break
        pieces.append(stream.feed(rest[:size]))
        rest = rest[size:]
    pieces.append(stream.finish())
    assert all(piece.dtype == np.float32 for piece in pieces)
    return np.concatenate(pieces)


def decoded(data: bytes, sizes: tuple[int, ...] = (1000,), **settings) -> np.ndarray:
    return fed(AudioStream(**settings), data, sizes)


def header(tag: int = 1, channels: int = 1, rate: int = 16_000, bits: int = 16) -> bytes:
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * bits // 8, 2, bits)
    return b"RIFF\xff\xff\xff\xffWAVE" + b"fmt " + struct.pack("<I", len(fmt)) + fmt


def aac(length: int) -> bytes:
    """Return a frame of ADTS, as of ffmpeg."""
    bits = length << 13 | 0x7FF << 2
    return b"\xff\xf1\x60" + (0x40 << 24 | bits).to_bytes(4, "big") + bytes(length - 7)


@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_pieces_of_any_length_give_the_same_samples(sizes):
    for data in TONE_16.tobytes(), wav(TONE_16):
        assert np.array_equal(decoded(data, tuple(sizes)), TONE_16 / np.float32(2**15))


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("format_", ["WAV", "WAVEX"])
def test_codings_equal_libsndfiles(subtype: str, format_: str):
    file = io.BytesIO()
    soundfile.write(file, TONE, 16_000, subtype=subtype, format=format_)
    expected, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")
    assert np.allclose(decoded(file.getvalue()), expected, atol=1e-7)


def test_channels_are_averaged_and_rates_converted():
    stereo = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    assert np.allclose(decoded(wav(stereo)), TONE / 2, atol=1e-4)
    tone = np.sin(np.arange(48_000) * 2 * np.pi * 440 / 48_000).astype(np.float32)
    expected = np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000)
    for data, rate in (
        (wav(tone, rate=48_000), 16_000),
        ((tone * 32767).astype("<i2").tobytes(), 48_000),
    ):
        samples = decoded(data, sample_rate=rate)
        assert len(samples) == 16_000
        assert np.allclose(samples[500:-500], expected[500:-500], atol=1e-3)


@pytest.mark.parametrize("claimed", [0, 0x7FFFF000, 0x7FFFFF00, 0x80000000, 0xFFFFFFFF])
def test_an_unknown_length_is_read_to_the_end(claimed: int):
    data = header() + b"data" + struct.pack("<I", claimed) + TONE_16.tobytes()
    assert len(decoded(data)) == len(TONE_16)


def test_bytes_after_a_known_length_are_ignored():
    chunk = b"LIST" + struct.pack("<I", 8) + b"INFOabcd"
    assert len(decoded(wav(TONE_16) + chunk, (7,))) == len(TONE_16)
    data = header() + chunk + b"data" + struct.pack("<I", 8000) + TONE_16.tobytes()
    assert len(decoded(data)) == 4000


@pytest.mark.parametrize("size", [997, 64_000])
def test_floats_that_are_integers_are_divided(size):
    stream = AudioStream()
    samples = fed(stream, wav(TONE * 2**15, "FLOAT"), (size,))
    np.testing.assert_allclose(samples[300:], TONE[300:], rtol=0, atol=1e-6)
    assert "16-bit" in " ".join(stream.notices)


@pytest.mark.parametrize("size", [7, 997, 64_000])
def test_channels_that_cancel_out_are_noticed_in_pieces_of_any_length(size):
    stream = AudioStream()
    samples = fed(stream, wav(np.stack([TONE_16, -TONE_16], axis=1)), (size,))
    np.testing.assert_allclose(np.abs(samples[600:]), np.abs(TONE[600:]), rtol=0, atol=1e-4)
    assert "cancel" in " ".join(stream.notices)


def test_part_of_a_sample_at_the_end_is_left_out():
    stream = AudioStream()
    samples = fed(stream, TONE_16.tobytes() + b"\1")
    assert len(samples) == len(TONE_16)
    assert stream.notices == ("standard input ends within a sample, which was left out",)


def test_less_than_a_header_is_raw():
    assert decoded(b"\0\x40\0\xc0").tolist() == [0.5, -0.5]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty: it has 0 bytes"),
        (b"fLaC" + bytes(40), "is FLAC, and only raw PCM or WAV can be read live"),
        (b"OggS" + bytes(40), "is Ogg, and"),
        (b"\0\0\0\x20ftypM4A \0\0\0\0", "is MPEG-4 audio, and"),
        (b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\0\0", "is Sony Wave64, and"),
        (aac(200) + aac(180), "is AAC, and"),
        (bytes.fromhex("fff344c4") + bytes(92) + bytes.fromhex("fff344c4000000"), "is MP3, and"),
        (b"RIFF\0\0\0\0AVI LIST", "is a RIFF file of another kind than WAVE"),
        (b"RIFF", "is a RIFF file of another kind than WAVE"),
        (header(), "is a WAV without audio: it is all header"),
        (header() + b"JUNK\xff\xff\xff\xff" + bytes(100), "is a WAV without audio"),
        (b"RIFF\0\0\0\0WAVEdata\0\0\0\0", "does not state how its audio is encoded"),
        (b"RIFF\0\0\0\0WAVEfmt \4\0\0\0abcd", "is a WAV with a damaged header"),
        (header(channels=0), "claims 0 channels"),
        (header(rate=1), "claims 1 channels of 1 samples a second"),
        (header(tag=0x55), "is a WAV of coding 85 with 16 bits"),
        (header(bits=12), "is a WAV of coding 1 with 12 bits"),
        (
            header(tag=3, bits=32) + b"data\0\0\0\0" + np.array([0, np.nan], "<f4").tobytes(),
            "is not audio: it has samples of nan near 0.0 s",
        ),
    ],
)
def test_unreadable_streams_are_refused_in_one_line(data: bytes, said: str):
    with pytest.raises(InputOutputError) as refused:
        decoded(data)
    assert said in str(refused.value)
    assert str(refused.value).startswith("standard input ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("format_", "subtype", "rate"),
    [("MP3", "MPEG_LAYER_III", rate) for rate in (8_000, 16_000, 22_050, 44_100, 48_000)]
    + [("MP3", "MPEG_LAYER_II", 44_100), ("W64", "PCM_16", 16_000), ("CAF", "PCM_16", 16_000)],
)
@pytest.mark.parametrize("size", [7, 5000])
def test_other_formats_of_libsndfile_are_refused(format_, subtype, rate, size):
    file = io.BytesIO()
    try:
        soundfile.write(file, np.tile(TONE, 10), rate, format=format_, subtype=subtype)
    except soundfile.LibsndfileError:
        pytest.skip("this libsndfile does not write it")
    data = file.getvalue()
    if data.startswith(b"ID3"):
        data = data[10 + sum(byte << 7 * (3 - at) for at, byte in enumerate(data[6:10])) :]
    with pytest.raises(InputOutputError, match="only raw PCM or WAV can be read live"):
        decoded(data, (size,))


def test_samples_that_begin_as_a_frame_are_samples():
    data = bytes.fromhex("fff344c4") + TONE_16.tobytes()
    assert np.array_equal(decoded(data, (64,)), np.frombuffer(data, "<i2") / np.float32(2**15))
    assert len(decoded(data[:40])) == 20


def test_random_samples_and_speech_are_samples():
    noise = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8).tobytes()
    speech, _ = soundfile.read(SPOKEN, dtype="int16")
    for data in noise, speech[: 60 * 16_000].astype("<i2").tobytes():
        at = range(0, len(data) - 9000, 32)
        assert [begin for begin in at if foreign(data[begin : begin + 9000])] == []
        # One in a thousand begins as a frame: as often as if these did.
        assert [begin for begin in at if foreign(_begun(data[begin : begin + 9000]))] == []


def _begun(data: bytes) -> bytes:
    """Return the bytes with a frame's first bits before them."""
    return bytes([0xFF, data[0] | 0xE0]) + data[1:]


def test_a_header_without_an_end_is_not_waited_for():
    stream = AudioStream()
    stream.feed(header() + b"JUNK\0\0\0\x7f" + bytes(1_000_000))
    with pytest.raises(InputOutputError, match="is all header"):
        stream.feed(bytes(1_000_000))


LAWS = {"ULAW": decode_mu_law, "ALAW": decode_a_law}
CODES = bytes(range(256))

Decode = Callable[[bytes], NDArray[np.int16]]


@pytest.mark.parametrize(("law", "decode"), LAWS.items())
def test_every_code_has_the_value_that_libsndfile_reads(law: str, decode: Decode):
    file = io.BytesIO(CODES)
    read, _ = soundfile.read(
        file, dtype="int16", format="RAW", subtype=law, samplerate=8000, channels=1
    )
    np.testing.assert_array_equal(decode(CODES), read)


@pytest.mark.parametrize(("law", "decode"), LAWS.items())
def test_values_of_libsndfile_are_read_within_a_step(law: str, decode: Decode):
    values = np.arange(-(2**15), 2**15)
    file = io.BytesIO()
    soundfile.write(file, values.astype(np.int16), 8000, format="RAW", subtype=law)
    decoded = decode(file.getvalue()).astype(np.int64)
    # A step is a sixteenth of its segment; clipped at the top, and never finer than 16 in A-law.
    np.testing.assert_array_less(np.abs(decoded - values), np.maximum(np.abs(values) / 16, 16) + 1)
