"""Voice activity detection: the speech of a recording, and endpointing of live audio.

Turns speech probabilities into parts like Silero's `get_speech_timestamps` (snakers4/silero-vad,
utils_vad.py), in arrays. Parts without 0.2 s of continuous speech are dropped: chords and tones
pass for speech for up to 0.16 s.
"""

import contextlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.audio.decode import SAMPLE_RATE, AudioSource
from kvcast.audio.features import CheckedAudio, RecordedAudio
from kvcast.audio.params import VoiceParams
from kvcast.audio.timeline import Part, Timeline, between, common

Recorded = TypeVar("Recorded", bound=RecordedAudio)

BLOCK = 512  # samples that share a probability: 32 ms

VoiceDetector: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Given the next blocks of a recording [n, BLOCK], returns the probability of speech in each, [n]:

it has a state, so every recording needs a new detector.
"""

HYSTERESIS = 0.15  # speech lasts down to this much below the threshold, as in Silero

ONSET = 3
"""Consecutive blocks of speech that begin an utterance: a click is shorter, any word longer.

Callers keep some audio before them."""


class Change(Enum):
    NONE = "nothing"
    BEGIN = "an utterance begins"
    END = "an utterance is over"


class Endpoints:
    """Follows one audio stream; `pause` is in samples, and an utterance includes its pause."""

    def __init__(self, detector: VoiceDetector, *, threshold: float, pause: float) -> None:
        """Begin in silence; `pause`: seconds without speech that end an utterance."""
        self._detector = detector
        self._threshold = threshold
        self._pause = max(1, round(pause * SAMPLE_RATE / BLOCK))
        self.pause = self._pause * BLOCK
        self._held = np.empty(0, np.float32)
        self._is_speech = False
        self._run = 0  # consecutive blocks that suggest a change

    def follow(self, samples: NDArray[np.float32]) -> Iterator[tuple[NDArray[np.float32], Change]]:
        """Yield the audio [n] in order, cut after every change; less than a block is held back."""
        samples = np.concatenate([self._held, samples])
        whole = len(samples) // BLOCK * BLOCK
        self._held = samples[whole:]
        if not whole:
            return
        begin = 0
        probabilities = self._detector(samples[:whole].reshape(-1, BLOCK)).tolist()
        for end, probability in zip(range(BLOCK, whole + 1, BLOCK), probabilities, strict=True):
            change = self._next(probability)
            if change is not Change.NONE or end == whole:
                yield samples[begin:end], change
                begin = end

    def finish(self) -> NDArray[np.float32]:
        held, self._held = self._held, np.empty(0, np.float32)
        return held

    def _next(self, probability: float) -> Change:
        if self._is_speech:
            self._run = self._run + 1 if probability < self._threshold - HYSTERESIS else 0
            change, needed = Change.END, self._pause
        else:
            self._run = self._run + 1 if probability >= self._threshold else 0
            change, needed = Change.BEGIN, ONSET
        if self._run < needed:
            return Change.NONE
        self._is_speech, self._run = not self._is_speech, 0
        return change


class Loudness:
    """Detects speech by loudness, well above the quietest moment of the last seconds.

    For quiet rooms, as any loud noise passes for speech; until audio shows otherwise, a room is
    assumed to be as quiet as `_QUIET_ROOM`.
    """

    _MARGIN = 12.0  # dB
    _FAINTEST = -55.0  # dBFS; quieter audio is no speech
    _QUIET_ROOM = -67.0  # dBFS
    _MEMORY = round(10 * SAMPLE_RATE / BLOCK)

    def __init__(self) -> None:
        self._levels = deque([self._QUIET_ROOM], self._MEMORY)

    def __call__(self, blocks_nb: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return 1.0 for speech and 0.0 for the rest, [n]."""
        powers = np.mean(np.square(blocks_nb, dtype=np.float64), axis=1)
        return np.array([self._is_loud(level) for level in 10 * np.log10(powers + 1e-12)], "f4")

    def _is_loud(self, level: float) -> bool:
        self._levels.append(level)
        return level >= max(min(self._levels) + self._MARGIN, self._FAINTEST)


_LEAST_PROBABILITY = 0.01  # below this it is never speech, for any threshold
_CUTTABLE = 0.098  # seconds of a pause at which speech that is too long may be cut, as in Silero
_SHORTEST = 0.2
"""Continuous seconds that prove speech: a chord or a click passes for speech for 0.16 at most,

and the shortest word longer. Silero wants 0.25 of every part, faster-whisper nothing.
"""

