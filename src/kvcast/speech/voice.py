"""Opens recordings: whole, or the speech that Silero's voice activity detector finds.

The detector is opened once per process. Calls cannot be batched, because its state passes from
block to block; splitting the audio into parallel strips halved the time but changed one block in
300.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from kvcast.audio.decode import SAMPLE_RATE, AudioInput, open_audio
from kvcast.audio.features import MelWindows, RecordedAudio, SampledAudio, refuse_short
from kvcast.audio.source import AudioSource, ChannelSource
from kvcast.audio.timeline import Part
from kvcast.audio.vad import Listener, Loudness, spoken
from kvcast.checkpoints import packaged
from kvcast.errors import InputMissingError
from kvcast.speech.params import AudioParams, TranscribeParams

Recorded = TypeVar("Recorded", bound=RecordedAudio)


def open_recording(source: AudioInput, params: AudioParams) -> ChannelSource:
    """Open a recording; raises as `kvcast.audio.decode.open_audio` does."""
    return open_audio(source, track=params.audio_track, sampling_rate=params.sampling_rate)


def open_windows(source: AudioInput, n_mels: int, params: TranscribeParams) -> MelWindows:
    """Open a recording and read it; with `vad`, only the speech in its clips is in the windows.

    Raises:
        InputMissingError: the file does not exist, or the detector is not installed.
        InputOutputError: it cannot be decoded, is shorter than a frame, or is not audio.
        UsageError: an array that is not one channel of samples.

    """
    return _opened(source, params, partial(MelWindows, n_mels=n_mels))


def open_samples(source: AudioInput, params: TranscribeParams) -> SampledAudio:
    """Open a recording as `open_windows` does, for a model that takes samples."""
    return _opened(source, params, SampledAudio)


def _opened(
    source: AudioInput, params: TranscribeParams, make: Callable[[AudioSource], Recorded]
) -> Recorded:
    listener = voice_listener() if params.vad else None
    with ExitStack() as on_failure:
        audio = open_recording(source, params)
        on_failure.callback(audio.close)
        if listener is None:
            sound = make(audio)
        else:
            sound = spoken(audio, make, listener, params, clips=_clips(params))
        refuse_short(sound.duration, audio.name)
        on_failure.pop_all()
    return sound


def _clips(params: TranscribeParams) -> list[Part]:
    return [
        Part(round(start * SAMPLE_RATE), sys.maxsize if end is None else round(end * SAMPLE_RATE))
        for start, end in params.clips
    ]


def voice_listener() -> Listener:
    """Return a detector for one recording, or one audio stream, from its start.

    Raises:
        InputMissingError: the detector, or ONNX Runtime, which runs it, is not installed.
        KvcastError: it is another version, or its file is damaged.

    """
    listener: Listener = _graph(packaged.silero_vad()).listener()
    return listener


def live_listener() -> tuple[Listener, tuple[str, ...]]:
    """Return the best voice detector available here, and notices for the user."""
    with suppress(InputMissingError):
        return voice_listener(), ()
    quiet = "utterances end where it is quiet; kvcast[vad] tells speech from noise"
    return Loudness(), (quiet,)


@cache
def _graph(path: Path) -> Any:
    try:
        from kvcast.runtimes.onnx.voice import VoiceGraph
    except ModuleNotFoundError:
        raise InputMissingError(
            "package onnxruntime is not installed: pip install 'kvcast[vad]'"
        ) from None
    return VoiceGraph(path)
