"""Reads wav, flac, ogg, mp3 and libsndfile's other formats, and detects truncated files."""

import contextlib
import os
import re
import threading
from collections.abc import Iterator

import numpy as np
import soundfile
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.bitstreams import after_id3, frame_count, read_pages
from kvcast.audio.reader import (
    BLOCK_VALUES,
    AudioReader,
    DamagedError,
    FileSection,
    UnreadableError,
)
from kvcast.audio.repair import STREAMED_SIZE, find_understated_length

_UNKNOWN_FRAMES = 2**62
_SEEK_FAILED = 39  # libsndfile's SFE_PSF_FSEEK
_PLAIN_WORDS = {
    1: "its format is not recognised; it is not audio, or damaged",  # SF_ERR_UNRECOGNISED_FORMAT
    2: "it ends within its header",  # SF_ERR_SYSTEM, whose text is about missing files
    29: "it ends within a frame",  # SFE_INTERNAL, the mp3 decoder's only error
}

_READ_AHEAD = 9_000  # more bytes than libFLAC holds after all frames that the header counts
_MP3_LENGTH_FACTOR = 64  # larger than the ratio of any two bit rates of MPEG audio
_MPEG_DELAY = 2 * 1152  # frames that an MPEG decoder leaves out or adds

_stderr_lock = threading.Lock()


