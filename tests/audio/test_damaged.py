"""Any damaged file is one line for the user."""

import struct
from pathlib import Path

import numpy as np
import pytest

from audio.media_files import write_adts
from kvcast.audio.features import open_features
from kvcast.errors import InputMissingError, InputOutputError

DAMAGED = Path(__file__).parent / "damaged"


def wav(channels=1, rate=16_000, data=bytes(32_000)):
    width = channels * 2
    form = struct.pack(
        "<4sIHHIIHH", b"fmt ", 16, 1, channels, rate, rate * width % 2**32, width, 16
    )
    body = b"WAVE" + form + struct.pack("<4sI", b"data", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


FILES = {
    "empty.wav": b"",
    "zero-channels.wav": wav(channels=0),
    "no-rate.wav": wav(rate=0),
    "one-hertz.wav": wav(rate=1),
    "absurd-rate.wav": wav(rate=0xFFFFFFFF),
    "high-rate.wav": wav(rate=768_001),
    "no-samples.wav": wav(data=b""),
    "one-sample.wav": wav(data=b"\x00\x40"),
    "text.wav": b"This is no sound at all.\n" * 50,
    "header-only.wav": wav()[:20],
    "header-promises-all.wav": wav()[:44],
    "zeros.mp3": bytes(5_000),
    "random.bin": np.random.default_rng(1).bytes(20_000),
    "mpeg-start.mp3": b"\xff\xfb\x90\x00" + bytes(60),
    "ogg-start.ogg": b"OggS\x00\x02" + bytes(60),
    "flac-start.flac": b"fLaC\x00\x00\x00\x22" + bytes(10),
    "mp4-start.m4a": b"\x00\x00\x00\x18ftypM4A \x00\x00\x00\x00M4A isom",
    "webm-start.webm": b"\x1a\x45\xdf\xa3" + bytes(30),
}

SAYS = {
    "empty.wav": "is empty: it has 0 bytes",
    "one-hertz.wav": "claims 1 samples a second",
    "high-rate.wav": "claims 768001 samples a second",
    "no-samples.wav": "holds no samples",
    "one-sample.wav": "too short to hold speech: it lasts 0.062 ms",
    "text.wav": "its format is not recognised",
    "header-promises-all.wav": "cut short: it ends where its audio should begin; no audio",
}


def one_line(source, name, capfd):
    """Return the message of the error on opening; nothing else may be printed."""
    with pytest.raises((InputOutputError, InputMissingError)) as caught:
        open_features(source, 80)
    message = str(caught.value)
    assert name in message
    assert message.isprintable()
    assert capfd.readouterr() == ("", "")
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_gets_one_line_and_exit_code_74(tmp_path, capfd, name):
    (tmp_path / name).write_bytes(FILES[name])
    error = one_line(tmp_path / name, name, capfd)
    assert error.exit_code == 74
    assert SAYS.get(name, "") in str(error)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("awful.wav", "claims 1092676 samples a second"),
        ("bad.wav", "no 'data' chunk"),
        ("evil.wav", "no 'data' chunk"),
        ("null.wav", "holds no samples"),
    ],
)
def test_the_damaged_files_of_another_project_get_one_line(capfd, name, says):
    error = one_line(DAMAGED / name, name, capfd)
    assert error.exit_code == 74
    assert says in str(error)


def test_a_folder_given_as_a_file_gets_one_line(tmp_path, capfd):
    error = one_line(tmp_path, str(tmp_path), capfd)
    assert error.exit_code == 74
    assert "is a folder, not an audio file" in str(error)


def test_a_missing_file_gets_one_line_and_exit_code_66(tmp_path, capfd):
    error = one_line(tmp_path / "none.wav", "none.wav", capfd)
    assert error.exit_code == 66


@pytest.mark.parametrize("name", ["two\nlines.wav", "bell\a.wav", "nul\0.wav", "\udcff.wav"])
def test_a_name_that_no_terminal_shows_is_escaped(tmp_path, capfd, name):
    error = one_line(tmp_path / name, ".wav", capfd)
    str(error).encode()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
def test_nan_samples_get_one_line(encode, capfd, bad):
    samples = np.zeros(48_000, np.float32)
    samples[40_000] = bad
    path = encode("nan.wav", samples, 44_100, subtype="FLOAT")
    assert "is not audio" in str(one_line(path, "nan.wav", capfd))


def test_a_silent_file_is_read_with_one_notice(encode, capfd):
    with open_features(encode("silent.wav", np.zeros(16_000)), 80) as windows:
        assert windows.silent
        (notice,) = windows.notices
    assert "silent.wav is silent: there is no speech to transcribe" in notice
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name", ["a.wav", "a.flac", "a.mp3", "a.ogg", "a.aiff", "a.au", "a.m4a", "a.webm"]
)
def test_a_truncated_file_is_read_with_one_notice(encode, speech, capfd, name):
    path = encode(name, speech)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 1])
    with open_features(path, 80) as windows:
        (notice,) = windows.notices
        assert 9 < windows.duration < 16
        assert np.ptp(windows.window(0)[:, :900]) > 1
    assert name in notice
    assert "cut short" in notice
    assert f"the {windows.duration:.2f} s that could be decoded are used" in notice
    assert notice.isprintable()
    assert capfd.readouterr() == ("", "")


def test_an_mp4_without_its_index_gets_one_line(encode, speech, capfd):
    path = encode("a.m4a", speech)
    path.write_bytes(path.read_bytes()[:1_000])
    one_line(path, "a.m4a", capfd)


@pytest.mark.parametrize("name", ["a.wav", "a.flac", "a.mp3", "a.ogg", "a.m4a", "a.webm"])
def test_random_damage_gives_one_line_or_audio(encode, speech, capfd, name):
    path = encode(name, speech[:48_000])
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    random = np.random.default_rng(0)
    messages = []
    for _ in range(40):
        broken = whole.copy()
        header_only = random.random() < 0.5
        at = random.integers(0, min(400, len(whole)) if header_only else len(whole), 6)
        broken[at] = random.integers(0, 256, 6)
        path.write_bytes(broken[: random.integers(1, len(whole) + 1)].tobytes())
        try:
            with open_features(path, 80) as windows:
                assert np.isfinite(windows.window(0)).all()
        except InputOutputError as error:
            messages.append(str(error))
    assert all(message.isprintable() for message in messages)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("order", [(1, 2), (2, 1), (1, 2, 1)])
def test_a_stream_that_changes_its_channels_is_read_whole(tmp_path, speech, order, capfd):
    stretch = speech[:32_000]
    parts = [stretch if channels == 1 else np.stack([stretch] * 2, 1) for channels in order]
    write_adts(tmp_path / "odd.aac", parts, 16_000)
    with open_features(tmp_path / "odd.aac", 80) as windows:
        assert windows.duration == pytest.approx(2 * len(order), abs=0.4)
        window_mt = windows.window(0)
    # Each stretch says the same, so each has as much sound as the first.
    loudness = [window_mt[:, 200 * i + 20 : 200 * i + 180].mean() for i in range(len(order))]
    assert np.ptp(loudness) < 0.15
    assert capfd.readouterr() == ("", "")
