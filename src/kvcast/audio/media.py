"""Reads mp4, m4a, webm and other formats that libsndfile lacks, with PyAV (the extra `media`).

Knows nothing of resampling or of error messages.
"""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import av
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.reader import BLOCK_VALUES, DamagedError, SoundReader, UnreadableError

# Only plain containers and no protocols: with playlists and scripts (hls, concat, dash), a file
# could open other files or network addresses.
_OPEN_OPTIONS = {
    "format_whitelist": "mov,matroska,webm,aac,ac3,amr,asf,avi,flv,mp3,mpegts,ogg,wav",
    "protocol_whitelist": "none",
}

_TOLERANCE = 0.5
"""Seconds by which the duration of a complete file may be wrong."""


class MediaReader(SoundReader):
    """One pass over the first audio stream of a seekable file.

    Raises:
        UnreadableError: FFmpeg's libraries cannot open it or find no sound in it.

    """

    def __init__(self, file: BinaryIO) -> None:
        file.seek(0)
        try:
            self._container = av.open(file, mode="r", options=_OPEN_OPTIONS)
        except (av.FFmpegError, ValueError) as error:
            raise UnreadableError("no known format") from error
        streams = [s for s in self._container.streams.audio if s.codec_context is not None]
        if not streams:
            self._container.close()
            raise UnreadableError("there is no sound in it")
        self._stream = streams[0]
        self.rate = int(self._stream.rate or 0)
        self.channels = int(self._stream.channels or 0)

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        held: list[NDArray[np.float32]] = []
        values = frames = 0
        complaint = ""
        pieces = self._pieces()
        while True:
            try:
                piece = next(pieces, None)
            except (av.FFmpegError, ValueError) as error:
                complaint = f"is damaged or cut short ({_reason(error)})"
                break
            if piece is None:
                break
            held.append(piece)
            values += piece.size
            frames += len(piece)
            if values >= BLOCK_VALUES:
                yield np.concatenate(held)
                held, values = [], 0
        if held:
            yield np.concatenate(held)
        expected = self._duration()
        if not complaint and frames / self.rate < expected - _TOLERANCE:
            complaint = f"is cut short: it should last {expected:.2f} s"
        if complaint:
            raise DamagedError(complaint)

    @override
    def close(self) -> None:
        self._container.close()

    def _pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yield an array [samples, channels] per codec frame, at the container's rate.

        A stream may change its channels, format or rate; the first frame's channels are kept.
        """
        kind, layout = None, None
        to_float = av.AudioResampler(format="fltp", rate=self.rate)
        for frame in self._container.decode(self._stream):
            shape = (frame.format.name, frame.layout.name, frame.sample_rate)
            if kind not in (None, shape):
                yield from _samples(to_float.resample(None))
                to_float = av.AudioResampler(format="fltp", layout=layout, rate=self.rate)
            kind, layout = shape, layout or frame.layout
            yield from _samples(to_float.resample(frame))
        yield from _samples(to_float.resample(None))

    def _duration(self) -> float:
        """Return the duration in seconds that the container states; 0 if it does not."""
        if self._stream.duration is not None and self._stream.time_base is not None:
            return float(self._stream.duration * self._stream.time_base)
        if self._container.duration is None or len(self._container.streams) > 1:
            return 0.0  # a film's duration is that of its longest stream
        return float(self._container.duration) / av.time_base


def _samples(frames: Iterable[av.AudioFrame]) -> Iterator[NDArray[np.float32]]:
    """Yield planar frames as arrays [samples, channels]."""
    for planar in frames:
        yield np.asarray(planar.to_ndarray(), np.float32).T


def _reason(error: Exception) -> str:
    """Return FFmpeg's message without the number and the call that it adds."""
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