class SndfileReader(AudioReader):
    """One pass over a seekable file by libsndfile; raises UnreadableError."""

    def __init__(self, file: FileSection) -> None:
        self.notices: list[str] = []
        self._file, self._hidden = file, find_understated_length(file)
        patches = None if self._hidden is None else self._hidden.patches
        self._source = FileSection(file, patches=patches)
        self._decoder = _open(self._source)
        self._promised, self._is_cut = _promised_frames(self._decoder), True
        if self._decoder.format == "MP3":
            self._open_mp3()
        # mpg123, which decodes mp3 in other formats as well, writes to standard error.
        self._decodes_mpeg = "MPEG" in self._decoder.subtype
        self._reading = _quiet_stderr if self._decodes_mpeg else contextlib.nullcontext
        self.rate = int(self._decoder.samplerate)
        self.channels = int(self._decoder.channels)
        self.stores_floats = self._decoder.subtype in {"FLOAT", "DOUBLE"}
        self.stops_at_damage = self._decoder.format == "FLAC"

    def _open_mp3(self) -> None:
        """Open it again, if its length is unknown, or is too short.

        Without a frame count, libsndfile guesses the length from the first frame's bit rate and
        stops there, which loses most of a recording that starts loudly.
        """
        count = frame_count(self._file)
        if count is None:
            self._decoder = _reopen(self._decoder, _LongerSection(self._file, 0))
            self._promised = 0
        elif count.goes_on:
            self._decoder = _reopen(self._decoder, _LongerSection(self._file, count.begin))
        self._is_cut = count is not None and count.is_cut

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        read = 0
        while True:
            block, complaint = self._read()
            if len(block):
                read += len(block)
                yield block
            is_whole = self.stops_at_damage and 0 < self._promised <= read  # a tag may follow
            if complaint and not is_whole:
                raise DamagedError(complaint)
            if complaint or not len(block):
                break
        unread = self._file.size - self._source.tell()
        if self._decoder.format == "FLAC" and unread > _READ_AHEAD:
            for block in self._beyond(read):
                read += len(block)
                yield block
        self._compare(read)

    def _beyond(self, read: int) -> Iterator[NDArray[np.float32]]:
        """Yield frames of a flac beyond the number in its header."""
        self._decoder = _reopen(self._decoder, _flac_of_any_length(self._file))
        while len(block := self._read()[0]):
            yield block[read:]
            read = max(0, read - len(block))

    def _compare(self, read: int) -> None:
        """Compare the number of frames with the header's; raises DamagedError if it is smaller."""
        pages = read_pages(self._file) if self._decoder.format == "OGG" else None
        has_gaps = pages is not None and pages.has_gaps
        lasts = self._promised / self.rate
        if self._hidden is not None:
            lasts = read / self.rate * self._hidden.stated / max(1, self._hidden.held)
            self._note_more(lasts)
        elif read == 0 < self._promised:
            raise DamagedError("is cut short: it ends where its audio should begin")
        elif read + self._slack < self._promised:
            if self._is_cut and not has_gaps:
                raise DamagedError(f"is cut short: it should last {lasts:.2f} s")
            missing = lasts - read / self.rate
            self.notices.append(
                f"is damaged: {missing:.2f} s could not be decoded; the rest is used"
            )
        elif has_gaps:
            self.notices.append("is damaged: parts of it are missing; the rest is used")
        elif 0 < self._promised < read - self._slack:
            self._note_more(lasts)
        if pages is not None and not pages.is_ended:
            raise DamagedError("is cut short: its last page does not end the stream")

    def _note_more(self, stated: float) -> None:
        self.notices.append(
            f"holds more than the {stated:.2f} s that its header states: it is read to its end"
        )

    @property
    def _slack(self) -> int:
        """Frames that a decoder may leave out or add, in a file that is whole."""
        return _MPEG_DELAY if self._decodes_mpeg and self._decoder.format != "MP3" else 0

    @override
    def close(self) -> None:
        self._decoder.close()

    def _read(self) -> tuple[NDArray[np.float32], str]:
        """Return the next block [samples, channels], empty at the end, and libsndfile's complaint.

        If an error interrupts a block, the part decoded before it is kept.
        """
        block = np.full((max(1, BLOCK_VALUES // self.channels), self.channels), np.nan, np.float32)
        try:
            with self._reading():
                return self._decoder.read(len(block), out=block), ""
        except soundfile.LibsndfileError as error:
            unwritten = np.isnan(block[:, -1])
            length = int(unwritten.argmax()) if unwritten.any() else len(block)
            # soundfile seeks after each read, which fails at the end of a flac of unknown length.
            ended = self._decoder.frames >= _UNKNOWN_FRAMES and error.code == _SEEK_FAILED
            return block[:length], "" if ended else f"is damaged or cut short ({_reason(error)})"


class _LongerSection(FileSection):
    """Claims to be many times as long, so that a length guessed from the size is never too short.

    The last claimed bytes read as zeros, because mpg123 looks for an ID3v1 tag there.
    """

    _TAG = 128

    def __init__(self, file: FileSection, start: int) -> None:
        super().__init__(file, start, file.size)
        self._held = self.size
        self.size = self._held * _MP3_LENGTH_FACTOR + self._TAG

    @override
    def read(self, count: int) -> bytes:
        if self._position < self._held:
            return super().read(min(count, self._held - self._position))
        return bytes(count) if self._position >= self.size - self._TAG else b""


def _open(source: FileSection) -> soundfile.SoundFile:
    source.seek(0)
    try:
        with _quiet_stderr():
            return soundfile.SoundFile(source)
    except soundfile.LibsndfileError as error:
        raise UnreadableError(_reason(error)) from error


def _flac_of_any_length(file: FileSection) -> FileSection:
    """Return the file with a header that does not count the samples."""
    at = after_id3(file) + 21  # STREAMINFO's 36 bits of total samples; zero means unknown
    return FileSection(file, patches={at: bytes([file.at(at, 1)[0] & 0xF0]) + bytes(4)})


def _reopen(decoder: soundfile.SoundFile, source: FileSection) -> soundfile.SoundFile:
    decoder.close()
    return _open(source)


def _reason(error: soundfile.LibsndfileError) -> str:
    if error.code in _PLAIN_WORDS:
        return _PLAIN_WORDS[error.code]
    text = re.sub(r"^Error\b[^.:]*[.:]\s*", "", error.error_string.strip()).rstrip(".")
    if "nternal" in text or "regular file" in text:  # about libsndfile's workings, not the file
        return "its header contradicts itself"
    return text[:1].lower() + text[1:]


def _promised_frames(decoder: soundfile.SoundFile) -> int:
    """Return how many frames the header promises; 0 if it does not say.

    For flac and mp3, libsndfile reports the header's number. Where a chunk states its size in bytes
    (wav, aiff, au), libsndfile corrects it by the file's length and logs both sizes.
    """
    if decoder.frames >= _UNKNOWN_FRAMES:
        return 0
    header = re.search(
        r"^\s*(?:data|SSND|Data Size)\s*: (\d+) \(should be (\d+)\)",
        decoder.extra_info,
        re.MULTILINE,
    )
    if header is None:
        return int(decoder.frames)
    declared, actual = int(header[1]), int(header[2])
    if declared >= STREAMED_SIZE or declared <= actual:
        return int(decoder.frames)
    return max(int(decoder.frames) + 1, int(decoder.frames) * declared // max(1, actual))


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
