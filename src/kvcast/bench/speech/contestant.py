"""A contender that transcribes one recording, on the far side of `kvcast.bench.remote`."""

import gc
import time
from typing import Any

import numpy as np

from kvcast.bench.contestant import Contestant, peak_bytes
from kvcast.bench.speech.peers import CONTENDERS
from kvcast.bench.speech.peers.base import Task


class Transcriber(Contestant):
    """See the module."""

    def __init__(self, name: str, task: dict[str, Any], samples: str) -> None:
        """Take the contender's name, the fields of `Task`, and a .npy file of samples."""
        self._contender = CONTENDERS[name](Task(**task))
        self._samples = np.load(samples, allow_pickle=False)
        super().__init__(self._contender)

    def take(self, beam: int) -> dict[str, Any]:
        """Transcribe once; returns seconds, processor seconds, text, and peak memory so far."""
        gc.collect()
        processor = time.process_time()
        start = time.perf_counter()
        text = self._contender.transcribe(self._samples, beam)
        seconds = time.perf_counter() - start
        return {
            "seconds": seconds,
            "processor_seconds": time.process_time() - processor,
            "text": text,
            "peak_bytes": peak_bytes(),
        }
