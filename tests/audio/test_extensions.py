"""Every extension by which recordings are found in a folder is one of a format that can be read."""

import av
import numpy as np
import pytest
import soundfile

from audio.media_files import BY_PYAV, write_by_pyav
from kvcast.audio.decode import open_audio
from kvcast.audio.formats import EXTENSIONS, LIBSNDFILE, PYAV
from kvcast.audio.media import FORMATS

RATE = 16_000
TONE = (0.5 * np.sin(np.arange(RATE) / 10)).astype(np.float32)
BY_LIBSNDFILE = {
    **{"aif": "AIFF", "aifc": "AIFF", "aiff": "AIFF", "au": "AU", "snd": "AU", "caf": "CAF"},
    **{"flac": "FLAC", "mp3": "MP3", "ogg": "OGG", "oga": "OGG", "rf64": "RF64", "sph": "NIST"},
    **{"avr": "AVR", "mp2": "MP3", "mpa": "MP3", "mpga": "MP3", "nist": "NIST", "pvf": "PVF"},
    **{"opus": "OGG", "sf": "IRCAM"},
    **{"voc": "VOC", "w64": "W64", "wav": "WAV", "wave": "WAV"},
}
# No library at hand writes these; libsndfile and FFmpeg document that they read them.
UNWRITTEN = {
    *("htk", "iff", "paf", "svx", "wve", "xi", "sds", "3ga", "aa3", "adx", "aea", "amr", "ape"),
    *("awb", "bonk", "c2", "dav", "dif", "dsf", "dss", "dts", "dtshd", "dv", "gsm", "gxf", "ivr"),
    *("kux", "lc3", "mlp", "mmf", "mpc", "mxf", "nsv", "oma", "omg", "osq", "psp", "qcp", "ra"),
    *("rka", "rm", "rmvb", "sbc", "shn", "sln", "spx", "tak", "thd", "ty", "vqf", "wa", "wsd"),
    *("xwma",),
}
# Pictures, subtitles, locked books, and names that other things have more often.
LEFT_OUT = {
    *("avif", "heic", "heif", "ism", "mj2", "mks", "aa", "aax", "ac4", "g729", "iamf", "msbc"),
    *("722", "apl", "mac", "ty+", "vqe", "vql"),
}


def seconds(path) -> float:
    source = open_audio(path)
    try:
        return sum(map(len, source.blocks())) / RATE
    finally:
        source.close()


def test_every_extension_is_tried_or_named():
    assert {*BY_LIBSNDFILE, *BY_PYAV} | UNWRITTEN == EXTENSIONS == {*LIBSNDFILE, *PYAV}
    assert not ({*BY_LIBSNDFILE, *BY_PYAV} & UNWRITTEN)
    assert not {*LIBSNDFILE} & {*PYAV}


@pytest.mark.parametrize("extension", sorted(BY_LIBSNDFILE))
def test_libsndfile_reads(extension: str, tmp_path):
    path = tmp_path / f"tone.{extension}"
    soundfile.write(path, TONE, RATE, format=BY_LIBSNDFILE[extension])
    assert seconds(path) == pytest.approx(1, abs=0.1)


def test_every_extension_that_ffmpeg_declares_is_known():
    """Of the formats that FFmpeg is asked for; for some it declares none."""
    declared = {
        extension for name in FORMATS for extension in av.ContainerFormat(name, "r").extensions
    }
    assert declared - EXTENSIONS == LEFT_OUT


@pytest.mark.parametrize("extension", sorted(BY_PYAV))
def test_pyav_reads(extension: str, tmp_path):
    path = tmp_path / f"tone.{extension}"
    rate = {"rso": 8_000, "g722": RATE}.get(extension, 48_000)
    tone = (0.5 * np.sin(np.arange(rate) / 30)).astype(np.float32)
    write_by_pyav(path, tone, rate)
    assert seconds(path) == pytest.approx(1, abs=0.15)
