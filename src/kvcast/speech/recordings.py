"""Opened recordings, whole or only their speech (Silero), and cutting them where it is quiet.

The detector is opened once per process. Its calls cannot be batched, because its state passes from
block to block; splitting the audio into parallel strips changed one block in 300.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE, AudioInput, open_audio
from kvcast.audio.features import MelWindows, RecordedAudio, SampledAudio, refuse_short
from kvcast.audio.source import AudioSource, ChannelSource
from kvcast.audio.timeline import Part
from kvcast.audio.vad import Loudness, VoiceDetector, detect_speech
from kvcast.checkpoints import packaged
from kvcast.errors import InputMissingError
from kvcast.runtimes.base import Float32
from kvcast.speech.params import AudioParams, TranscribeParams
from kvcast.transcripts.segments import FRAMES_PER_SECOND

if TYPE_CHECKING:
    pass


class WindowSource(Protocol):
    """The audio of a recording, or a part of it."""

    def window(self, seek: int, end: int | None = None) -> Float32:
        """Return the encoder's input [n_mels, 3000] from frame `seek`, zeros from `end` on."""

    def is_silent(self, seek: int, end: int) -> bool:
        """Return whether frames `seek` to `end` are digital silence."""


_LONGEST = 28 * FRAMES_PER_SECOND
"""Frames of 10 ms. Whisper assumes that a full window ends within a sentence, and stops
before that; two seconds of zeros mark the end of the speech."""

_SHORTEST = 18 / 28  # part of the longest chunk: each costs Whisper's encoder a window
_PAUSE_FRAMES = 25  # averaged: more than a stop consonant, less than a word
_NEARLY = 0.1  # a place is as good as the quietest one within this part of the range of loudness


@dataclass(frozen=True, eq=False)
class ChunkWindow(WindowSource):
    audio: WindowSource
    first: int
    end: int
    window_mt: NDArray[np.float32]

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        shifted_mt = np.zeros_like(self.window_mt)
        stop = self.end if end is None else min(end, self.end)
        shifted_mt[:, : stop - seek] = self.window_mt[:, seek - self.first : stop - self.first]
        return shifted_mt

    def is_silent(self, seek: int, end: int) -> bool:
        return self.audio.is_silent(seek, end)


def cut_first_chunk(
    audio: WindowSource, clip: tuple[int, int], joints: Sequence[int] = ()
) -> ChunkWindow:
    """Cut the first chunk off frames `clip[0]` to `clip[1]`, preferably at a frame of `joints`."""
    seek, end = clip
    window_mt = audio.window(seek, end)
    near = [frame - seek for frame in joints]
    frames = chunk_frames(end - seek, near, lambda: window_mt)
    if frames < end - seek:
        window_mt[:, frames:] = 0
    return ChunkWindow(audio, seek, seek + frames, window_mt)


def chunk_frames(
    frames: int,
    joints: Sequence[int],
    loudness: Callable[[], NDArray[np.float32]],
    longest: int = _LONGEST,
) -> int:
    """Return the frames of the first chunk; best cut at `joints`, where audio was left out.

    `loudness` returns the loudness of the first `longest` frames or more, [bands, t].
    """
    if frames <= longest:
        return frames
    # The rest must not be too short to be recognized.
    shortest = round(longest * _SHORTEST)
    earliest = min(shortest, max(frames - longest, longest // 2))
    latest = min(longest, frames - shortest // 2)
    near = [frame for frame in joints if earliest <= frame <= latest]
    return near[-1] if near else quiet_frame(loudness(), earliest, latest)


def quiet_frame(window_mt: NDArray[np.float32], earliest: int, latest: int) -> int:
    """Return where to cut a window [n_mels, 3000]: late, in a place as quiet as there is."""
    loudness_t = window_mt[:, earliest:latest].mean(axis=0)
    smooth_t = np.convolve(loudness_t, np.full(_PAUSE_FRAMES, 1 / _PAUSE_FRAMES), "valid")
    limit = smooth_t.min() + _NEARLY * np.ptp(smooth_t)
    [quiet] = np.nonzero(smooth_t <= limit)
    return earliest + int(quiet[-1]) + _PAUSE_FRAMES // 2


Recorded = TypeVar("Recorded", bound=RecordedAudio)


def open_recording(source: AudioInput, params: AudioParams) -> ChannelSource:
    return open_audio(source, track=params.audio_track, sampling_rate=params.sampling_rate)


def open_windows(source: AudioInput, n_mels: int, params: TranscribeParams) -> MelWindows:
    """Open a recording and read it; with `vad`, only the speech in its clips is in the windows.

    Raises:
        InputMissingError: the file does not exist, or the detector is not installed.
        InputOutputError: it cannot be decoded, is shorter than a frame, or is not audio.
        UsageError: an array that is not one channel of samples.

    """
    return _opened(source, params, partial(MelWindows, n_mels=n_mels))


def open_samples(source: AudioInput, params: TranscribeParams) -> SampledAudio:
    return _opened(source, params, SampledAudio)


def _opened(
    source: AudioInput, params: TranscribeParams, make: Callable[[AudioSource], Recorded]
) -> Recorded:
    detector = voice_detector() if params.vad else None
    with ExitStack() as on_failure:
        audio = open_recording(source, params)
        on_failure.callback(audio.close)
        if detector is None:
            recorded = make(audio)
        else:
            recorded = detect_speech(audio, make, detector, params, clips=_clips(params))
        refuse_short(recorded.duration, audio.name)
        on_failure.pop_all()
    return recorded


def _clips(params: TranscribeParams) -> list[Part]:
    return [
        Part(round(start * SAMPLE_RATE), sys.maxsize if end is None else round(end * SAMPLE_RATE))
        for start, end in params.clips
    ]


def voice_detector() -> VoiceDetector:
    """Return a detector for one recording, or one audio stream, from its start.

    Raises InputMissingError if Silero or ONNX Runtime is missing, KvcastError for a damaged or
    different version.
    """
    detector: VoiceDetector = _graph(packaged.silero_vad()).listener()
    return detector


def live_voice_detector() -> tuple[VoiceDetector, tuple[str, ...]]:
    """Return the best voice detector available here, and notices for the user."""
    with suppress(InputMissingError):
        return voice_detector(), ()
    quiet = "utterances end where it is quiet; kvcast[vad] distinguishes speech from noise"
    return Loudness(), (quiet,)


@cache
def _graph(path: Path) -> Any:
    try:
        from kvcast.runtimes.onnx.voice import VoiceGraph
    except ModuleNotFoundError:
        raise InputMissingError(
            "package onnxruntime is not installed: pip install 'kvcast[vad]'"
        ) from None
    return VoiceGraph(path)
