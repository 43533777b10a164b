"""Every extension by which recordings are found in a folder is one of a format that can be read."""

import av
import numpy as np
import pytest
import soundfile

from kvcast.audio.decode import open_audio
from kvcast.audio.extensions import EXTENSIONS, LIBSNDFILE, PYAV

RATE = 16_000
TONE = (0.5 * np.sin(np.arange(RATE) / 10)).astype(np.float32)
BY_LIBSNDFILE = {
    **{"aif": "AIFF", "aifc": "AIFF", "aiff": "AIFF", "au": "AU", "snd": "AU", "caf": "CAF"},
    **{"flac": "FLAC", "mp3": "MP3", "ogg": "OGG", "oga": "OGG", "rf64": "RF64", "sph": "NIST"},
    **{"voc": "VOC", "w64": "W64", "wav": "WAV", "wave": "WAV"},
}
BY_PYAV = {
    **{"3gp": ("3gp", "aac"), "aac": ("adts", "aac"), "ac3": ("ac3", "ac3")},
    **{"asf": ("asf", "wmav2"), "wma": ("asf", "wmav2"), "wmv": ("asf", "wmav2")},
    **{"avi": ("avi", "pcm_s16le"), "flv": ("flv", "aac"), "m4a": ("ipod", "aac")},
    **{"m4b": ("ipod", "aac"), "m4v": ("mp4", "aac"), "mp4": ("mp4", "aac"), "mov": ("mov", "aac")},
    **{"mka": ("matroska", "libopus"), "mkv": ("matroska", "libopus")},
    **{"weba": ("webm", "libopus"), "webm": ("webm", "libopus")},
}
# No library at hand writes these; libsndfile and FFmpeg document that they read them.
UNWRITTEN = {"mp2", "opus", "amr", "spx"}


def seconds(path) -> float:
    source = open_audio(path)
    try:
        return sum(map(len, source.blocks())) / RATE
    finally:
        source.close()


def test_every_extension_is_tried_or_named():
    assert {*BY_LIBSNDFILE, *BY_PYAV} | UNWRITTEN == EXTENSIONS == {*LIBSNDFILE, *PYAV}
    assert not {*LIBSNDFILE} & {*PYAV}


@pytest.mark.parametrize("extension", sorted(BY_LIBSNDFILE))
def test_what_libsndfile_reads(extension: str, tmp_path):
    path = tmp_path / f"tone.{extension}"
    soundfile.write(path, TONE, RATE, format=BY_LIBSNDFILE[extension])
    assert seconds(path) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("extension", sorted(BY_PYAV))
def test_what_pyav_reads(extension: str, tmp_path):
    container, codec = BY_PYAV[extension]
    path = tmp_path / f"tone.{extension}"
    rate = 48_000
    tone = (0.5 * np.sin(np.arange(rate) / 30)).astype(np.float32)
    with av.open(str(path), "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        stream.bit_rate = 64_000
        frame = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        size = stream.frame_size or 960
        resampler = av.AudioResampler(stream.format.name, "mono", rate, frame_size=size)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
    assert seconds(path) == pytest.approx(1, abs=0.15)
