"""Sound in containers that libsndfile does not write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray


def write_by_pyav(path: Path, samples: NDArray[Any], rate: int) -> None:
    """Write float samples [n] or [n, channels] as the suffix says: m4a, mp4 or webm."""
    formats = {"m4a": ("ipod", "aac"), "mp4": ("mp4", "aac"), "webm": ("webm", "libopus")}
    layout, codec = formats[path.suffix[1:]]
    channels = np.atleast_2d(samples.T).astype(np.float32)
    options = {} if path.suffix == ".webm" else {"movflags": "+faststart"}
    with av.open(str(path), "w", format=layout, options=options) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono" if len(channels) == 1 else "stereo")
        frame = av.AudioFrame.from_ndarray(
            np.ascontiguousarray(channels), format="fltp", layout=stream.layout.name
        )
        frame.sample_rate = rate
        resampler = av.AudioResampler(
            stream.format.name, stream.layout.name, rate, frame_size=stream.frame_size or 960
        )
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            out.mux(stream.encode(piece))
        out.mux(stream.encode(None))


def write_adts(path: Path, parts: Sequence[NDArray[Any]], rate: int) -> None:
    """Write stretches of sound, each [n] or [n, channels], as one stream of AAC.

    Each part has a header of its own, so the number of channels may change on the way.
    """
    content = b""
    for i, part in enumerate(parts):
        piece = path.with_name(f"{i}.aac")
        channels = np.atleast_2d(part.T).astype(np.float32)
        layout = "mono" if len(channels) == 1 else "stereo"
        with av.open(str(piece), "w", format="adts") as out:
            stream = out.add_stream("aac", rate=rate, layout=layout)
            frame = av.AudioFrame.from_ndarray(
                np.ascontiguousarray(channels), format="fltp", layout=layout
            )
            frame.sample_rate = rate
            resampler = av.AudioResampler("fltp", layout, rate, frame_size=1024)
            for framed in [*resampler.resample(frame), *resampler.resample(None)]:
                out.mux(stream.encode(framed))
            out.mux(stream.encode(None))
        content += piece.read_bytes()
        piece.unlink()
    path.write_bytes(content)
