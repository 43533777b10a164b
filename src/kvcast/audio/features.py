"""The windows that OpenAI's `transcribe` gives to the encoder, from a recording of any length.

OpenAI pads the recording with 30 s of zeros, computes the spectrogram of all of it, and floors that
at 8 below its maximum. This module computes the same values in bounded memory: one pass finds the
maximum, a second one yields the windows.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.decode import SAMPLE_RATE, AudioInput, AudioSource, open_audio
from kvcast.audio.mel import FRAMES_PER_SECOND, HOP, N_FFT, SILENCE, log_mel_frames, normalise
from kvcast.audio.timeline import Part, Timeline
from kvcast.errors import InputOutputError

WINDOW_FRAMES = 30 * FRAMES_PER_SECOND  # frames in one input of the encoder
KEPT_FRAMES = 600 * FRAMES_PER_SECOND  # 19 MB of 80 bands: one pass is enough
BEHIND_FRAMES = 120 * FRAMES_PER_SECOND  # kept, as languages are detected ahead of the text

SILENT_RANGE = 4 / 2**15
"""From the lowest to the highest sample of a silent frame: dither moves by two steps of 16 bits to
either side, -84 dBFS. A constant offset is silence as well."""

LOUDEST_SAMPLE = 1e6  # a larger one is not audio; its power nears float32's limit


def open_features(source: AudioInput, n_mels: int) -> "MelWindows":
    """Open a recording and read it once; `source` as in `kvcast.audio.decode.open_audio`.

    `n_mels`: 80 or 128. Raises InputMissingError for a missing file, UsageError for an array that
    is not mono, and InputOutputError for audio that cannot be decoded or is shorter than a frame.
    """
    with ExitStack() as on_failure:
        audio = open_audio(source)
        on_failure.callback(audio.close)
        windows = MelWindows(audio, n_mels)
        refuse_short(windows.duration, audio.name)
        on_failure.pop_all()
    return windows


def refuse_short(duration: float, name: str) -> None:
    if round(duration * SAMPLE_RATE) < HOP:
        raise InputOutputError(
            f"{name} is too short to hold speech: it lasts {1000 * duration:.2g} ms"
        )


class RecordedAudio:
    """A recording that was read once: its length, where it is silent, and notices for users.

    `timeline` maps seconds of the audio to seconds of the recording. `skipped`: parts left out as
    no speech; None without voice activity detection. `no_speech_notices`: if no speech is
    recognized.
    """

    skipped: tuple[Part, ...] | None = None

    def __init__(self, audio: AudioSource, checked: "CheckedAudio") -> None:
        self._audio = audio
        self.content_frames = checked.samples // HOP
        self.duration = checked.samples / SAMPLE_RATE
        self.timeline = Timeline(())
        self._is_loud = checked.is_loud()
        self.silent = not self._is_loud.any()
        silence = (f"{audio.name} is silent: there is no speech to transcribe",)
        self.notices = audio.notices + (silence if self.silent else ())
        self.no_speech_notices = () if self.silent else audio.no_speech_notices

    def is_silent(self, seek: int, end: int) -> bool:
        """Return whether no frame from `seek` to `end` exceeds SILENT_RANGE."""
        return not self._is_loud[seek:end].any()

    def close(self) -> None:
        self._audio.close()


class MelWindows(RecordedAudio):
    """A recording as log-mel frames of 10 ms, in windows of 30 s.

    Going back by more than two minutes decodes a long recording again.
    """

    def __init__(self, audio: AudioSource, n_mels: int) -> None:
        self._n_mels = n_mels
        checked = CheckedAudio(audio)
        self._loudest, kept = _loudest_and_frames(log_mel_stream(checked.blocks(), n_mels))
        super().__init__(audio, checked)
        self._replay: Callable[[], Iterator[NDArray[np.float32]]] = (
            (lambda: log_mel_stream(audio.blocks(), n_mels))
            if kept is None
            else lambda: iter([kept])
        )
        self._rewind()

    def window(self, seek: int, end: int | None = None) -> NDArray[np.float32]:
        """Return the encoder's input from frame `seek` on, a new array, float32 [n_mels, 3000].

        As in OpenAI's transcribe, values past the recording's end, or past frame `end`, are 0.0,
        which is not the value of silence.
        """
        stop = min(seek + WINDOW_FRAMES, self.content_frames)
        stop = stop if end is None else min(stop, end)
        window_mt = np.zeros((self._n_mels, WINDOW_FRAMES), np.float32)
        if stop > seek:
            window_mt[:, : stop - seek] = self._normalised_frames(seek, stop).T
        return window_mt

    def first_window(self) -> NDArray[np.float32]:
        """Return the first 30 s, float32 [n_mels, 3000], padded with silence."""
        return np.ascontiguousarray(self._normalised_frames(0, WINDOW_FRAMES).T)

    def close(self) -> None:
        self._replay = lambda: iter(())
        self._rewind()
        self._audio.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _rewind(self) -> None:
        self._frames = self._replay()
        self._held = np.empty((0, self._n_mels), np.float32)  # frames from self._first on
        self._first = 0

    def _normalised_frames(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return frames start to stop, float32 [stop - start, n_mels]; silence follows the last."""
        if start < self._first:
            self._rewind()
        self._advance(max(start - BEHIND_FRAMES, self._first), stop)
        frames = self._held[start - self._first : stop - self._first]
        silence = np.full((stop - start - len(frames), self._n_mels), SILENCE)
        return normalise(np.concatenate([frames, silence]), self._loudest)

    def _advance(self, start: int, stop: int) -> None:
        """Keep exactly the frames from `start` to `stop` or later, as far as there are any."""
        pieces = [self._held[start - self._first :]]
        reached = self._first + len(self._held)
        while reached < stop and (piece := next(self._frames, None)) is not None:
            if reached + len(piece) > start:  # an empty view would keep the whole piece alive
                pieces.append(piece[max(0, start - reached) :])
            reached += len(piece)
        self._held = np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
        self._first = start


