"""Silero's voice activity graph on ONNX Runtime: the probability of speech in 32 ms of audio."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.runtimes.base import Float32
from kvcast.runtimes.onnx.session import onnx_session, ort_value

_CONTEXT = 64  # samples before a block that the graph reads again
_BLOCK = 512
_RATE = np.array(16_000, np.int64)
_ONE_THREAD = 1  # a block is 0.7 million products: other threads would only wait


class VoiceGraph:
    """A loaded graph, which any number of recordings share."""

    def __init__(self, path: Path) -> None:
        self._session = onnx_session(path, _ONE_THREAD)

    def listener(self) -> "VoiceListener":
        return VoiceListener(self._session)


class VoiceListener:
    """Processes one recording from its start; two state buffers alternate, without copies."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._input = np.zeros((1, _CONTEXT + _BLOCK), np.float32)
        self._probability = np.zeros((1, 1), np.float32)
        states = [np.zeros((2, 1, 128), np.float32) for _ in range(2)]
        self._next, self._after = (
            self._bound({"input": self._input, "state": was, "sr": _RATE}, becomes)
            for was, becomes in (states, states[::-1])
        )

    def __call__(self, blocks_nb: Float32) -> Float32:
        """Return float32 [n] probabilities of speech in the next blocks at 16 kHz, [n, 512]."""
        probabilities_n = np.empty(len(blocks_nb), np.float32)
        for i, block in enumerate(blocks_nb):
            self._input[0, :_CONTEXT] = self._input[0, -_CONTEXT:]
            self._input[0, _CONTEXT:] = block
            self._session.run_with_iobinding(self._next)
            self._next, self._after = self._after, self._next
            probabilities_n[i] = self._probability[0, 0]
        return probabilities_n

    def _bound(self, values: Mapping[str, np.ndarray[Any, Any]], state: Float32) -> Any:
        binding = self._session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, ort_value(value))
        binding.bind_ortvalue_output("output", ort_value(self._probability))
        binding.bind_ortvalue_output("stateN", ort_value(state))
        return binding
