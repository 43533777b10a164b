"""Recordings that are files, in any format, of one part or several.

All error messages about audio files come from here, with the file's name and in one line.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.bitstreams import read_pages
from kvcast.audio.formats import HEADERLESS, MOST_PARTS, needs_pyav, parts
from kvcast.audio.reader import (
    AudioReader,
    DamagedError,
    FileSection,
    NoAudioError,
    NoTrackError,
    Track,
    UnreadableError,
    choose_track,
)
from kvcast.audio.source import (
    CANCELLED,
    HIGHEST_RATE,
    LOWEST_RATE,
    ChannelSource,
    FullScale,
    Mixer,
    full_scale,
    resample,
)
from kvcast.errors import InputMissingError, InputOutputError, UsageError

if TYPE_CHECKING:
    from kvcast.audio.media import MediaReader

_BEGINNING = 1 << 14  # bytes by which a format is recognised
_MOST_NOTICES = 20  # a file of many parts may have a fault in each


class AudioFile(ChannelSource):
    """An audio file in any format that libsndfile or, if installed, PyAV can read.

    A concatenation of several files is read to its end, part by part. An unseekable source
    (a pipe) is first copied to an unnamed temporary file on disk.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        name: str | None = None,
        *,
        track: str | int | None = None,
    ) -> None:
        """Open it; parameters and errors as in `kvcast.audio.decode.open_audio`."""
        self.notices: tuple[str, ...] = ()
        self._track = track
        self._close = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            own_name, file = _open_binary(source, opened)
            self.name = name or own_name
            self._format = HEADERLESS.get(PurePath(own_name).suffix.lower().removeprefix("."))
            try:
                self._file = file if file.seekable() else _spool(file, opened)
                size = self._file.seek(0, os.SEEK_END)
            except OSError as error:
                raise InputOutputError(f"{self.name} cannot be read: {error.strerror}") from error
            if size == 0:
                raise InputOutputError(f"{self.name} is empty: it has 0 bytes")
            self._close = opened.pop_all()

    @property
    @override
    def channels(self) -> int:
        return max(part.channels for part in self._parts)

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        return self.of_channel(None)

    @override
    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        """Yield the recording.

        Raises InputOutputError if nothing in it can be decoded, or it has no channels, no samples
        or a rate outside LOWEST_RATE to HIGHEST_RATE.
        """
        notices: list[str] = []
        failures: list[InputOutputError] = []
        if len(self._parts) > MOST_PARTS:
            notices.append(f"{self.name} has more than {MOST_PARTS} parts: the rest is left out")
        for part in self._parts[:MOST_PARTS]:
            try:
                yield from part.blocks(channel)
            except InputOutputError as error:
                failures.append(error)
                notices.append(f"{error}; this part is left out")
            else:
                notices += part.notices
        if len(failures) == len(self._parts[:MOST_PARTS]):
            raise failures[0]
        more = len(notices) - _MOST_NOTICES
        self.notices = tuple(notices[:_MOST_NOTICES])
        if more > 0:
            self.notices += (f"{self.name} has {more} more such faults",)

    @override
    def close(self) -> None:
        self._close.close()

    @cached_property
    def _parts(self) -> "list[_FilePart]":
        sections = parts(self._file)
        names = [self.name]
        if len(sections) > 1:
            names = [
                f"{self.name}, part {number} of {len(sections)},"
                for number, _ in enumerate(sections, start=1)
            ]
        return [
            _FilePart(section, name, self._track, self._format)
            for section, name in zip(sections, names, strict=True)
        ]


