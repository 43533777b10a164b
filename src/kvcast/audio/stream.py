"""Live audio: raw PCM, WAV of unknown length, or G.711 (mu-law and A-law).

Bytes arrive in any number. G.711 is decoded by the tables 1 and 2 of ITU-T Recommendation G.711.
"""

import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import HIGHEST_RATE, LOWEST_RATE, SAMPLE_RATE
from kvcast.audio.features import LOUDEST_SAMPLE
from kvcast.audio.formats import foreign, may_need_more
from kvcast.audio.source import CANCELLED, Mixer, Resampler, full_scale
from kvcast.errors import InputOutputError

Samples: TypeAlias = NDArray[np.float32]

_RIFF_HEADER = 12
_LONGEST_HEADER = 1 << 20  # nobody waits for a megabyte before the audio begins

_UNKNOWN_LENGTH = 0x7FFF0000  # or more, or 0: claimed by programs that write to a pipe

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE

_Decode: TypeAlias = Callable[[bytes], Samples]


def _pcm24(data: bytes) -> Samples:
    padded = np.zeros((len(data) // 3, 4), np.uint8)
    padded[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return _scale(padded.view("<i4")[:, 0], 2**31)


def _scale(integers: NDArray[np.signedinteger], full_scale: int) -> Samples:
    return integers.astype(np.float32) / np.float32(full_scale)


_CODINGS: Mapping[tuple[int, int], _Decode] = {
    (_PCM, 8): lambda data: _scale(np.frombuffer(data, np.uint8).astype(np.int16) - 128, 2**7),
    (_PCM, 16): lambda data: _scale(np.frombuffer(data, "<i2"), 2**15),
    (_PCM, 24): _pcm24,
    (_PCM, 32): lambda data: _scale(np.frombuffer(data, "<i4"), 2**31),
    (_FLOAT, 32): lambda data: np.frombuffer(data, "<f4").astype(np.float32),
    (_FLOAT, 64): lambda data: np.frombuffer(data, "<f8").astype(np.float32),
}  # how samples are read, by WAV's format tag and bits


class _SampleLayout(NamedTuple):
    rate: int
    channels: int
    bits: int
    decode: _Decode
    is_float: bool = False

    @property
    def frame_bytes(self) -> int:
        return self.channels * self.bits // 8


class _Header(NamedTuple):
    """The header of a WAV; `audio_bytes` is the size of its audio in bytes, None if unknown."""

    layout: _SampleLayout
    length: int
    audio_bytes: int | None


class AudioStream:
    """Turns bytes into mono 16 kHz samples: WAV if they begin as one, else raw PCM.

    Raw PCM is signed 16-bit little endian, one channel. Bytes after a WAV's stated end are ignored.
    """

    def __init__(self, sample_rate: int = SAMPLE_RATE, name: str = "standard input") -> None:
        """Wait for bytes; `sample_rate`: of raw PCM, in hertz; a WAV states its sample rate."""
        self.notices: tuple[str, ...] = ()
        self._name = name
        self._raw = _SampleLayout(sample_rate, 1, 16, _CODINGS[_PCM, 16])
        self._layout: _SampleLayout | None = None
        self._left: int | None = None  # bytes of audio that are still to come, if known
        self._held = b""
        self._resampler = Resampler(SAMPLE_RATE)
        self._seconds = 0.0
        self._mixer = Mixer()
        self._full_scale = 1.0  # of floats, as they were until now

    def feed(self, data: bytes) -> Samples:
        """Return the samples [n] that these bytes complete; few or none at first.

        Raises InputOutputError for another format, a wrong header, and samples that are not audio.
        """
        self._held += data
        if self._layout is None and not self._begin(is_all=False):
            return np.empty(0, np.float32)
        return self._samples(last=False)

    def finish(self) -> Samples:
        """Return the last samples [n]; call it once, when no more bytes will come.

        Raises InputOutputError for an empty stream, or a header without an end.
        """
        if self._layout is None:
            if not self._held:
                raise InputOutputError(f"{self._name} is empty: it has 0 bytes")
            self._begin(is_all=True)
        samples = self._samples(last=True)
        if self._held:
            self.notices += (f"{self._name} ends within a sample, which was left out",)
        if self._mixer.cancelled:
            self.notices += (f"{self._name} {CANCELLED}",)
        return samples

    def _begin(self, *, is_all: bool) -> bool:
        """Find the layout from the first bytes; return whether they were enough."""
        if len(self._held) < _RIFF_HEADER and not is_all:
            return False
        if (format_ := foreign(self._held)) is not None:
            raise InputOutputError(
                f"{self._name} is {format_}, and only raw PCM or WAV can be read live: "
                "convert it with ffmpeg -i … -f s16le -ac 1 -ar 16000 -"
            )
        if may_need_more(self._held) and not is_all:
            return False
        if not self._held.startswith(b"RIFF"):
            self._use(self._raw)
            return True
        header = _wav_header(self._held, self._name)
        if header is None:
            if is_all or len(self._held) > _LONGEST_HEADER:
                raise InputOutputError(f"{self._name} is a WAV without audio: it is all header")
            return False
        self._held = self._held[header.length :]
        self._left = header.audio_bytes
        self._use(header.layout)
        return True

    def _use(self, layout: _SampleLayout) -> None:
        self._layout = layout
        self._resampler = Resampler(layout.rate)

    def _samples(self, *, last: bool) -> Samples:
        assert self._layout is not None
        if self._left is not None:
            self._held = self._held[: self._left]
        size = self._layout.frame_bytes
        whole = len(self._held) // size * size
        data, self._held = self._held[:whole], self._held[whole:]
        if self._left is not None:
            self._left -= whole
        samples_sc = self._layout.decode(data).reshape(-1, self._layout.channels)
        if self._layout.is_float and self._full_scale == 1:
            scale = full_scale([samples_sc])
            self._full_scale = scale.value
            if scale.notice is not None:
                self.notices += (f"{self._name} {scale.notice}",)
        mono = self._mixer.mono(samples_sc / np.float32(self._full_scale))
        self._check(mono)
        return self._resampler.feed(mono, last=last)

    def _check(self, mono: Samples) -> None:
        assert self._layout is not None
        peak = float(np.abs(mono).max(initial=0.0))
        if not peak <= LOUDEST_SAMPLE:  # true of NaN as well
            raise InputOutputError(
                f"{self._name} is not audio: it has samples of {peak:g} near "
                f"{self._seconds:.1f} s, where 1 is full scale"
            )
        self._seconds += len(mono) / self._layout.rate


def _wav_header(data: bytes, name: str) -> _Header | None:
    """Read chunks up to the audio; None if the bytes end before it.

    See "Multimedia Programming Interface and Data Specifications 1.0", RIFF and WAVE.
    """
    if data[8:12] != b"WAVE":
        raise InputOutputError(f"{name} is a RIFF file of another kind than WAVE")
    at, layout = _RIFF_HEADER, None
    while len(data) >= at + 8:
        kind, size = struct.unpack_from("<4sI", data, at)
        at += 8
        if kind == b"data":
            if layout is None:
                raise InputOutputError(
                    f"{name} is a WAV that does not state how its audio is encoded"
                )
            return _Header(layout, at, size if 0 < size < _UNKNOWN_LENGTH else None)
        if len(data) < at + size:
            return None
        if kind == b"fmt ":
            layout = _layout(data[at : at + size], name)
        at += size + size % 2
    return None


def _layout(chunk: bytes, name: str) -> _SampleLayout:
    if len(chunk) < 16:
        raise InputOutputError(f"{name} is a WAV with a damaged header")
    tag, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _EXTENSIBLE and len(chunk) >= 26:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if not channels or not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InputOutputError(
            f"{name} is a WAV that claims {channels} channels of {rate} samples a second; one or "
            f"more of {LOWEST_RATE} to {HIGHEST_RATE} can be read"
        )
    if (tag, bits) not in _CODINGS:
        raise InputOutputError(
            f"{name} is a WAV of coding {tag} with {bits} bits, which cannot be read live: "
            "convert it with ffmpeg -i … -f s16le -ac 1 -ar 16000 -"
        )
    return _SampleLayout(rate, channels, bits, _CODINGS[tag, bits], tag == _FLOAT)


_CODES = np.arange(256)
_SEGMENT_BITS, _STEP_BITS = 0x70, 0x0F


def _mu_law() -> NDArray[np.int16]:
    """Return the 16-bit value of each code: in each segment 16 steps, twice as wide as before."""
    codes = ~_CODES & 0xFF  # sent inverted
    segments, steps = (codes & _SEGMENT_BITS) >> 4, codes & _STEP_BITS
    magnitudes = (((steps << 3) + 0x84) << segments) - 0x84
    return np.where(codes & 0x80, -magnitudes, magnitudes).astype(np.int16)


def _a_law() -> NDArray[np.int16]:
    """Return the 16-bit value of each code: the first two segments are equally wide."""
    codes = _CODES ^ 0x55  # sent with every second bit inverted
    segments, steps = (codes & _SEGMENT_BITS) >> 4, codes & _STEP_BITS
    first = (steps << 4) + 0x08
    magnitudes = np.where(segments == 0, first, (first + 0x100) << np.maximum(segments - 1, 0))
    return np.where(codes & 0x80, magnitudes, -magnitudes).astype(np.int16)


_MU_LAW, _A_LAW = _mu_law(), _a_law()


def decode_mu_law(data: bytes) -> NDArray[np.int16]:
    """Return the samples [n] of n bytes, with 16-bit full scale."""
    return _MU_LAW[np.frombuffer(data, np.uint8)]


def decode_a_law(data: bytes) -> NDArray[np.int16]:
    """Return the samples [n] of n bytes, with 16-bit full scale."""
    return _A_LAW[np.frombuffer(data, np.uint8)]
