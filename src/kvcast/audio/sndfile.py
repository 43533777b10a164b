"""Reads wav, flac, ogg, mp3 and libsndfile's other formats, and detects files that are cut short.

Knows nothing of resampling or of where error messages go.
"""

import contextlib
import io
import os
import re
import threading
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import numpy as np
import soundfile
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.reader import BLOCK_VALUES, DamagedError, SoundReader, UnreadableError

_STREAMED_SIZE = 0x7FFF0000
"""Programs that write to a pipe put a size of about this, or all ones, for an unknown size."""

_UNKNOWN_FRAMES = 2**62
_SEEK_FAILED = 39  # libsndfile's SFE_PSF_FSEEK
_PLAIN_WORDS = {
    1: "its format is not recognised; it is not sound, or damaged",  # SF_ERR_UNRECOGNISED_FORMAT
    2: "it ends within its header",  # SF_ERR_SYSTEM, whose text is about missing files
    29: "it ends within a frame",  # SFE_INTERNAL, the mp3 decoder's only error
}

_OGG_LAST_PAGE = 65_307  # the longest page, RFC 3533 section 6
_OGG_END_OF_STREAM = 0x04

_MP3_LENGTH_FACTOR = 64
"""Larger than the ratio of any two bit rates of MPEG audio."""

_stderr_lock = threading.Lock()


class SndfileReader(SoundReader):
    """One pass over a seekable file by libsndfile.

    Raises:
        UnreadableError: libsndfile cannot open it.

    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sound = _open(_Bytes(file))
        if self._sound.format == "MP3" and not _mp3_counts_its_frames(file):
            # Without a frame count, libsndfile guesses the length from the first frame's bit rate
            # and stops there, which loses most of a recording that starts loudly. If the guess is
            # too long, it stops at the end of the file.
            self._sound.close()
            self._sound = _open(_LongerBytes(file))
            self._promised = 0
        else:
            self._promised = _promised_frames(self._sound)
        self._reading = _quiet_stderr if self._sound.format == "MP3" else contextlib.nullcontext
        self.rate = int(self._sound.samplerate)
        self.channels = int(self._sound.channels)

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        read = 0
        while True:
            block, complaint = self._read()
            if len(block):
                read += len(block)
                yield block
            if complaint:
                raise DamagedError(complaint)
            if not len(block):
                break
        if read == 0 < self._promised:
            raise DamagedError("is cut short: it ends where its sound should begin")
        if read < self._promised:
            raise DamagedError(f"is cut short: it should last {self._promised / self.rate:.2f} s")
        if self._sound.format == "OGG" and not _ogg_is_complete(self._file):
            raise DamagedError("is cut short: its last page does not end the stream")

    @override
    def close(self) -> None:
        self._sound.close()

    def _read(self) -> tuple[NDArray[np.float32], str]:
        """Return the next block [samples, channels], empty at the end, and libsndfile's complaint.

        If an error interrupts a block, the part decoded before it is kept.
        """
        block = np.full((max(1, BLOCK_VALUES // self.channels), self.channels), np.nan, np.float32)
        try:
            with self._reading():
                return self._sound.read(len(block), out=block), ""
        except soundfile.LibsndfileError as error:
            unwritten = np.isnan(block[:, -1])
            length = int(unwritten.argmax()) if unwritten.any() else len(block)
            # soundfile seeks after each read, which fails at the end of a flac of unknown length.
            ended = self._sound.frames >= _UNKNOWN_FRAMES and error.code == _SEEK_FAILED
            return block[:length], "" if ended else f"is damaged or cut short ({_reason(error)})"


class _Source(Protocol):
    """The calls that soundfile makes on a file object."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int: ...
    def tell(self) -> int: ...
    def read(self, count: int) -> bytes: ...


class _Bytes:
    """A file object without a name, so soundfile goes by the content and never by an extension."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._size = file.seek(0, io.SEEK_END)
        self._position = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end()}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int) -> bytes:
        if self._position >= self._size:
            return self._beyond(count)
        try:
            self._file.seek(self._position)
            data = self._file.read(count)
        except OSError:  # libsndfile cannot pass on exceptions; the missing length will show it
            return b""
        self._position += len(data)
        return data

    def _end(self) -> int:
        return self._size

    def _beyond(self, count: int) -> bytes:  # noqa: ARG002 - used by the subclass
        return b""


class _LongerBytes(_Bytes):
    """Claims to be many times as long, so that a length guessed from the size is never too short.

    The last claimed bytes read as zeros, because mpg123 looks for an ID3v1 tag there.
    """

    _TAG = 128

    def _end(self) -> int:
        return self._size * _MP3_LENGTH_FACTOR + self._TAG

    def _beyond(self, count: int) -> bytes:
        return bytes(count) if self._position >= self._end() - self._TAG else b""


def _open(source: _Source) -> soundfile.SoundFile:
    try:
        with _quiet_stderr():
            return soundfile.SoundFile(source)
    except soundfile.LibsndfileError as error:
        raise UnreadableError(_reason(error)) from error


def _reason(error: soundfile.LibsndfileError) -> str:
    """Return libsndfile's message, shortened or in plainer words."""
    if error.code in _PLAIN_WORDS:
        return _PLAIN_WORDS[error.code]
    text = re.sub(r"^Error\b[^.:]*[.:]\s*", "", error.error_string.strip()).rstrip(".")
    if "nternal" in text or "regular file" in text:  # about libsndfile's workings, not the file
        return "its header contradicts itself"
    return text[:1].lower() + text[1:]


def _promised_frames(sound: soundfile.SoundFile) -> int:
    """Return how many frames the header promises; 0 if it does not say.

    For flac and mp3, libsndfile reports the header's number. Where a chunk states its size in bytes
    (wav, aiff, au), libsndfile corrects it by the file's length and logs both numbers.
    """
    if sound.frames >= _UNKNOWN_FRAMES:
        return 0
    header = re.search(
        r"^\s*(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)", sound.extra_info, re.MULTILINE
    )
    if header is None:
        return int(sound.frames)
    declared, actual = int(header[1]), int(header[2])
    if declared >= _STREAMED_SIZE or declared <= actual:
        return int(sound.frames)
    return max(int(sound.frames) + 1, int(sound.frames) * declared // max(1, actual))


def _mp3_counts_its_frames(file: BinaryIO) -> bool:
    """Tell whether the first frame is a Xing or Info tag with the number of frames."""
    file.seek(0)
    head = file.read(10)
    if head[:3] == b"ID3" and len(head) == 10:
        # ID3v2.4 section 3.1: seven bits per byte, not counting the ten bytes of the header.
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        file.seek(10 + size)
    else:
        file.seek(0)
    frame = file.read(256)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    return at >= 0 and len(frame) >= at + 8 and bool(frame[at + 7] & 1)


def _ogg_is_complete(file: BinaryIO) -> bool:
    """Tell whether the last page is whole and marked as the stream's end (RFC 3533 section 6)."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - _OGG_LAST_PAGE))
    tail = file.read(_OGG_LAST_PAGE)
    at = tail.rfind(b"OggS")
    if at < 0 or len(tail) < at + 27:
        return False
    lengths = tail[at + 27 : at + 27 + tail[at + 26]]
    whole = len(tail) >= at + 27 + tail[at + 26] + sum(lengths)
    return whole and bool(tail[at + 5] & _OGG_END_OF_STREAM)


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keep mpg123, which libsndfile does not silence, from writing to file descriptor 2."""
    with _stderr_lock:
        try:
            saved = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        try:
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - a device, not a path
                os.dup2(nowhere.fileno(), 2)
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