class _FilePart:
    def __init__(
        self, file: FileSection, name: str, track: str | int | None, format_: str | None
    ) -> None:
        self.notices: list[str] = []
        self._file, self._name = file, name
        self._track, self._format = track, format_

    @cached_property
    def channels(self) -> int:
        with contextlib.closing(self._open()) as reader:
            return reader.channels

    def blocks(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        """Yield mono float32 [samples] at 16 kHz; raises InputOutputError if there is no audio."""
        self.notices = []
        with contextlib.closing(self._open()) as reader:
            scale = self._full_scale if reader.stores_floats else None
            if scale is not None and scale.notice is not None:
                self._note(scale.notice)
            mixer = Mixer(channel, 1.0 if scale is None else 1.0 / scale.value)
            yield from resample(map(mixer.mono, self._read_blocks(reader)), reader.rate)
            if mixer.cancelled:
                self._note(CANCELLED)

    @cached_property
    def _full_scale(self) -> FullScale:
        before = list(self.notices)
        with contextlib.closing(self._open()) as reader:
            scale = full_scale(self._read_blocks(reader))
        self.notices = before  # the pass that is used has the same
        return scale

    def _note(self, *notices: str) -> None:
        self.notices += [f"{self._name} {notice}" for notice in notices]

    def _open(self) -> AudioReader:
        reader = _open_reader(self._file, self._name, self._track, self._format)
        try:
            self._check_header(reader)
        except InputOutputError:
            reader.close()
            raise
        return reader

    def _check_header(self, reader: AudioReader) -> None:
        if reader.channels < 1:
            raise InputOutputError(f"{self._name} has no audio channel")
        if not LOWEST_RATE <= reader.rate <= HIGHEST_RATE:
            raise InputOutputError(
                f"{self._name} claims {reader.rate} samples a second; "
                f"{LOWEST_RATE} to {HIGHEST_RATE} can be read"
            )

    def _read_blocks(self, reader: AudioReader) -> Iterator[NDArray[np.float32]]:
        """Yield blocks [samples, channels], not yet resampled; note where they end early."""
        frames = 0
        try:
            for block in self._beyond_damage(reader):
                frames += len(block)
                yield block
        except DamagedError as error:
            if frames == 0:
                raise InputOutputError(
                    f"{self._name} {error}; no audio could be decoded"
                ) from error
            used = f"the {frames / reader.rate:.2f} s that could be decoded are used"
            self._note(f"{error}; {used}")
        if frames == 0:
            raise InputOutputError(f"{self._name} holds no samples")
        self._note(*reader.notices)

    def _beyond_damage(self, reader: AudioReader) -> Iterator[NDArray[np.float32]]:
        """Yield a reader's blocks; where libsndfile stops at damage, PyAV continues."""
        frames = 0
        try:
            for block in reader.blocks():
                frames += len(block)
                yield block
        except DamagedError:
            other = None
            if reader.stops_at_damage:
                other = _media_reader(self._file, None, is_damaged=True)
            if other is None or (other.rate, other.channels) != (reader.rate, reader.channels):
                raise
            with contextlib.closing(other):
                further = 0
                for block in _without(frames, other.blocks()):
                    further += len(block)
                    yield block
                if not further:
                    raise
                damaged = f"is damaged at {frames / reader.rate:.2f} s; the rest is used"
                reader.notices += other.notices or [damaged]


def _without(frames: int, blocks: Iterator[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    for block in blocks:
        if len(block) > frames:
            yield block[frames:]
        frames = max(0, frames - len(block))


def _open_binary(
    source: str | os.PathLike[str] | BinaryIO, opened: contextlib.ExitStack
) -> tuple[str, BinaryIO]:
    """Return the source's name in messages and a binary file; put opened files on the stack."""
    if source == "-":
        if sys.stdin is None:
            raise InputOutputError("standard input is closed")
        return "standard input", sys.stdin.buffer
    if not isinstance(source, str | os.PathLike):
        name = _printable(str(getattr(source, "name", "the file object")))
        if isinstance(source.read(0), str):
            raise UsageError(f"{name} was opened as text: open it in binary mode")
        return name, source
    path = Path(source)
    name = _printable(str(source))
    try:
        return name, opened.enter_context(path.open("rb"))
    except FileNotFoundError as error:
        raise InputMissingError(f"{name} does not exist") from error
    except (OSError, ValueError) as error:
        if os.path.isdir(path):  # noqa: PTH112 - returns False for a name that is too long, where Path raises
            raise InputOutputError(f"{name} is a folder, not an audio file") from error
        reason = getattr(error, "strerror", None) or error
        raise InputOutputError(f"{name} cannot be opened: {reason}") from error


def _printable(name: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def _spool(file: BinaryIO, opened: contextlib.ExitStack) -> BinaryIO:
    """Copy a stream to an unnamed, seekable file on disk (in TMPDIR)."""
    spool = cast(BinaryIO, opened.enter_context(tempfile.TemporaryFile()))  # noqa: SIM115 - it is
    shutil.copyfileobj(file, spool)
    return spool


def _open_reader(
    file: FileSection, name: str, track: str | int | None, format_: str | None
) -> AudioReader:
    """Open with libsndfile or, failing that, with PyAV; errors give libsndfile's reason.

    A format without a header is recognized by the file's name.
    """
    from kvcast.audio.sndfile import SndfileReader  # soundfile costs time only where audio is read

    try:
        if file.at(0, 4) == b"OggS" and (reader := _ogg_with_times(file, track)) is not None:
            return reader
        try:
            single = SndfileReader(file)
        except UnreadableError as refused:
            return _open_with_pyav(file, name, track, format_, refused)
        choose_track([Track(1)], track)
    except (NoAudioError, NoTrackError) as error:
        raise InputOutputError(f"{name} {error}") from error
    return single


def _open_with_pyav(
    file: FileSection,
    name: str,
    track: str | int | None,
    format_: str | None,
    refused: UnreadableError,
) -> AudioReader:
    try:
        from kvcast.audio.media import MediaReader
    except ModuleNotFoundError:
        if (is_format := needs_pyav(file.at(0, _BEGINNING), name)) is not None:
            raise InputOutputError(
                f"{name} {is_format}, which needs PyAV: pip install 'kvcast[media]'"
            ) from refused
        raise InputOutputError(
            f"{name} cannot be decoded: {refused}; if it is a format that only PyAV reads: "
            "pip install 'kvcast[media]'"
        ) from refused
    try:
        return MediaReader(file, track, format_=format_)
    except NoAudioError:
        raise
    except UnreadableError:
        raise InputOutputError(f"{name} cannot be decoded: {refused}") from refused


def _ogg_with_times(file: FileSection, track: str | int | None) -> "MediaReader | None":
    """Open Ogg with PyAV if times or tracks matter, which libsndfile ignores."""
    pages = read_pages(file)
    if (reader := _media_reader(file, track, is_damaged=pages.has_gaps)) is None:
        return None
    if not pages.has_gaps and pages.streams == 1:
        with contextlib.closing(reader):
            skips = reader.skips()
        reader = _media_reader(file, track, is_damaged=False) if skips else None
    return reader


def _media_reader(
    file: FileSection, track: str | int | None, *, is_damaged: bool
) -> "MediaReader | None":
    try:
        from kvcast.audio.media import MediaReader
    except ModuleNotFoundError:
        return None
    try:
        return MediaReader(file, track, is_damaged=is_damaged)
    except UnreadableError:
        return None
