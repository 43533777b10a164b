"""Audio for the tests: the example recording, and files made of it."""

import io

import pytest
import soundfile

from audio.media_files import BY_PYAV, write_by_pyav
from kit.recordings import EXAMPLE, read


@pytest.fixture(scope="session")
def speech():
    samples = read(EXAMPLE)
    samples.flags.writeable = False
    return samples


@pytest.fixture
def clip(speech):
    return speech[:48_000]


@pytest.fixture
def encode(tmp_path):
    """Write float samples [n] or [n, channels] under a name whose suffix names the format."""

    def write(name, samples, rate=16_000, **options):
        path = tmp_path / name
        if path.suffix[1:] in BY_PYAV:
            write_by_pyav(path, samples, rate)
        else:
            if path.suffix == ".opus":
                options = {"format": "OGG", "subtype": "OPUS"}
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
