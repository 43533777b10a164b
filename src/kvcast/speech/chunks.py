"""Recordings of models without windows: excerpts cut where it is quiet, a request for each.

Knows no option's effect on a model, no file format and no runtime.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import LogitsProcessor, NoRepeatNgram, RepetitionPenalty
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.engine.callers import Policy
from kvcast.engine.requests import Input, Prompt
from kvcast.runtimes.base import Float32, Int64
from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.speech.params import TranscribeParams
from kvcast.speech.recognition import Heard, Hints, Recognition, Written
from kvcast.speech.recordings import Samples, frames_of_excerpt
from kvcast.speech.strategies import MaximumLikelihood, SearchRequest, Strategy
from kvcast.speech.transcription import Passage, Plan, clipped_frames
from kvcast.transcripts.segments import FRAMES_PER_SECOND, Segment, Word, compression_ratio

UNKNOWN = "und"
"""The code of a language that is not known (ISO 639)."""

_LEAST_POWER = 1e-10
_HOP = 160  # samples of a frame
_ENDS = (".", "?", "!", "…")
_PAUSE = 1.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How excerpts are decoded.

    Attributes:
        recognition: the model's.
        hints: about the speech.
        strategy: makes a search; takes a number that separates excerpts' random numbers.
        temperature: as segments tell it.
        room: most tokens of a text.
        positions: of the longest sequence, prompt and text.
        params: other options.

    """

    recognition: Recognition
    hints: Hints
    strategy: Callable[[int], Strategy]
    temperature: float
    room: int
    positions: int
    params: TranscribeParams


@dataclass(frozen=True)
class EndsAsOne(LogitsProcessor):
    """Lets the first of several tokens end a text whenever another would."""

    ends: Sequence[int]

    @override
    def apply(self, logits_rv: Float32, written_rn: Int64) -> None:
        first, *others = self.ends
        logits_rv[:, first] = logits_rv[:, list(self.ends)].max(axis=1)
        logits_rv[:, others] = -np.inf


class Excerpt(Passage):
    """An excerpt, which is one request."""

    def __init__(
        self,
        manner: Manner,
        place: tuple[int, int],
        samples: Float32 | None,
        ended: Callable[[str | None], None],
    ) -> None:
        """Prepare.

        Args:
            manner: how it is decoded.
            place: its first frame, and the one after its last.
            samples: its sound; None where it is silent.
            ended: is called with the language of its text, once it is decoded.

        """
        self._manner, self._place, self._samples, self._ended = manner, place, samples, ended
        self.drafts: list[DraftCounts] = []
        self.notices: list[tuple[float, str]] = []
        self.segments: deque[Segment] = deque()
        self.over = False

    @override
    def decode(self) -> Policy[None]:
        language = None
        if self._samples is not None:
            heard = yield from self._heard(self._samples)
            self._samples, language = None, heard.language
        self.over = True
        self._ended(language)

    def _heard(self, samples: Float32) -> Policy[Heard]:
        manner = self._manner
        sound = manner.recognition.input(samples)
        request = manner.recognition.request(sound)
        if request is None:
            written = yield from self._searched(sound)
        else:
            yield request
            written = manner.recognition.written(request, manner.hints)
        if written.heard.text:
            self.segments += self._segments(written)
        return written.heard

    def _searched(self, sound: Input) -> Policy[Written]:
        manner, (first, end) = self._manner, self._place
        recognition, params = manner.recognition, manner.params
        prompt = recognition.prompt(sound.positions, manner.hints)
        seconds = (end - first) / FRAMES_PER_SECOND
        most = recognition.tokens_of(seconds, manner.hints)
        if params.max_new_tokens is not None:
            given = params.max_new_tokens
            most = min(given, most) if recognition.paced else given
        room = min(most, manner.room, manner.positions + 1 - len(prompt))
        request = SearchRequest(
            Prompt(np.array(prompt, np.int64), input=sound),
            strategy=manner.strategy(first),
            filters=list(_filters(params, recognition.ends)),
            eot=recognition.ends[0],
            max_new_tokens=room,
        )
        yield request
        best = MaximumLikelihood(params.length_penalty).best(request.search.candidates())
        is_cut = len(best.tokens) == room and not recognition.paced
        if is_cut and params.max_new_tokens is None:
            notice = f"the text has more than {room} tokens: cut"
            self.notices.append((first / FRAMES_PER_SECOND, notice))
        heard = recognition.read(best.tokens, manner.hints)
        return Written(tokens=best.tokens, logprob=best.sum_logprob, heard=heard)

    def _segments(self, written: Written) -> Iterator[Segment]:
        """Yield a segment of the whole excerpt or, if words have times, one of each sentence."""
        manner, (first, end) = self._manner, self._place
        heard, start = written.heard, first / FRAMES_PER_SECOND
        whole = Segment(
            id=0,
            seek=first,
            start=start,
            end=end / FRAMES_PER_SECOND,
            text=heard.text if heard.language in WITHOUT_SPACES else f" {heard.text}",
            tokens=written.tokens,
            language=heard.language or UNKNOWN,
            temperature=manner.temperature,
            avg_logprob=written.logprob / (len(written.tokens) + 1),
            compression_ratio=compression_ratio(heard.text),
            no_speech_prob=0.0,
            fallback=(),
        )
        if not heard.words:
            yield whole
            return
        words, taken = _placed(heard.words, start, whole.end), 0
        for begin, stop in _sentences(words):
            count = sum(heard.counts[begin:stop])
            yield replace(
                whole,
                start=words[begin].start,
                end=words[stop - 1].end,
                text="".join(word.word for word in words[begin:stop]),
                tokens=written.tokens[taken : taken + count],
                words=words[begin:stop] if manner.params.word_timestamps else None,
            )
            taken += count


