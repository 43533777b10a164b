"""The interface of an open recording: resampling to 16 kHz, and mixing its channels.

Channels become their mean, one of them, or the loudest where they cancel out.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

if TYPE_CHECKING:
    from soxr import ResampleStream

SAMPLE_RATE = 16_000  # samples per second of everything that recordings yield
LOWEST_RATE, HIGHEST_RATE = 1_000, 768_000
"""A rate outside this range cannot carry speech, or is wrong."""


class AudioSource(Protocol):
    """A recording that can be read more than once, one pass at a time."""

    name: str  # its name in messages: printable, one line
    notices: tuple[str, ...]  # notices for the user after a complete pass, one line each
    no_speech_notices: tuple[str, ...] = ()  # notices for the user if no speech is recognised in it

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the recording from its start, mono float32 [samples] at 16 kHz."""
        ...

    def close(self) -> None: ...


class ChannelSource(AudioSource, Protocol):
    """A recording whose channels can be read one by one."""

    @property
    def channels(self) -> int:
        """How many channels it has, before they are mixed."""
        ...

    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        """Yield a channel, counted from 0, as `blocks` yields the mean of all."""
        ...


class ChannelAudio(ChannelSource):
    def __init__(self, audio: ChannelSource, channel: int) -> None:
        self.name = f"{audio.name}, channel {channel + 1},"
        self._audio, self._channel = audio, channel

    @property
    @override
    def channels(self) -> int:
        return 1

    @property
    def notices(self) -> tuple[str, ...]:  # type: ignore[override]  # nobody sets them
        """Notices for the user after a complete pass, one line each."""
        return self._audio.notices

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        return self.of_channel(None)

    @override
    def of_channel(self, channel: int | None) -> Iterator[NDArray[np.float32]]:
        return self._audio.of_channel(self._channel)

    @override
    def close(self) -> None:
        pass


class Resampler:
    """Resamples one mono stream to 16 kHz, with soxr's streaming resampler (HQ)."""

    def __init__(self, rate: int) -> None:
        self._stream: ResampleStream | None = None
        if rate != SAMPLE_RATE:
            import soxr  # opening a model needs none

            self._stream = soxr.ResampleStream(rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")

    def feed(self, samples: NDArray[np.float32], *, last: bool = False) -> NDArray[np.float32]:
        if self._stream is None:
            return samples
        contiguous = np.ascontiguousarray(samples)
        resampled: NDArray[np.float32] = self._stream.resample_chunk(contiguous, last=last)
        return resampled


def resample(blocks: Iterable[NDArray[np.float32]], rate: int) -> Iterator[NDArray[np.float32]]:
    resampler = Resampler(rate)
    for block in blocks:
        yield resampler.feed(block)
    if rate != SAMPLE_RATE:
        yield resampler.feed(np.empty(0, np.float32), last=True)


_CANCELLED = 0.2  # the mean of n unrelated channels has 1 / n of their power
_MEMORY = 4000  # samples after which a moment counts half as much
_FIRST = 500  # fewer samples do not show how channels correlate
_OFTEN = 0.1  # channels that cancel out in a larger part of a recording are worth a notice
_NO_FLOAT = 16.0  # no float of audio with a full scale of 1 is as large: 24 dB above it
_LOUD, _SEVERAL, _FEW = 4.0, 1e-4, 20
"""Few samples above it may be damage; where they are more, and more than this part, all are
integers."""

_FULL_SCALES = {2.0**15: "16-bit", 2.0**23: "24-bit", 2.0**31: "32-bit"}


CANCELLED = "has channels that cancel each other out: the louder one is used there, not the mean"
"""The notice; it follows the name."""


class Mixer:
    """Makes one channel of blocks [samples, channels], and counts where they cancelled out."""

    def __init__(self, channel: int | None = None, scale: float = 1.0) -> None:
        """Mix all channels, or take one (silence, if there is none); multiply by `scale`."""
        self._channel, self._scale = channel, np.float32(scale)
        self._samples = self._cancelled = 0
        self._mean_power, self._powers_c = 0.0, np.zeros(1, np.float32)  # of the last moments

    def mono(self, block_sc: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return one channel [samples]."""
        with np.errstate(over="ignore", invalid="ignore"):  # NaN and inf are refused later
            samples_s = self._choose_channels(block_sc)
            return samples_s if self._scale == 1 else samples_s * self._scale

    @property
    def cancelled(self) -> bool:
        """Whether channels cancelled out in a good part of the audio."""
        return self._cancelled > _OFTEN * self._samples

    def _choose_channels(self, block_sc: NDArray[np.float32]) -> NDArray[np.float32]:
        channels = block_sc.shape[1]
        if self._channel is not None and self._channel >= channels:
            return np.zeros(len(block_sc), np.float32)
        if channels == 1 or self._channel is not None:
            return block_sc[:, self._channel or 0]
        # One side of a cable or a microphone may be wired the wrong way round.
        mean_s: NDArray[np.float32] = block_sc.mean(axis=1, dtype=np.float32)
        kept = 0.5 ** (len(block_sc) / _MEMORY)
        self._mean_power = kept * self._mean_power + float(mean_s @ mean_s)
        self._powers_c = kept * self._powers_c + np.square(block_sc).sum(axis=0)
        self._samples += len(block_sc)
        cancels = self._mean_power * channels**2 < _CANCELLED * float(self._powers_c.sum())
        if self._samples < _FIRST or not cancels:
            return mean_s
        self._cancelled += len(block_sc)
        return block_sc[:, int(self._powers_c.argmax())]


class FullScale(NamedTuple):
    """Full scale of floats: 1, or the integer type's if they hold integers; has a notice."""

    value: float
    notice: str | None


def full_scale(blocks: Iterable[NDArray[np.float32]]) -> FullScale:
    """Measure floats, in blocks of any shape."""
    peak, samples, loud = 0.0, 0, 0
    for block in blocks:
        sizes = np.abs(block)
        peak = max(peak, float(sizes.max(initial=0.0)))
        loud += int(np.count_nonzero(sizes > _LOUD))
        samples += block.size
    scale = next((scale for scale in _FULL_SCALES if peak <= scale), None)
    if scale is None or peak <= _NO_FLOAT or loud < max(_FEW, _SEVERAL * samples):
        return FullScale(1.0, None)
    return FullScale(
        scale,
        f"has floats up to {peak:g}, where 1 is full scale: they are taken as "
        f"{_FULL_SCALES[scale]} integers, and divided by {scale:.0f}",
    )
