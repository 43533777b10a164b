"""A browser for the tests of a module; while it runs, no test can run an event loop of its own."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import soundfile

from kit.recordings import EXAMPLE
from server.page.browsing import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    microphone = tmp_path_factory.mktemp("microphone") / "microphone.wav"
    samples, rate = soundfile.read(EXAMPLE)
    soundfile.write(microphone, np.repeat(samples, 3), 3 * rate)
    heard = f"--use-file-for-fake-audio-capture={microphone}"
    with chromium("--use-fake-device-for-media-stream", heard) as running:
        yield running
