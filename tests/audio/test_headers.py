"""Headers whose length field is too small, as a killed recorder leaves them."""

import re
import struct

import numpy as np
import pytest
import soundfile

from audio.test_decode import decoded

FORMATS = {
    **{"wav": "WAV", "rifx": "WAV", "rf64": "RF64", "w64": "W64", "aiff": "AIFF", "au": "AU"},
    **{"caf": "CAF", "nist": "NIST", "voc": "VOC"},
}
SECOND = 32_000  # bytes


def stated(data: bytes, kind: str, size: int) -> bytes:
    """Return a file whose header states so many bytes of audio."""

    def put(fmt, name, offset, *values):
        nonlocal data
        at = data.index(name) + offset
        data = data[:at] + struct.pack(fmt, *values) + data[at + struct.calcsize(fmt) :]

    match kind:
        case "wav":
            put("<I", b"RIFF", 4, 36 + size if size else 0)
            put("<I", b"data", 4, size)
        case "rifx":
            put(">I", b"data", 4, size)
        case "rf64":
            put("<QQQ", b"ds64", 8, size, size, size // 2)
        case "w64":
            put("<Q", b"data\xf3", 16, size + 24)
        case "aiff":
            put(">I", b"COMM", 10, size // 2)
            put(">I", b"SSND", 4, size + 8)
        case "au":
            put(">I", b".snd", 8, size)
        case "caf":
            put(">q", b"data", 4, size + 4)
        case "nist":
            line = re.search(rb"sample_count -i \d+\n", data)[0]
            data = data.replace(line, b"sample_count -i %0*d\n" % (len(line) - 17, size // 2))
        case "voc":
            data = data[:27] + struct.pack("<I", size + 12)[:3] + data[30:]
    return data


@pytest.mark.parametrize("subtype", ["PCM_24", "FLOAT", "PCM_U8", "ULAW", "IMA_ADPCM"])
@pytest.mark.parametrize("channels", [1, 2])
def test_wavs_of_any_coding_are(encode, clip, subtype, channels):
    stored = np.stack([clip] * channels, axis=1)
    path = encode("killed.wav", stored, 16_000, subtype=subtype)
    path.write_bytes(stated(path.read_bytes(), "wav", 0))
    samples, [_] = decoded(path)
    assert len(samples) == pytest.approx(len(clip), abs=1_000)
    assert np.corrcoef(samples[: len(clip)], clip)[0, 1] > 0.95


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [0, SECOND])
def test_it_is_read_to_its_end_with_a_notice(tmp_path, clip, kind, size):
    path = tmp_path / "killed"
    endian = {"endian": "BIG"} if kind == "rifx" else {}
    soundfile.write(path, clip, 16_000, format=FORMATS[kind], subtype="PCM_16", **endian)
    path.write_bytes(stated(path.read_bytes(), kind, size))
    samples, notices = decoded(path)
    np.testing.assert_array_equal(samples[: len(clip)], clip)
    assert len(samples) <= len(clip) + 100  # VOC ends in zeros
    if kind not in {"nist", "voc"}:  # libsndfile measures these by themselves
        [notice] = notices
        assert f"holds more than the {size / SECOND:.2f} s that its header states" in notice


def test_a_flac_whose_header_counts_less_is_read_to_its_end(encode, clip):
    path = encode("a.flac", clip)
    data = path.read_bytes()
    path.write_bytes(data[:22] + struct.pack(">I", 16_000) + data[26:])
    samples, [notice] = decoded(path)
    np.testing.assert_array_equal(samples, clip)
    assert "holds more than the 1.00 s" in notice


@pytest.mark.parametrize("has_bytes", [True, False])
def test_an_mp3_whose_header_counts_less_is_read_to_its_end(encode, clip, has_bytes):
    path = encode("a.mp3", clip)
    data = bytearray(path.read_bytes())
    at = max(data.find(b"Xing"), data.find(b"Info"))
    data[at + 7] = 0x0F if has_bytes else 0x0D
    data[at + 8 : at + 12] = (20).to_bytes(4, "big")
    if has_bytes:
        data[at + 12 : at + 16] = (5_000).to_bytes(4, "big")
    path.write_bytes(data)
    samples, [notice] = decoded(path)
    assert len(samples) == pytest.approx(len(clip), abs=3_000)
    assert "holds more than" in notice


CHUNK = b"LIST" + struct.pack("<I", 2_000) + b"INFO" + bytes(1_996)


@pytest.mark.parametrize(
    "after",
    [CHUNK, b"TAG" + bytes(125), bytes(4_096), b"\x01" * 500],
    ids=["LIST", "TAG", "zeros", "odd"],
)
@pytest.mark.parametrize("extension", ["wav", "flac"])
def test_bytes_after_the_audio_are_not_read(encode, clip, after, extension):
    path = encode(f"a.{extension}", clip, subtype="PCM_16")
    path.write_bytes(path.read_bytes() + after)
    samples, notices = decoded(path)
    np.testing.assert_array_equal(samples, clip)
    assert notices == ()


def test_mp3_in_a_wav_is_whole_and_no_library_speaks(tmp_path, clip, capfd):
    frames = tmp_path / "a.mp3"
    soundfile.write(frames, clip, 16_000, format="MP3")
    coded = frames.read_bytes()
    rate = len(coded) // (len(clip) // 16_000)
    mp3 = struct.pack("<HHIIHHHHIHHH", 85, 1, 16_000, rate, 1, 0, 12, 1, 2, 144, 1, 1105)
    count = struct.pack("<I", len(clip))
    chunks = [(b"fmt ", mp3), (b"fact", count), (b"data", coded + b"\0" * (len(coded) % 2))]
    body = b"".join(name + struct.pack("<I", len(data)) + data for name, data in chunks)
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WAVE" + body)
    samples, notices = decoded(path)
    assert len(samples) == pytest.approx(len(clip), abs=3_000)
    assert np.abs(samples).max() > 0.1
    assert notices == ()
    assert capfd.readouterr().err == ""
