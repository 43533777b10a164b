"""G.711 against libsndfile, which reads and writes both laws."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from kvcast.audio.stream import decode_a_law, decode_mu_law

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
