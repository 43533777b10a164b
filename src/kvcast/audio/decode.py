"""Opens a recording, a file or an array, which yields mono 16 kHz float32 in blocks."""

import io
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.files import AudioFile
from kvcast.audio.reader import BLOCK_VALUES
from kvcast.audio.source import (
    CANCELLED,
    HIGHEST_RATE,
    LOWEST_RATE,
    SAMPLE_RATE,
    AudioSource,
    ChannelAudio,
    ChannelSource,
    Mixer,
    resample,
)
from kvcast.audio.source import full_scale as measured_scale
from kvcast.errors import UsageError

__all__ = [
    "HIGHEST_RATE",
    "LOWEST_RATE",
    "SAMPLE_RATE",
    "AudioInput",
    "AudioSource",
    "open_audio",
    "resample",
]

AudioInput = (
    str | os.PathLike[str] | BinaryIO | bytes | NDArray[Any] | Sequence[float] | ChannelSource
)  # a path, "-" for standard input, an open binary file, a file's bytes, or samples


def open_audio(
    source: AudioInput,
    name: str | None = None,
    *,
    track: str | int | None = None,
    sampling_rate: int = SAMPLE_RATE,
) -> ChannelSource:
    """Open a recording; one that is open already is returned unchanged.

    `source`: a path, "-" for standard input, a binary file object (read from its start; it stays
    open), the bytes of a file, or samples: an array or a list [samples], [samples, channels] or
    [channels, samples], of floats with full scale 1.0 or of integers with their type's full scale.
    `name`: in messages; by default the file's name. `track`: number or language of a film's audio
    track; by default the container's default. `sampling_rate`: of an array, in Hz.

    Raises InputMissingError for a missing file, InputOutputError for one that is empty or cannot be
    opened, and UsageError for another source or an option that is not for it.
    """
    if isinstance(source, ArrayAudio | AudioFile | ChannelAudio):
        return source
    if isinstance(source, bytes | bytearray | memoryview):
        source, name = io.BytesIO(source), name or "the bytes"
    if isinstance(source, str | os.PathLike) or hasattr(source, "read"):
        if sampling_rate != SAMPLE_RATE:
            raise UsageError("sampling_rate is for arrays: a file states its sample rate")
        return AudioFile(cast(BinaryIO, source), name, track=track)
    samples = as_array(source)
    if track is not None:
        raise UsageError("audio_track is for files: an array has one track")
    audio = ArrayAudio(samples, name=name or "the array", sampling_rate=sampling_rate)
    if sampling_rate == SAMPLE_RATE:
        audio.no_speech_notices = (
            f"no speech was recognised in {audio.name}, which is read at {SAMPLE_RATE} samples a "
            "second: pass sampling_rate for another rate",
        )
    return audio


def as_array(source: Any) -> NDArray[Any]:
    """Return an array or a list of samples as an array; UsageError for anything else."""
    if isinstance(source, list | tuple) and any(
        isinstance(item, str | os.PathLike) for item in source
    ):
        raise UsageError("a list of files is several recordings: transcribe_all takes them")
    if isinstance(source, list | tuple) or hasattr(source, "__array__") or _is_buffer(source):
        try:
            return np.asarray(source)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(f"this is no array of audio: {error}") from error
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


_MOST_CHANNELS = 64
_BITS = 16  # of most audio; wider types often hold no more


class ArrayAudio(ChannelSource):
    def __init__(
        self,
        samples: NDArray[Any],
        *,
        name: str = "the array",
        sampling_rate: int = SAMPLE_RATE,
        full_scale: float = 1.0,
        notices: tuple[str, ...] = (),
    ) -> None:
        """Scan all samples; raises UsageError for a wrong array or implausible sample rate.

        `full_scale`: of floats, at least: established by earlier audio of the stream.
        """
        if samples.ndim not in {1, 2} or samples.dtype.kind not in "fiu":
            raise UsageError(
                "an array of audio must be [samples], or [samples, channels], of floats or "
                f"integers, not {list(samples.shape)} of {samples.dtype}"
            )
        if not LOWEST_RATE <= sampling_rate <= HIGHEST_RATE:
            raise UsageError(
                f"sampling_rate must be from {LOWEST_RATE} to {HIGHEST_RATE}, not {sampling_rate}"
            )
        self.name = name
        self._samples_sc = _upright(samples)
        self._rate = int(sampling_rate)
        self._known = notices
        self.notices: tuple[str, ...] = ()
        kind, bits = samples.dtype.kind, 8 * samples.dtype.itemsize
        self._zero = np.float32(2.0 ** (bits - 1) if kind == "u" else 0)
        self.full_scale = full_scale if kind == "f" else 2.0 ** (bits - 1)
        if kind == "f":
            self._measure_floats()
        elif kind == "i" and bits > _BITS:
            self._measure_integers(bits)

    @property
    @override
    def channels(self) -> int:
        return int(self._samples_sc.shape[1])

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        return self.of_channel(None)

    @override
    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        mixer = Mixer(channel, 1.0 / self.full_scale)
        yield from resample(map(mixer.mono, self._floats()), self._rate)
        cancelled = (f"{self.name} {CANCELLED}",) if mixer.cancelled else ()
        self.notices = (*self._known, *cancelled)

    @override
    def close(self) -> None:
        pass

    def _floats(self) -> Iterator[NDArray[np.float32]]:
        """Yield blocks [samples, channels], not yet divided by full scale."""
        step = max(1, BLOCK_VALUES // self.channels)
        for start in range(0, len(self._samples_sc), step):
            block_sc = self._samples_sc[start : start + step]
            with np.errstate(over="ignore"):  # values too large become infinite and are refused
                yield block_sc.astype(np.float32) - self._zero

    def _measure_floats(self) -> None:
        scale = measured_scale(self._floats())
        if scale.notice is not None and scale.value > self.full_scale:
            self.full_scale = scale.value
            self._known += (f"{self.name} {scale.notice}",)

    def _measure_integers(self, bits: int) -> None:
        """Find how many bits of a wide type are used: NumPy makes any list int64."""
        peak = max((float(np.abs(block).max()) for block in self._floats()), default=0.0)
        if 0 < peak <= 2.0 ** (_BITS - 1):
            self.full_scale = 2.0 ** (_BITS - 1)
            self._known += (
                f"{self.name} has {bits}-bit integers of {peak:g} at most: they are taken as "
                f"{_BITS}-bit ones",
            )
        elif peak <= 2.0**31:
            self.full_scale = 2.0**31


def _upright(samples: NDArray[Any]) -> NDArray[Any]:
    """Return an array [samples, channels]; there are more samples than channels."""
    if samples.ndim == 1:
        return samples[:, None]
    if samples.shape[0] < samples.shape[1]:
        samples = samples.T
    if not 0 < samples.shape[1] <= _MOST_CHANNELS:
        raise UsageError(
            f"an array of audio has {_MOST_CHANNELS} channels at most, and not the shape "
            f"{list(samples.shape)}"
        )
    return samples