_LEAST_SLACK = 0.4  # seconds by which segments' times may be off without padding

_AT_ONCE = 1024  # blocks: 2 MB


@dataclass(frozen=True, kw_only=True)
class Speech:
    """The speech in a recording: parts in order and disjoint, which may touch."""

    parts: tuple[Part, ...]
    samples: int
    likeliest: float  # highest probability of speech anywhere in it

    @property
    def skipped(self) -> tuple[Part, ...]:
        return between(self.parts, self.samples)


def find_speech(audio: AudioSource, detector: VoiceDetector, params: VoiceParams) -> Speech:
    """Read a recording once, in memory that grows by 4 bytes for 32 ms; raises InputOutputError."""
    checked = CheckedAudio(audio)
    probabilities = [detector(blocks) for blocks in _in_blocks(checked.blocks())]
    probabilities_n = np.concatenate([np.zeros(0, np.float32), *probabilities])
    return Speech(
        parts=speech_parts(probabilities_n, checked.samples, params),
        samples=checked.samples,
        likeliest=float(probabilities_n.max(initial=0.0)),
    )


def _in_blocks(pieces: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield samples as blocks [n, BLOCK], n at most _AT_ONCE; zeros fill the last block."""
    rest = np.empty(0, np.float32)
    for piece in pieces:
        samples = np.concatenate([rest, piece])
        whole = len(samples) // BLOCK * BLOCK
        rest = samples[whole:]
        blocks_nb = samples[:whole].reshape(-1, BLOCK)
        for start in range(0, len(blocks_nb), _AT_ONCE):
            yield blocks_nb[start : start + _AT_ONCE]
    if len(rest):
        yield np.pad(rest, (0, BLOCK - len(rest))).reshape(1, BLOCK)


def _overlaps(start: int, end: int, stretches: Sequence[tuple[int, int]]) -> bool:
    """Return whether blocks overlap any of `stretches`, which are in order."""
    after = bisect_right(stretches, start, key=itemgetter(1))
    return after < len(stretches) and stretches[after][0] < end


class _Pauses(NamedTuple):
    """Pauses within or after speech: blocks of each, and the last of them that surely is one."""

    start: NDArray[np.int64]
    last: NDArray[np.int64]
    end: NDArray[np.int64]

    def where(self, chosen: NDArray[np.bool_]) -> "_Pauses":
        return _Pauses(*(blocks[chosen] for blocks in self))


def speech_parts(
    probabilities_n: NDArray[np.float32], samples: int, params: VoiceParams
) -> tuple[Part, ...]:
    """Return the parts of a recording that are speech.

    Speech begins with a block at the threshold, and ends before the first block that is clearly
    below it, if from there on no block reaches the threshold for `min_silence`. Parts without any
    run of _SHORTEST are no speech. Parts that exceed `max_speech` are cut at their longest
    pause, or where none is, at `max_speech`. Then every part is padded; parts closer than two
    paddings meet halfway.

    `probabilities_n`: of speech in each block. `samples`: of the recording; the last block may be a
    partial one.
    """
    loud = np.flatnonzero(probabilities_n >= params.vad_threshold)
    if not len(loud):
        return ()
    limit = max(params.vad_threshold - HYSTERESIS, _LEAST_PROBABILITY)
    pauses = _pauses(loud, np.flatnonzero(probabilities_n < limit), len(probabilities_n))
    is_cut = BLOCK * (pauses.last - pauses.start) >= SAMPLE_RATE * params.min_silence
    is_long = BLOCK * (pauses.end - pauses.start) > SAMPLE_RATE * _CUTTABLE
    cuts, audible = pauses.where(is_cut), pauses.where(is_cut | is_long)
    length = len(probabilities_n)
    if len(pauses.end) and pauses.end[-1] == length:  # a pause at the end is no speech
        length = int(pauses.start[-1])
    stretches = _trim_pauses(loud, audible, length)
    sustained = [(a, b) for a, b in stretches if BLOCK * (b - a) >= SAMPLE_RATE * _SHORTEST]
    pieces = [
        piece
        for start, end in _trim_pauses(loud, cuts, len(probabilities_n))
        if _overlaps(start, end, sustained)
        for piece in _cut(start, end, audible, params)
    ]
    parts = [Part(BLOCK * start, min(BLOCK * end, samples)) for start, end in pieces]
    return _pad(parts, round(SAMPLE_RATE * params.speech_pad), samples)


def _trim_pauses(loud: NDArray[np.int64], pauses: _Pauses, blocks: int) -> list[tuple[int, int]]:
    """Return the blocks from the first loud one to the last of all, without pauses."""
    starts = [int(loud[0]), *pauses.end.tolist()]
    ends = [*pauses.start.tolist(), blocks]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start < end]


def _pauses(loud: NDArray[np.int64], quiet: NDArray[np.int64], blocks: int) -> _Pauses:
    """Return the pauses after loud blocks: each from a first quiet block to the next loud one."""
    first = np.searchsorted(quiet, loud)
    until = np.append(first[1:], len(quiet))
    is_pause = first < until
    return _Pauses(
        start=quiet[first[is_pause]],
        last=quiet[until[is_pause] - 1],
        end=np.append(loud[1:], blocks)[is_pause],
    )


def _cut(start: int, end: int, pauses: _Pauses, params: VoiceParams) -> Iterator[tuple[int, int]]:
    """Cut blocks of speech so that each piece, once padded, is no longer than `max_speech`."""
    if params.max_speech is not None:
        spoken = params.max_speech - 2 * params.speech_pad
        most = max(int(SAMPLE_RATE * spoken) // BLOCK, 1)
        pauses = pauses.where(pauses.end < end)
        while end - start > most:
            near = pauses.where((pauses.start > start) & (pauses.start <= start + most))
            if len(near.start):
                longest = int(np.argmax(near.end - near.start))
                stop, resume = int(near.start[longest]), int(near.end[longest])
            else:
                stop = resume = start + most
            yield start, stop
            start = resume
    yield start, end


def _pad(parts: Sequence[Part], pad: int, samples: int) -> tuple[Part, ...]:
    """Widen parts by `pad` samples on each side; parts that would overlap meet halfway."""
    if not parts:
        return ()
    starts, ends = np.array(parts).T
    given = np.minimum((starts[1:] - ends[:-1]) // 2, pad)
    starts[1:] -= given
    ends[:-1] += given
    starts[0] = max(starts[0] - pad, 0)
    ends[-1] = min(ends[-1] + pad, samples)
    return tuple(map(Part, starts.tolist(), ends.tolist()))


class SpeechOnly(AudioSource):
    def __init__(self, audio: AudioSource, parts: Sequence[Part]) -> None:
        self.name = audio.name
        self.notices = audio.notices  # complete: finding the parts has read all of it
        self._audio = audio
        self._parts = tuple(parts)

    @override
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """Yield the parts' samples; the recording is read no further than the last part."""
        parts = iter(self._parts)
        part = next(parts, None)
        first = 0
        with contextlib.closing(_closable(self._audio.blocks())) as pieces:
            while part is not None and (piece := next(pieces, None)) is not None:
                end = first + len(piece)
                while part is not None and part.start < end:
                    yield piece[max(part.start - first, 0) : part.end - first]
                    if part.end > end:
                        break
                    part = next(parts, None)
                first = end

    @override
    def close(self) -> None:
        self._audio.close()


def _closable(pieces: Iterator[NDArray[np.float32]]) -> Generator[NDArray[np.float32]]:
    yield from pieces


def detect_speech(
    audio: AudioSource,
    make: Callable[[AudioSource], Recorded],
    detector: VoiceDetector,
    params: VoiceParams,
    *,
    clips: Sequence[Part],
) -> Recorded:
    """Return the speech in `clips` of a recording, which is read once more than by `make`.

    Without speech its `content_frames` is 0, and a notice gives the highest probability. `audio` is
    closed when the result is. `make` reads the joined parts. `detector`: a new one. `clips`: in
    order and disjoint. Raises InputOutputError for audio that cannot be decoded.
    """
    speech = find_speech(audio, detector, params)
    parts = common(speech.parts, clips)
    recorded = make(SpeechOnly(audio, parts))
    recorded.duration = speech.samples / SAMPLE_RATE
    recorded.timeline = Timeline(parts, slack=max(params.speech_pad, _LEAST_SLACK))
    recorded.skipped = common(speech.skipped, clips)
    recorded.notices = audio.notices if parts else (*audio.notices, _no_speech(audio.name, speech))
    return recorded


def _no_speech(name: str, speech: Speech) -> str:
    if speech.parts:
        return f"{name} holds no speech in what is to be transcribed"
    return (
        f"{name} holds no speech: voice activity is at most {speech.likeliest:.2f}, "
        "see vad_threshold"
    )