class CheckedAudio:
    samples: int  # how many have passed

    def __init__(self, audio: AudioSource) -> None:
        self.samples = 0
        self._audio = audio
        self._rest = np.empty(0, np.float32)
        self._is_loud: list[NDArray[np.bool_]] = []

    def is_loud(self) -> NDArray[np.bool_]:
        """Return, for each frame so far and a last partial one, whether it exceeds SILENT_RANGE."""
        rest = [np.ptp(self._rest) > SILENT_RANGE] if len(self._rest) else []
        return np.concatenate([*self._is_loud, np.array(rest, np.bool_)])

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the samples; raises InputOutputError for NaN, infinite or absurdly large ones."""
        for block in self._audio.blocks():
            if not len(block):
                continue
            peak = float(np.abs(block).max())
            if not peak <= LOUDEST_SAMPLE:  # true of NaN as well
                raise InputOutputError(
                    f"{self._audio.name} is not audio: it has samples of {peak:g} "
                    f"near {self.samples / SAMPLE_RATE:.1f} s, where 1 is full scale"
                )
            self._measure(block)
            self.samples += len(block)
            yield block

    def _measure(self, block: NDArray[np.float32]) -> None:
        samples = np.concatenate([self._rest, block])
        whole = len(samples) // HOP * HOP
        self._is_loud.append(np.ptp(samples[:whole].reshape(-1, HOP), axis=1) > SILENT_RANGE)
        self._rest = samples[whole:]


def log_mel_stream(
    blocks: Iterable[NDArray[np.float32]], n_mels: int
) -> Iterator[NDArray[np.float32]]:
    """Yield log-mel frames, centred by reflection at the start and padded with zeros at the end.

    `blocks`: mono float32 [samples] at 16 kHz, of any lengths. Yields float32 [frames, n_mels],
    neither floored nor scaled, up to the last frame that contains a sample, or one more; later ones
    are SILENCE.
    """
    centre = N_FFT // 2
    samples = np.empty(0, np.float32)
    centred = False
    for block in itertools.chain(blocks, [np.zeros(N_FFT, np.float32)]):
        samples = np.concatenate([samples, block])
        if not centred and len(samples) > centre:
            samples = np.concatenate([samples[centre:0:-1], samples])
            centred = True
        if centred and len(samples) >= N_FFT:
            frames = log_mel_frames(samples, n_mels)
            samples = samples[len(frames) * HOP :]
            yield frames


def window_features(samples: NDArray[np.float32], n_mels: int) -> NDArray[np.float32]:
    """Return the encoder's input for up to 30 s of audio that may continue, float32 [n_mels, 3000].

    As at the end of a recording, values past the audio are 0.0. Values are floored at 8 below the
    maximum of this audio, as the loudness of the rest is unknown. `samples`: float32 [n] at 16 kHz.
    """
    window_mt = np.zeros((n_mels, WINDOW_FRAMES), np.float32)
    frames = min(len(samples) // HOP, WINDOW_FRAMES)
    if frames:
        log_mel_tm = np.concatenate(list(log_mel_stream([samples], n_mels)))[:frames]
        window_mt[:, :frames] = normalise(log_mel_tm, log_mel_tm.max()).T
    return window_mt


def _loudest_and_frames(
    frames: Iterable[NDArray[np.float32]],
) -> tuple[np.float32, NDArray[np.float32] | None]:
    """Return the largest value and, for a short recording, all frames [frames, n_mels]."""
    loudest = SILENCE
    kept: list[NDArray[np.float32]] = []
    length = 0
    for piece in frames:
        loudest = np.maximum(loudest, piece.max())
        length += len(piece)
        if length <= KEPT_FRAMES:
            kept.append(piece)
        else:
            kept.clear()
    return loudest, None if length > KEPT_FRAMES else np.concatenate(kept)


_KEPT = 600 * SAMPLE_RATE  # samples, 38 MB, of a recording that is read in one pass


class SampledAudio(RecordedAudio):
    """A recording as mono samples at 16 kHz; going back decodes a long one again."""

    def __init__(self, audio: AudioSource) -> None:
        checked = CheckedAudio(audio)
        kept: list[NDArray[np.float32]] | None = []
        for block in checked.blocks():
            if kept is not None:
                kept.append(block)
            if checked.samples > _KEPT:
                kept = None
        super().__init__(audio, checked)
        self._samples = checked.samples
        self._kept = kept
        self._held, self._first = np.zeros(0, np.float32), 0
        self._blocks: Iterator[NDArray[np.float32]] = iter(())
        self._rewind()

    def samples(self, first: int, end: int) -> NDArray[np.float32]:
        """Return frames `first` to `end`, float32 [n]; the last whole frame includes the rest."""
        start = first * HOP
        stop = self._samples if end >= self.content_frames else end * HOP
        if start < self._first:
            self._rewind()
        pieces, reached = [self._held[start - self._first :]], self._first + len(self._held)
        while reached < stop and (block := next(self._blocks, None)) is not None:
            if reached + len(block) > start:
                pieces.append(block[max(0, start - reached) :])
            reached += len(block)
        self._held, self._first = np.concatenate(pieces), start
        return self._held[: stop - start].copy()

    def close(self) -> None:
        self._kept = []
        self._rewind()
        self._audio.close()

    def _rewind(self) -> None:
        self._held, self._first = np.zeros(0, np.float32), 0
        self._blocks = self._audio.blocks() if self._kept is None else iter(self._kept)
