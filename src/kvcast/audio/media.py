"""Reads mp4, m4a, webm and other formats that libsndfile lacks, with PyAV (the extra `media`).

Samples are placed at the container's times: where packets are missing, there is silence.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import av
import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.reader import (
    BLOCK_VALUES,
    AudioReader,
    DamagedError,
    FileSection,
    NoAudioError,
    Track,
    UnreadableError,
    choose_track,
)
from kvcast.audio.repair import FrameClock, void_patches

# Only plain containers and no protocols: with playlists and scripts (hls, concat, dash), a file
# could open other files or network addresses. Formats without audio, and formats that FFmpeg
# recognises only by a file's name, are left out.
FORMATS = (
    *("mov", "matroska", "webm", "avi", "asf", "flv", "live_flv", "kux", "rm", "ivr", "swf"),
    *("mpegts", "mpeg", "mxf", "gxf", "nut", "wtv", "dv", "nuv", "ogg", "ty", "pva", "nsv", "dhav"),
    *("aac", "loas", "ac3", "eac3", "ac4", "dts", "dtshd", "truehd", "mlp", "mp3", "spdif"),
    *("amr", "amrnb", "amrwb", "gsm", "qcp", "g722", "sbc", "aea", "oma", "lc3", "iamf", "codec2"),
    *("flac", "wv", "tta", "ape", "tak", "shn", "osq", "bonk", "rka", "wavarc"),
    *("mpc", "mpc8", "vqf", "dsf", "iff", "wsd", "dss", "aa", "aax", "xwma", "wve"),
    *("wav", "w64", "aiff", "caf", "au", "voc", "ircam", "nistsphere", "sox", "rso", "pvf", "sds"),
    *("mmf", "avr", "paf", "hcom", "act", "adx", "g729", "sln"),
)
_OPEN_OPTIONS = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"}

_TOLERANCE = 0.5  # seconds by which the duration of a complete file may be wrong
_UNTIMED = frozenset({"aac", "ac3", "eac3", "mp3", "dts", "truehd", "mlp", "loas", "amr"})
"""Bare frames: FFmpeg counts their times by the first frame's rate, and guesses their duration."""

_LEAST_SKIP = 0.1  # seconds between packets that are more than rounding
_UNREAD, _LEAST_UNREAD = 0.25, 4096
"""Part of the file, and bytes, that may follow the audio: an index, pictures."""

_MOST_FAILURES = 50  # reading stops after this many errors without a packet between them


@dataclass
class _Losses:
    """Moments that were lost in one way: the first of them, how many, and seconds in all."""

    first: float = 0.0
    count: int = 0
    seconds: float = 0.0

    def add(self, at: float, seconds: float) -> None:
        self.first = self.first if self.count else at
        self.count += 1
        self.seconds += seconds

    def join(self, later: "_Losses") -> None:
        if later.count:
            self.add(later.first, later.seconds)
            self.count += later.count - 1


@dataclass
class _DecodedFrame:
    """A frame, and the losses before it: packets with an error, and packets without a frame."""

    frame: av.AudioFrame
    damaged: _Losses
    mute: _Losses


