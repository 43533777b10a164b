"""Forced alignment: finds when each word of a given text is spoken in a recording.

The recording is transcribed, and the text's words are matched with the recognized ones. Parts of
the text are then forced into the audio where they belong, and attention gives the times of their
words, as in a transcription with word timestamps. Phrases that do not fit are left out.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from statistics import fmean

from kvcast.audio.features import MelWindows
from kvcast.engine.callers import Policy
from kvcast.errors import UsageError
from kvcast.options import shown
from kvcast.speech.params import TranscribeParams
from kvcast.transcripts.segments import Segment, Transcript, Word, compression_ratio
from kvcast.whisper.decoding import DecodingOptions
from kvcast.whisper.long_form import LongForm
from kvcast.whisper.requests import Features
from kvcast.whisper.text_placement import (
    GivenWord,
    MatchedText,
    TextChunk,
    given_words,
    recognized_words,
)
from kvcast.whisper.windows import WindowRequests
from kvcast.whisper.word_timestamps import (
    ENCODER_FRAMES_PER_SECOND,
    Punctuation,
    Span,
    TokenTimes,
    with_words,
)

# Mean probability of a phrase's words from which on it counts as spoken. Of synthetic and read
# speech, tiny.en and base gave spoken phrases 0.37 to 1, others 0.00 to 0.20, and others of which
# most words are spoken 0.20 to 0.38.
_FITS = 0.3
_DOUBTFUL = 0.5  # share of the text found that must be recognized verbatim


@dataclass(frozen=True, kw_only=True)
class Alignment(Transcript):
    """A text with its times: each of its lines is a segment with words and a score."""


def aligned(
    requests: WindowRequests,
    recording: MelWindows,
    text: str,
    *,
    language: str,
    attempts: Sequence[DecodingOptions],
    params: TranscribeParams,
) -> Policy[Alignment]:
    """Find when a text's words are spoken; `attempts`: for the first decoding and each rejection.

    Raises UsageError for an empty text, a recording without recognized speech, and a text that is
    not in the recording.
    """
    if not isinstance(text, str):
        raise UsageError(f"the text to align must be a string, not {shown(text)}")
    lines = {n: line.strip() for n, line in enumerate(text.splitlines(), 1) if line.strip()}
    if not lines:
        raise UsageError("there is no text to align")
    given = list(given_words(lines.values(), requests.tokenizer, language))
    clip = [(0, recording.content_frames)]
    form = LongForm(recording, clip, requests=requests, attempts=attempts, params=params)
    yield from form.decode()
    found = _matched(given, form.segments, recording)
    forcing = _Forcing(requests, recording, language, params)
    found, forced = yield from forcing.fitted(found)
    if not forced:
        raise UsageError(
            "the text was not found in the recording: is it the text of another one, or in "
            "another language than --language?"
        )
    segments = tuple(_segments([*lines.values()], given, forced, language))
    return Alignment(
        segments=segments,
        language=language,
        duration=recording.duration,
        notices=(*recording.notices, *_notices([*lines], segments, given, found)),
    )


def _matched(
    given: Sequence[GivenWord], segments: Sequence[Segment], recording: MelWindows
) -> MatchedText:
    recognized = list(recognized_words(segments, recording.content_frames))
    if not recognized:
        raise UsageError("no speech was recognised in the recording")
    text = MatchedText.of(given, recognized)
    return text.without(text.without_room(recording.duration))


@dataclass(frozen=True)
class _Forced:
    """A chunk's words with the times that they have in its audio, by their lines.

    `probabilities`: of its given words, in order.
    """

    chunk: TextChunk
    words: Mapping[int, tuple[Word, ...]]
    probabilities: tuple[float, ...]


class _Forcing:
    def __init__(
        self,
        requests: WindowRequests,
        recording: MelWindows,
        language: str,
        params: TranscribeParams,
    ) -> None:
        self._requests, self._recording = requests, recording
        self._language, self._task = language, params.task
        self._punctuation = Punctuation(params.prepend_punctuations, params.append_punctuations)
        self._forced = dict[TextChunk, _Forced]()

    def fitted(self, text: MatchedText) -> Policy[tuple[MatchedText, list[_Forced]]]:
        """Force a text into its audio, again without the phrases that do not fit, until all fit."""
        while True:
            chunks = list(text.chunks())
            for chunk in chunks:
                if chunk not in self._forced:
                    self._forced[chunk] = yield from self._force(chunk)
            forced = [self._forced[chunk] for chunk in chunks]
            fits = _by(attrgetter("phrase"), forced)
            unfit = {phrase for phrase, each in fits.items() if fmean(each) < _FITS}
            if not unfit:
                return text, forced
            text = text.without(unfit)

    def _force(self, chunk: TextChunk) -> Policy[_Forced]:
        audio = chunk.audio
        by_line = {
            line: tuple(token for word in words for token in word.tokens)
            for line, words in groupby(chunk.words, attrgetter("line"))
        }
        times = yield from self._requests.align(
            Features(self._recording.window(audio.seek, audio.seek + audio.frames)),
            [token for tokens in by_line.values() for token in tokens],
            language=self._language,
            task=self._task,
            frames=round(audio.duration * ENCODER_FRAMES_PER_SECOND),
        )
        fitted = with_words(
            [Span(audio.start, audio.end, tokens) for tokens in by_line.values()],
            times,
            audio,
            tokenizer=self._requests.tokenizer,
            language=self._language,
            punctuation=self._punctuation,
            last_speech=audio.start,
        )
        words = {line: span.words or () for line, span in zip(by_line, fitted, strict=True)}
        return _Forced(chunk, words, tuple(_probabilities(chunk.words, times)))


def _probabilities(words: Sequence[GivenWord], times: TokenTimes) -> Iterator[float]:
    first = 0
    for word in words:
        begin, end = word.spelled
        yield float(times.probabilities_n[first + begin : first + end].mean())
        first += len(word.tokens)


def _by(
    part: Callable[[GivenWord], int], forced: Iterable[_Forced]
) -> Mapping[int, Sequence[float]]:
    """Return the probabilities of each phrase's or line's words."""
    parts = defaultdict[int, list[float]](list)
    for each in forced:
        for word, probability in zip(each.chunk.words, each.probabilities, strict=True):
            parts[part(word)].append(probability)
    return parts


def _segments(
    lines: Sequence[str], given: Sequence[GivenWord], forced: Sequence[_Forced], language: str
) -> Iterator[Segment]:
    counts = Counter(word.line for word in given)
    probabilities = _by(attrgetter("line"), forced)
    seek = 0
    for number, text in enumerate(lines):
        spoken = [(each, words) for each in forced if (words := each.words.get(number))]
        words = tuple(word for _, found in spoken for word in found)
        seek = spoken[0][0].chunk.audio.seek if spoken else seek
        start, end = (words[0].start, words[-1].end) if words else (math.nan, math.nan)
        yield Segment(
            id=number,
            seek=seek,
            start=start,
            end=end,
            text=f" {text}",
            tokens=(),
            language=language,
            temperature=0.0,
            avg_logprob=_mean_log([word.probability for word in words]),
            compression_ratio=compression_ratio(text),
            no_speech_prob=0.0,
            fallback=(),
            words=words,
            score=sum(probabilities.get(number, ())) / counts[number],
        )


def _mean_log(probabilities: Sequence[float]) -> float:
    logs = [math.log(max(probability, 1e-9)) for probability in probabilities]
    return sum(logs) / len(logs) if logs else math.nan


def _notices(
    lines: Sequence[int],
    segments: Sequence[Segment],
    given: Sequence[GivenWord],
    found: MatchedText,
) -> Iterator[str]:
    """Yield what is missing; `lines`: the segments' line numbers in the text's file."""
    missing = {segment.id for segment in segments if not segment.words}
    phrases = {word.phrase for word in found.words}
    partly = {word.line for word in given if word.phrase not in phrases} - missing
    if missing:
        yield f"not found in the recording: {_numbered(lines[at] for at in sorted(missing))}"
    if partly:
        yield f"found only in part: {_numbered(lines[at] for at in sorted(partly))}"
    words, known = len(found.words), len(found.pairs)
    if known < _DOUBTFUL * words:
        yield (
            f"of {words} words, {known} were recognised as given: does the text belong to the "
            "recording?"
        )


def _numbered(lines: Iterable[int]) -> str:
    """Return line numbers as text: `lines 1 to 3, 5`."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(lines), lambda each: each[1] - each[0])
    ]
    named = ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
    return f"line{'' if named.isdigit() else 's'} {named}"
