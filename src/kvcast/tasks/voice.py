"""Silero's voice activity detector, opened once a process: who speaks is decided elsewhere."""

from functools import cache
from pathlib import Path

from kvcast.audio.vad import Listener
from kvcast.checkpoints import packaged
from kvcast.runtimes.onnx_voice import VoiceGraph


def voice_listener() -> Listener:
    """Return what listens to one recording, or one stream of sound, from its start.

    Raises:
        InputMissingError: the package with the detector is not installed.
        KvcastError: it is another version, or its file is damaged.

    """
    return _graph(packaged.silero_vad()).listener()


@cache
def _graph(path: Path) -> VoiceGraph:
    return VoiceGraph(path)
