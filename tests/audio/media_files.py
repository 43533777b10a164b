"""Audio files in containers that libsndfile does not write."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

RATE = 16_000
_CONTAINERS = {
    ("mp4", "aac"): ("f4a", "f4b", "isma", "m4v", "mp4"),
    ("ipod", "aac"): ("m4a", "m4b", "m4r"),
    ("mov", "aac"): ("mov", "qt", "ismv"),
    ("3gp", "aac"): ("3gp", "3gpp"),
    ("3g2", "aac"): ("3g2",),
    ("f4v", "aac"): ("f4v",),
    ("adts", "aac"): ("aac", "adts"),
    ("latm", "aac"): ("latm", "loas"),
    ("ac3", "ac3"): ("ac3",),
    ("eac3", "eac3"): ("eac3", "ec3"),
    ("asf", "wmav2"): ("asf", "wma", "wmv"),
    ("avi", "pcm_s16le"): ("avi", "divx"),
    ("flv", "aac"): ("flv",),
    ("matroska", "libopus"): ("mk3d", "mka", "mkv"),
    ("webm", "libopus"): ("weba", "webm"),
    ("ogg", "flac"): ("ogv", "ogx"),
    ("mp2", "mp2"): ("m2a",),
    ("mpegts", "aac"): ("ts", "m2t", "trp"),
    ("mpegts", "ac3"): ("mts",),
    ("mpegts", "mp2"): ("m2ts",),
    ("mpeg", "mp2"): ("mpeg", "mpg"),
    ("vob", "ac3"): ("vob",),
    ("wv", "wavpack"): ("wv",),
    ("tta", "tta"): ("tta",),
    ("nut", "aac"): ("nut",),
    ("wtv", "mp2"): ("wtv",),
    ("ircam", "pcm_s16le"): ("ircam",),
    ("sox", "pcm_s32le"): ("sox",),
    ("g722", "g722"): ("g722",),
    ("rso", "pcm_u8"): ("rso",),
}
BY_PYAV = {extension: how for how, several in _CONTAINERS.items() for extension in several}
"""FFmpeg's names of the container and the codec, by extension."""


def write_by_pyav(path: Path, samples: NDArray[Any], rate: int) -> None:
    """Write float samples [n] or [n, channels] as the suffix says."""
    layout, codec = BY_PYAV[path.suffix[1:]]
    options = {"movflags": "+faststart"} if layout in {"ipod", "mp4"} else {}
    with av.open(str(path), "w", format=layout, options=options) as out:
        channels = 1 if samples.ndim == 1 else samples.shape[1]
        stream = out.add_stream(codec, rate=rate, layout="mono" if channels == 1 else "stereo")
        stream.bit_rate = 64_000
        for packet in _encoded(stream, samples, rate):
            out.mux(packet)


@dataclass(frozen=True, kw_only=True)
class FilmTrack:
    """An audio track of a film; `gaps` are seconds of it that have no packets."""

    samples: NDArray[Any]
    start: float = 0.0
    language: str = ""
    title: str = ""
    is_default: bool = False
    gaps: Sequence[tuple[float, float]] = ()


def write_film(
    path: Path,
    tracks: Sequence[FilmTrack],
    *,
    seconds: float = 1.0,
    container: str = "matroska",
    codec: str = "aac",
) -> None:
    """Write a film of so many seconds with audio tracks of 16 kHz; without picture for 0."""
    with av.open(str(path), "w", format=container) as out:
        picture = out.add_stream("mpeg4", rate=5) if seconds else None
        streams = []
        for track in tracks:
            stream = out.add_stream(codec, rate=RATE, layout="mono")
            stream.disposition = av.stream.Disposition(int(track.is_default))
            stream.metadata.update({"language": track.language, "title": track.title})
            streams.append(stream)
        packets = [p for s, t in zip(streams, tracks, strict=True) for p in _timed(s, t)]
        if picture is not None:
            picture.width, picture.height, picture.pix_fmt = 32, 32, "yuv420p"
            for number in range(round(5 * seconds)):
                frame = av.VideoFrame(32, 32, "yuv420p")
                frame.pts, frame.time_base = number, Fraction(1, 5)
                packets += picture.encode(frame)
            packets += picture.encode(None)
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            out.mux(packet)


def write_adts(path: Path, parts: Sequence[NDArray[Any]], rate: int) -> None:
    """Write parts of audio, each [n] or [n, channels], as one stream of AAC.

    Each part has a header of its own, so the number of channels may change on the way.
    """
    content = b""
    for i, part in enumerate(parts):
        piece = path.with_name(f"{i}.aac")
        write_by_pyav(piece, part, rate)
        content += piece.read_bytes()
        piece.unlink()
    path.write_bytes(content)


def _timed(stream: av.AudioStream, track: FilmTrack) -> Iterator[av.Packet]:
    late = round(track.start * RATE)
    for packet in _encoded(stream, track.samples, RATE):
        at = packet.pts * packet.time_base
        if not any(start <= at < end for start, end in track.gaps):
            shift = round(late / (RATE * packet.time_base))
            packet.pts += shift
            packet.dts += shift
            yield packet


def _encoded(stream: av.AudioStream, samples: NDArray[Any], rate: int) -> Iterator[av.Packet]:
    channels = np.atleast_2d(samples.T).astype(np.float32)
    frame = av.AudioFrame.from_ndarray(
        np.ascontiguousarray(channels), format="fltp", layout=stream.layout.name
    )
    frame.sample_rate = rate
    resampler = av.AudioResampler(
        stream.format.name, stream.layout.name, rate, frame_size=stream.frame_size or 960
    )
    done = 0
    for piece in [*resampler.resample(frame), *resampler.resample(None)]:
        piece.pts, piece.time_base = done, Fraction(1, rate)
        done += piece.samples
        yield from stream.encode(piece)
    yield from stream.encode(None)
