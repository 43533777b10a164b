"""Opens a recording, a file or an array, which yields mono 16 kHz float32 in blocks.

Knows nothing of the samples' use.
"""

import io
import os
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.arrays import ArrayAudio
from kvcast.audio.files import AudioFile
from kvcast.audio.source import (
    HIGHEST_RATE,
    LOWEST_RATE,
    SAMPLE_RATE,
    AudioSource,
    ChannelAudio,
    ChannelSource,
    resampled,
)
from kvcast.errors import UsageError

__all__ = [
    "HIGHEST_RATE",
    "LOWEST_RATE",
    "SAMPLE_RATE",
    "AudioInput",
    "AudioSource",
    "open_audio",
    "resampled",
]

AudioInput = (
    str | os.PathLike[str] | BinaryIO | bytes | NDArray[Any] | Sequence[float] | ChannelSource
)
"""A path, "-" for standard input, an open binary file, a file's bytes, or samples."""


def open_audio(
    source: AudioInput,
    name: str | None = None,
    *,
    track: str | int | None = None,
    sampling_rate: int = SAMPLE_RATE,
) -> ChannelSource:
    """Open a recording.

    Args:
        source: a path, "-" for standard input, a binary file object (read from its start; it
            stays open), the bytes of a file, or samples: an array or a list [samples], [samples,
            channels] or [channels, samples], of floats with full scale 1.0 or of integers with
            their type's full scale. A recording that is open already is returned as it is.
        name: its name in messages; by default its own name.
        track: number or language of a film's sound track; by default the container's default.
        sampling_rate: samples per second of an array; a file knows its own.

    Raises:
        InputMissingError: there is no such file.
        InputOutputError: it cannot be opened, or is empty.
        UsageError: it is none of these, or an option is not for it.

    """
    if isinstance(source, ArrayAudio | AudioFile | ChannelAudio):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        source, name = io.BytesIO(source), name or "the bytes"
    if isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        if sampling_rate != SAMPLE_RATE:
            raise UsageError("sampling_rate is for arrays: a file tells its own")
        return AudioFile(cast(BinaryIO, source), name, track=track)
    samples = _array(source)
    if track is not None:
        raise UsageError("audio_track is for files: an array has one track")
    audio = ArrayAudio(samples, name=name or "the array", sampling_rate=sampling_rate)
    if sampling_rate == SAMPLE_RATE:
        audio.unheard = (
            f"no speech was recognised in {audio.name}, which is taken as {SAMPLE_RATE} samples a "
            "second: sampling_rate tells of another rate",
        )
    return audio


def _array(source: Any) -> NDArray[Any]:
    """Return samples as an array; raises UsageError if they are none."""
    if isinstance(source, list | tuple) and any(
        isinstance(item, str | os.PathLike) for item in source
    ):
        raise UsageError("a list of files is several recordings: transcribe_all takes them")
    if isinstance(source, list | tuple) or hasattr(source, "__array__") or _is_buffer(source):
        try:
            return np.asarray(source)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"this is no array of sound: {error}") from error
    raise UsageError(
        "a recording is a path, a binary file, bytes, or an array or a list of samples, "
        f"not {type(source).__name__}"
    )


def _is_buffer(source: Any) -> bool:
    try:
        memoryview(source)
    except TypeError:
        return False
    return True
