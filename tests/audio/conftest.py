"""Sound for the audio tests: the example recording, and files made of it."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile

EXAMPLE = Path(__file__).parents[2] / "examples" / "sense-and-sensibility.flac"


@pytest.fixture(scope="session")
def speech():
    samples, rate = soundfile.read(EXAMPLE, dtype="float32")
    assert rate == 16_000
    samples.flags.writeable = False
    return samples


@pytest.fixture
def encode(tmp_path):
    """Write float samples [n] or [n, channels] under a name whose suffix names the format."""

    def write(name, samples, rate=16_000, **options):
        path = tmp_path / name
        if path.suffix in (".m4a", ".mp4", ".webm"):
            _by_pyav(path, samples, rate)
        else:
            soundfile.write(path, samples, rate, **options)
        return path

    return write


class Pipe(io.BytesIO):
    """Bytes that can be read once, as from a pipe."""

    def seekable(self):
        return False

    def seek(self, *_):
        raise OSError("a pipe cannot be sought in")

    tell = seek


@pytest.fixture
def pipe():
    return Pipe


def _by_pyav(path, samples, rate):
    formats = {"m4a": ("ipod", "aac"), "mp4": ("mp4", "aac"), "webm": ("webm", "libopus")}
    layout, codec = formats[path.suffix[1:]]
    channels = np.atleast_2d(samples.T).astype(np.float32)
    options = {} if path.suffix == ".webm" else {"movflags": "+faststart"}
    with av.open(str(path), "w", format=layout, options=options) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono" if len(channels) == 1 else "stereo")
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(channels), format="fltp", layout=stream.layout.name
        )
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            stream.format.name, stream.layout.name, rate, frame_size=stream.frame_size or 960
        )
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))