def _sentences(words: Sequence[Word]) -> Iterator[tuple[int, int]]:
    """Yield the first word of each sentence, and the one after its last; a pause ends one too."""
    begin = 0
    for i, (word, following) in enumerate(pairwise(words), 1):
        if word.word.endswith(_ENDS) or following.start - word.end > _PAUSE:
            yield begin, i
            begin = i
    yield begin, len(words)


def _placed(words: Sequence[Word], start: float, end: float) -> tuple[Word, ...]:
    """Return words of an excerpt that lasts from `start` to `end`; its last position is longer."""
    return tuple(
        replace(word, start=min(start + word.start, end), end=min(start + word.end, end))
        for word in words
    )


def _filters(params: TranscribeParams, ends: Sequence[int]) -> Iterator[LogitsProcessor]:
    if params.repetition_penalty != 1:
        yield RepetitionPenalty(params.repetition_penalty)
    if params.no_repeat_ngram:
        yield NoRepeatNgram(params.no_repeat_ngram)
    if len(ends) > 1:
        yield EndsAsOne(ends)


class ExcerptPlan(Plan[Samples]):
    """Cuts a recording into excerpts, where it is quiet."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner
        self._running = 0
        self._all_cut = False
        self.language = manner.hints.language

    @override
    def passages(self, recording: Samples, begin: Callable[[Passage], None]) -> Policy[None]:
        joints = [round(at * FRAMES_PER_SECOND) for at in recording.timeline.joints]
        for seek, end in clipped_frames(self._manner.params, recording.content_frames):
            while seek < end:
                stop = seek + _frames(recording, (seek, end), joints, self._manner.recognition)
                silent = recording.is_silent(seek, stop)
                samples = None if silent else recording.samples(seek, stop)
                self._running += 1
                begin(Excerpt(self._manner, (seek, stop), samples, self._ended))
                seek = stop
                yield None
        self._all_cut = True
        self._settle(None)

    def _ended(self, language: str | None) -> None:
        self._running -= 1
        self._settle(language)

    def _settle(self, language: str | None) -> None:
        if self.language is None and self._all_cut and not self._running:
            language = language or UNKNOWN
        self.language = self.language or language


def _frames(
    recording: Samples, clip: tuple[int, int], joints: Sequence[int], recognition: Recognition
) -> int:
    """Return how many frames the first excerpt of a clip has."""
    seek, end = clip
    longest = recognition.longest
    if end - seek <= longest:
        return end - seek

    def loudness() -> Float32:
        samples = recording.samples(seek, seek + longest)
        frames = samples[: len(samples) // _HOP * _HOP].reshape(-1, _HOP)
        loudness_t: Float32 = np.log10(np.square(frames).mean(axis=1) + np.float32(_LEAST_POWER))
        return loudness_t[None]

    near = [joint - seek for joint in joints]
    return frames_of_excerpt(end - seek, near, loudness, longest)
