"""Opens a sound file, standard input or an array, and yields it as mono 16 kHz float32 in blocks.

All error messages about sound files come from here, with the file's name and in one line. Knows
nothing of the samples' use.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
import soxr
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.reader import BLOCK_VALUES, DamagedError, SoundReader, UnreadableError
from kvcast.audio.sndfile import SndfileReader
from kvcast.errors import InputMissingError, InputOutputError, UsageError

SAMPLE_RATE = 16_000
"""Samples per second of everything that leaves this module."""

LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
"""A rate outside this range cannot carry speech, or is wrong."""

AudioInput = str | os.PathLike[str] | BinaryIO | NDArray[Any]
"""A path, "-" for standard input, an open binary file, or mono samples at 16 kHz."""


class AudioSource(Protocol):
    """A recording that can be read more than once, one pass at a time."""

    name: str
    """Its name in messages: printable, one line."""

    notices: tuple[str, ...]
    """Notices for the user after a complete pass, one line each."""

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the recording from its start, mono float32 [samples] at 16 kHz."""
        ...

    def close(self) -> None:
        """Close the files that this object opened."""
        ...


def open_audio(source: AudioInput, name: str | None = None) -> AudioSource:
    """Open a recording.

    Args:
        source: a path, "-" for standard input, a binary file object (read from its start; it
            stays open), or an array [samples] of mono 16 kHz sound: floats with full scale 1.0, or
            signed integers with their type's full scale.
        name: its name in messages; by default its own name.

    Raises:
        InputMissingError: there is no such file.
        InputOutputError: it cannot be opened, or is empty.
        UsageError: an array that is not one channel of samples.

    """
    if isinstance(source, np.ndarray):
        return ArrayAudio(source)
    return AudioFile(source, name)


class ArrayAudio(AudioSource):
    """Samples that are already in memory."""

    def __init__(self, samples: NDArray[Any]) -> None:
        if samples.ndim != 1 or samples.dtype.kind not in "fi":
            raise UsageError(
                f"an array of sound must be [samples] of floats or signed integers, mono at "
                f"{SAMPLE_RATE} Hz, not {list(samples.shape)} of {samples.dtype}"
            )
        self.name = "the array"
        self.notices: tuple[str, ...] = ()
        self._samples = samples

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        integers = self._samples.dtype.kind == "i"
        scale = np.float32(-1.0 / np.iinfo(self._samples.dtype).min if integers else 1.0)
        for start in range(0, len(self._samples), BLOCK_VALUES):
            block = self._samples[start : start + BLOCK_VALUES]
            with np.errstate(over="ignore"):  # values too large become infinite and are refused
                yield block.astype(np.float32) * scale

    @override
    def close(self) -> None:
        pass


class AudioFile(AudioSource):
    """A sound file in any format that libsndfile or, if installed, PyAV can read.

    A source without seeking (a pipe) is first copied to an unnamed temporary file on disk.
    """

    def __init__(self, source: str | os.PathLike[str] | BinaryIO, name: str | None = None) -> None:
        self.notices: tuple[str, ...] = ()
        self._close = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            own_name, file = _open_binary(source, opened)
            self.name = name or own_name
            try:
                self._file = file if file.seekable() else _spooled(file, opened)
                size = self._file.seek(0, os.SEEK_END)
            except OSError as error:
                raise InputOutputError(f"{self.name} cannot be read: {error.strerror}") from error
            if size == 0:
                raise InputOutputError(f"{self.name} is empty: it has 0 bytes")
            self._close = opened.pop_all()

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the recording.

        Raises:
            InputOutputError: nothing in it can be decoded, or it has no channels, no samples or a
                rate outside LOWEST_RATE to HIGHEST_RATE.

        """
        with contextlib.closing(_open_reader(self._file, self.name)) as reader:
            self._check_header(reader)
            yield from resampled(self._mono(reader), reader.rate)

    @override
    def close(self) -> None:
        self._close.close()

    def _check_header(self, reader: SoundReader) -> None:
        if reader.channels < 1:
            raise InputOutputError(f"{self.name} has no audio channel")
        if not LOWEST_RATE <= reader.rate <= HIGHEST_RATE:
            raise InputOutputError(
                f"{self.name} claims {reader.rate} samples a second; "
                f"{LOWEST_RATE} to {HIGHEST_RATE} can be read"
            )

    def _mono(self, reader: SoundReader) -> Iterator[NDArray[np.float32]]:
        """Yield the mean of the channels [samples], not yet resampled; note where it ends early."""
        frames = 0
        try:
            for block in reader.blocks():
                frames += len(block)
                yield block[:, 0] if reader.channels == 1 else block.mean(axis=1)
        except DamagedError as error:
            if frames == 0:
                raise InputOutputError(f"{self.name} {error}; no sound could be decoded") from error
            used = f"the {frames / reader.rate:.2f} s that could be decoded are used"
            self.notices = (f"{self.name} {error}; {used}",)
        if frames == 0:
            raise InputOutputError(f"{self.name} holds no samples")


def resampled(blocks: Iterable[NDArray[np.float32]], rate: int) -> Iterator[NDArray[np.float32]]:
    """Resample mono blocks from `rate` Hz to 16 kHz, with soxr's streaming resampler (HQ)."""
    if rate == SAMPLE_RATE:
        yield from blocks
        return
    stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
    for block in blocks:
        yield stream.resample_chunk(np.ascontiguousarray(block))
    yield stream.resample_chunk(np.empty(0, np.float32), last=True)


def _open_binary(
    source: str | os.PathLike[str] | BinaryIO, opened: contextlib.ExitStack
) -> tuple[str, BinaryIO]:
    """Return the source's name in messages and a binary file; put opened files on the stack."""
    if source == "-":
        if sys.stdin is None:
            raise InputOutputError("standard input is closed")
        return "standard input", sys.stdin.buffer
    if not isinstance(source, str | os.PathLike):
        return _printable(str(getattr(source, "name", "the file object"))), source
    path = Path(source)
    name = _printable(str(source))
    try:
        return name, opened.enter_context(path.open("rb"))
    except FileNotFoundError as error:
        raise InputMissingError(f"{name} does not exist") from error
    except (OSError, ValueError) as error:
        if path.is_dir():
            raise InputOutputError(f"{name} is a folder, not a sound file") from error
        reason = getattr(error, "strerror", None) or error
        raise InputOutputError(f"{name} cannot be opened: {reason}") from error


def _printable(name: str) -> str:
    """Return the name as one printable line, with control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _spooled(file: BinaryIO, opened: contextlib.ExitStack) -> BinaryIO:
    """Copy a stream to an unnamed, seekable file on disk (in TMPDIR)."""
    spool = cast(BinaryIO, opened.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115 - it is
    shutil.copyfileobj(file, spool)
    return spool


def _open_reader(file: BinaryIO, name: str) -> SoundReader:
    """Open with libsndfile or, failing that, with PyAV; errors give libsndfile's reason."""
    try:
        return SndfileReader(file)
    except UnreadableError as refused:
        try:
            from kvcast.audio.media import MediaReader
        except ModuleNotFoundError:
            raise InputOutputError(
                f"{name} cannot be decoded: {refused}; "
                "for mp4, m4a and webm: pip install 'kvcast[media]'"
            ) from refused
        try:
            return MediaReader(file)
        except UnreadableError:
            raise InputOutputError(f"{name} cannot be decoded: {refused}") from refused