class MediaReader(AudioReader):
    """One pass over an audio track of a seekable file."""

    def __init__(
        self,
        file: FileSection,
        track: str | int | None = None,
        *,
        is_damaged: bool = False,
        format_: str | None = None,
    ) -> None:
        """Open it; raises UnreadableError, NoAudioError or NoTrackError.

        `track`: a number or a language; by default the container's default. `format_`: FFmpeg's
        name; by default it is recognized. `is_damaged`: parts are known to be missing, so every gap
        is one.
        """
        self.notices: list[str] = []
        voids = void_patches(file)
        self._file = FileSection(file, patches=voids)
        self._is_damaged = is_damaged or bool(voids)
        try:
            self._container = av.open(self._file, mode="r", format=format_, options=_OPEN_OPTIONS)
        except (av.FFmpegError, ValueError) as error:
            raise UnreadableError("no known format") from error
        try:
            self._stream = self._choose_stream(track)
        except Exception:
            self._container.close()
            raise
        self.rate = int(self._stream.rate or 0)
        self.channels = int(self._stream.channels or 0)
        self.stores_floats = str(self._stream.codec_context.name).startswith("pcm_f")
        self.stops_at_damage = False
        start = self._container.start_time
        self._is_timed = self._container.format.name not in _UNTIMED
        origin = None if start is None else start / av.time_base
        self._clock = FrameClock(origin, is_damaged=self._is_damaged)
        self._damaged, self._gaps = _Losses(), _Losses()
        self._trailing = _Losses()  # after the last frame

    def skips(self) -> bool:
        """Return whether packets are missing, by their times; this reads all of them."""
        expected: float | None = None
        for packet in self._packets():
            if packet is None or packet.pts is None or not packet.duration:
                continue
            base = float(packet.time_base)
            if expected is not None and packet.pts * base - expected > _LEAST_SKIP:
                return True
            expected = (packet.pts + packet.duration) * base
        return False

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        held: list[NDArray[np.float32]] = []
        values = 0
        complaint = ""
        pieces = self._pieces()
        while True:
            try:
                piece = next(pieces, None)
            except (av.FFmpegError, ValueError, IndexError) as error:
                complaint = f"is damaged or cut short ({_reason(error)})"
                break
            if piece is None:
                break
            if held and (values >= BLOCK_VALUES or held[0].shape[1] != piece.shape[1]):
                yield np.concatenate(held)
                held, values = [], 0
            held.append(piece)
            values += piece.size
        if held:
            yield np.concatenate(held)
        expected = self._duration()
        if not complaint and self._clock.time < expected - _TOLERANCE:
            complaint = f"is damaged or cut short: it should last {expected:.2f} s"
        self._note(is_cut=bool(complaint))
        if complaint:
            raise DamagedError(complaint)

    @override
    def close(self) -> None:
        self._container.close()

    def _choose_stream(self, wanted: str | int | None) -> av.AudioStream:
        streams = [s for s in self._container.streams.audio if s.codec_context is not None]
        if not streams:
            raise NoAudioError("has no audio in it")
        tracks = [
            Track(
                number,
                language=stream.metadata.get("language", ""),
                title=stream.metadata.get("title", ""),
                is_default=bool(stream.disposition & av.stream.Disposition.default),
            )
            for number, stream in enumerate(streams, start=1)
        ]
        track = choose_track(tracks, wanted)
        if wanted is None and len(tracks) > 1:
            others = ", ".join(str(other) for other in tracks if other != track)
            self.notices.append(
                f"has {len(tracks)} audio tracks: {track} is taken, not {others}; "
                "audio_track chooses one"
            )
        return streams[track.number - 1]

    def _frames(self) -> Iterator[_DecodedFrame]:
        """Yield decoded frames; packets that cannot be decoded are counted and left out."""
        damaged, mute = _Losses(), _Losses()
        has_begun = False
        for packet in self._packets():
            try:
                frames = self._stream.decode(packet)
            except av.FFmpegError:
                if packet is not None:
                    damaged.add(self._clock.position, self._seconds(packet))
                continue
            if packet is not None and not frames and has_begun:  # the first ones may give none
                mute.add(self._clock.position, self._seconds(packet))
            if len(frames) > 1:
                self._clock.doubt()
            for frame in frames:
                yield _DecodedFrame(frame, damaged, mute)
                has_begun = True
                damaged, mute = _Losses(), _Losses()
        self._trailing = damaged

    def _seconds(self, packet: "av.Packet[av.AudioStream]") -> float:
        """Return a packet's duration, as stated or as usual for its codec."""
        if packet.duration and packet.time_base:
            return float(packet.duration * packet.time_base)
        return float(self._stream.codec_context.frame_size or 0) / max(self.rate, 1)

    def _packets(self) -> "Iterator[av.Packet[av.AudioStream] | None]":
        """Yield the track's packets, and None at their end; continues after damage."""
        failures = 0
        while failures < _MOST_FAILURES:
            try:
                for packet in self._container.demux(self._stream):
                    if packet.size:
                        failures = 0
                        yield packet
                break
            except (av.FFmpegError, IndexError) as error:  # of an unannounced stream
                failures += 1
                last = error
        yield None
        if failures:
            raise last

    def _pieces(self) -> Iterator[NDArray[np.float32]]:
        """Yield an array [samples, channels] per codec frame, at the container's rate.

        A stream may change its channels, format or rate; the first frame's channels are kept.
        """
        kind, layout = None, None
        to_float = av.AudioResampler(format="fltp", rate=self.rate)
        frames = self._frames()
        decoded = next(frames, None)
        while decoded is not None:
            following, frame = next(frames, None), decoded.frame
            shape = (frame.format.name, frame.layout.name, frame.sample_rate)
            gap = self._gap_before(decoded, following)
            if kind is not None and (kind != shape or gap):
                yield from _samples(to_float.resample(None))
                to_float = av.AudioResampler(format="fltp", layout=layout, rate=self.rate)
            yield from self._silence(gap)
            kind, layout = shape, layout or frame.layout
            yield from _samples(to_float.resample(frame))
            decoded = following
        if kind is not None:
            yield from _samples(to_float.resample(None))

    def _gap_before(self, decoded: _DecodedFrame, following: _DecodedFrame | None) -> float:
        """Return the seconds of missing audio before a frame, and count the losses there."""
        at, frame = self._clock.position, decoded.frame
        lasts = frame.samples / frame.sample_rate
        if not self._is_timed:
            gap = decoded.damaged.seconds
            self._clock.gap_before(None, gap + lasts, None)
            self._damaged.join(decoded.damaged)
            return gap
        after = None if following is None else following.frame.time
        gap = self._clock.gap_before(frame.time, lasts, after)
        if gap > 0.5 * decoded.mute.seconds:
            decoded.damaged.join(decoded.mute)
        if decoded.damaged.count:
            decoded.damaged.seconds = max(decoded.damaged.seconds, gap)
            self._damaged.join(decoded.damaged)
        elif gap:
            self._gaps.add(at, gap)
        return gap

    def _silence(self, seconds: float) -> Iterator[NDArray[np.float32]]:
        left = round(seconds * self.rate)
        while left > 0:
            samples = min(left, max(1, BLOCK_VALUES // self.channels))
            yield np.zeros((samples, self.channels), np.float32)
            left -= samples

    def _note(self, *, is_cut: bool) -> None:
        if (gaps := self._gaps).count:
            where = f"{gaps.count} gaps, the first at {gaps.first:.2f} s"
            if gaps.count == 1:
                where = f"a gap at {gaps.first:.2f} s" if gaps.first else "a gap before its audio"
            has = "is damaged and has" if self._is_damaged else "has"
            self.notices.append(f"{has} {where}: {gaps.seconds:.2f} s in all are taken as silence")
        if not is_cut:  # otherwise this is the last packet, of which a part is there
            self._damaged.join(self._trailing)
        if (damaged := self._damaged).count:
            packets = "packet" if damaged.count == 1 else "packets"
            self.notices.append(
                f"is damaged: {damaged.count} {packets} could not be decoded, "
                f"{damaged.seconds:.2f} s in all, from {damaged.first:.2f} s on; the rest is used"
            )
        size, unread = self._file.size, self._file.size - self._file.tell()
        if not is_cut and unread > max(_LEAST_UNREAD, _UNREAD * size):
            share = f"{100 * unread / size:.0f} %"
            self.notices.append(f"was not read to its end: {share} of the file is left out")

    def _duration(self) -> float:
        if not self._is_timed:
            return 0.0
        if self._stream.duration is not None and self._stream.time_base is not None:
            return float(self._stream.duration * self._stream.time_base)
        if self._container.duration is None or len(self._container.streams) > 1:
            return 0.0  # a film's duration is its longest stream's
        return float(self._container.duration) / av.time_base


def _samples(frames: Iterable[av.AudioFrame]) -> Iterator[NDArray[np.float32]]:
    """Yield planar frames as arrays [samples, channels]."""
    for planar in frames:
        yield np.asarray(planar.to_ndarray(), np.float32).T


def _reason(error: Exception) -> str:
    """Return FFmpeg's message without the number and the call that it adds."""
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]
