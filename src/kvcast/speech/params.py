"""Options of recordings: how windows are decoded and transcripts formatted."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, ClassVar, Self

from typing_extensions import override

from kvcast.audio.params import VOICE, VoiceParams
from kvcast.decoding.params import (
    DRAFTS_NO_BEAMS,
    DraftModel,
    check_switch,
    draft_option,
)
from kvcast.errors import UsageError
from kvcast.foreign_options import RECORDING_CALLS, ForeignOptions
from kvcast.options import (
    FILLED,
    Bounds,
    Check,
    Choice,
    Group,
    Option,
    Params,
    Text,
    check_number,
    seconds_of,
    shown,
)
from kvcast.transcripts.segments import Replacements

RECOGNITION = Group("recognition")
SEARCH = Group("search")
FALLBACK = Group("long recordings and fallback")
WORDS = Group("words")
LIVE = Group("live")
SPLIT = "split"
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class _TokenIds(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        if re.fullmatch(r"\s*|\s*-?\d+\s*(,\s*-?\d+\s*)*", str(value)):
            return None
        return f"must be token ids with commas between, not {shown(value)}"


_BEST_OF = Option(group=SEARCH, help="samples at temperatures above 0", check=Bounds(least=1))
_LANGUAGE = Option(
    group=RECOGNITION,
    help="the language spoken, such as en, pt-BR, German or deutsch, or auto",
    check=FILLED,
    metavar="LANG",
    shown="auto, detected in the first 30 seconds that are not silent",
)
_TEMPERATURE = Option(
    group=SEARCH,
    help="one or several, each tried if the one before it fails",
    check=Bounds(least=0),
    metavar="T[,T…]",
)


@dataclass(frozen=True, kw_only=True)
class WindowParams(Params):
    """How 30-second windows are decoded, as in OpenAI's Whisper.

    Raises:
        UsageError: for a value out of its bounds, and options that exclude each other.

    """

    language: str | None = _LANGUAGE(None)
    task: str = RECOGNITION("transcribe", check=Choice(lambda: ("transcribe", "translate")))(
        "translate outputs English"
    )
    timestamps: bool = RECOGNITION(True)(
        "predict times within each 30-second window; otherwise it is one segment"
    )
    hotwords: str | None = RECOGNITION(None, check=FILLED, metavar="TEXT")(
        "words to expect in every window; they precede the text before it"
    )
    prefix: str | None = RECOGNITION(None, check=FILLED, metavar="TEXT")(
        "text that the first window begins with"
    )
    beam: int = SEARCH(1, least=1, flags=("--beam", "--beam-size"), shown="1, greedy")(
        "beams at temperature 0"
    )
    best_of: int = _BEST_OF(1)
    temperature: float | Sequence[float] = _TEMPERATURE(0.0)
    patience: float | None = SEARCH(None, above=0, metavar="P", shown="1")(
        "beam search ends at round(beam x patience) finished beams"
    )
    length_penalty: float | None = SEARCH(
        None, least=0, most=1, metavar="ALPHA", shown="divide by the length"
    )("exponent of Google NMT's length penalty")
    suppress_tokens: str | Sequence[int] | None = SEARCH("-1", check=_TokenIds(), metavar="IDS")(
        "token ids never to emit, separated by commas; -1 is the usual non-speech set"
    )
    max_new_tokens: int | None = SEARCH(None, least=1, shown="half the decoder's context")(
        "maximum number of tokens per 30-second window"
    )
    repetition_penalty: float = SEARCH(1.0, above=0, metavar="X", shown="1, off")(
        "above 1, makes tokens that the window's text has less likely"
    )
    no_repeat_ngram: int = SEARCH(
        0, least=0, flags=("--no-repeat-ngram", "--no-repeat-ngram-size"), shown="0, off"
    )("generate no n-gram of this length twice in a window")
    stop_repetition: bool = SEARCH(True)(
        "end a window's text that only repeats itself; the window has failed"
    )
    seed: int = SEARCH(0, least=0)("seed for sampling")

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language is not None and self.language.strip().lower() == "auto":
            object.__setattr__(self, "language", None)
        if self.patience is not None and self.beam == 1:
            raise UsageError("patience needs a beam of 2 or more")

    def suppressed_ids(self) -> tuple[int, ...]:
        """Return `suppress_tokens` as token ids; -1 means the non-speech tokens."""
        given = self.suppress_tokens
        if given is None:
            return ()
        if isinstance(given, int):
            return (given,)
        if isinstance(given, str):
            given = [int(word) for word in given.split(",") if word.strip()]
        return tuple(given)


class _Track(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        if isinstance(value, str):
            return None if value.strip() else "is empty"
        return Bounds(least=1).problem(value, int)


@dataclass(frozen=True, kw_only=True)
class AudioParams(Params):
    """Which audio of a recording is transcribed.

    Attributes:
        sampling_rate: samples per second of an array; only in Python, and not for files, which
            state their sample rate.

    """

    audio_track: str | int | None = RECOGNITION(
        None, check=_Track(), metavar="N|LANG", shown="the film's default"
    )("the audio track of a film: its number, from 1 on, or its language")
    sampling_rate: int = 16_000

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("sampling_rate", self.sampling_rate, int, 1)


@dataclass(frozen=True, kw_only=True)
class LanguageParams(AudioParams):
    """How the language of a recording is detected, as in faster-whisper."""

    language_detection_threshold: float = RECOGNITION(0.5, least=0, most=1, metavar="P")(
        "a language that is more probable than this is the one spoken; otherwise the next "
        "30 seconds are decoded as well"
    )
    language_detection_segments: int = RECOGNITION(4, least=1)(
        "windows of 30 seconds to decode at most, until one exceeds the threshold"
    )


@dataclass(frozen=True, kw_only=True)
class AlignParams(AudioParams):
    """How a given text is placed in a recording."""

    language: str | None = _LANGUAGE(None)


class _Seconds(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        try:
            seconds = _seconds(value)
        except (TypeError, ValueError):
            return f"must be seconds with commas between, not {shown(value)}"
        problems = (Bounds(least=0).problem(second, float) for second in seconds)
        return next(filter(None, problems), None)


def _seconds(given: str | float | Sequence[float]) -> list[float]:
    if isinstance(given, str):
        return [seconds_of(word) for word in given.split(",")]
    return [float(second) for second in (given if isinstance(given, Iterable) else [given])]


@dataclass(frozen=True, kw_only=True)
class TranscribeParams(VoiceParams, LanguageParams, WindowParams):
    """How a recording is transcribed; options have their meaning in OpenAI's Whisper.

    Attributes:
        progress: show a bar; only in Python.

    """

    foreign: ClassVar[ForeignOptions] = RECORDING_CALLS

    best_of: int = _BEST_OF(5)
    temperature: float | Sequence[float] = _TEMPERATURE(TEMPERATURES)
    clip_start: float = RECOGNITION(0.0, least=0, metavar="SECONDS")(
        "start of the part to transcribe, in seconds or as 1:30"
    )
    clip_end: float | None = RECOGNITION(None, above=0, metavar="SECONDS", shown="the end")(
        "end of that part, in seconds"
    )
    batch: int | None = RECOGNITION(
        None, least=1, most=256, metavar="N", shown="one window after the other"
    )(
        "decode so many windows at once, cut where it is quiet; the fast way for long "
        "recordings and for many"
    )
    clip_timestamps: str | Sequence[float] | None = RECOGNITION(
        None, check=_Seconds(), metavar="SECONDS", shown="one part"
    )("several such parts: start,end,start,end,… in seconds, ascending; the last may have no end")
    replace: str | Sequence[str] = RECOGNITION((), check=Text(), metavar="FILE")(
        "replacement rules FROM => TO for names and terms: whole words, in any case; on the "
        "command line a file with one rule per line"
    )
    channels: str = RECOGNITION("mix", check=Choice(lambda: ("mix", SPLIT)))(
        "mix all channels, or split them: transcribe each separately, as suits a call with a "
        "speaker on each; every segment has its channel"
    )
    multilingual: bool = RECOGNITION(False)(
        "detect where the language changes, and decode each span in its language"
    )
    draft: str | DraftModel | None = draft_option(SEARCH)(None)
    initial_prompt: str | None = RECOGNITION(None, check=Text(), metavar="TEXT")(
        "text that precedes the recording: names and spellings to expect"
    )
    condition_on_previous_text: bool = FALLBACK(True)(
        "give each window the text before it as its prompt"
    )
    compression_ratio_threshold: float | None = FALLBACK(2.4, least=0, metavar="X")(
        "a window whose text compresses better than this has failed; None is off"
    )
    logprob_threshold: float | None = FALLBACK(-1.0, check=Bounds(), metavar="X")(
        "a window whose mean log-probability is below this has failed; None is off"
    )
    no_speech_threshold: float | None = FALLBACK(0.6, least=0, most=1, metavar="X")(
        "a failed window whose no-speech probability is above this is silence; None is off"
    )
    word_timestamps: bool = WORDS(False)(
        "word timestamps; segments then begin and end with their words"
    )
    prepend_punctuations: str = WORDS("\"'“¿([{-", check=Text(), metavar="MARKS")(
        "marks that belong to the word after them; needs word_timestamps"
    )
    append_punctuations: str = WORDS("\"'.。,，!！?？:：”)]}、", check=Text(), metavar="MARKS")(  # noqa: RUF001
        "marks that belong to the word before them; needs word_timestamps"
    )
    hallucination_silence_threshold: float | None = WORDS(
        None, least=0, metavar="SECONDS", shown="off"
    )(
        "skip silences longer than this, in seconds, where the text around them was "
        "probably hallucinated; needs word_timestamps"
    )
    progress: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_switch("progress", self.progress)
        self._refuse_without_effect()
        if self.clip_end is not None and self.clip_end <= self.clip_start:
            raise UsageError(
                f"clip_end must come after clip_start {self.clip_start:g}, not {self.clip_end}"
            )
        if self.beam > 1 and self.draft is not None:
            raise UsageError(DRAFTS_NO_BEAMS)
        if not self.temperatures:
            raise UsageError("temperature needs at least one value")
        if self.multilingual and self.language is not None:
            raise UsageError("multilingual detects the language of every part: leave out language")
        self._check_clips()
        Replacements.of(self.replace)  # raises UsageError

    def _refuse_without_effect(self) -> None:
        """Raise UsageError for options whose feature is switched off."""
        for group, switch in (WORDS, "word_timestamps"), (VOICE, "vad"):
            idle = [] if getattr(self, switch) else self.changed(group)
            if idle:
                raise UsageError(f"{idle[0]} needs {switch}")

    def _check_clips(self) -> None:
        if self.clip_timestamps is None:
            return
        if self.clip_start or self.clip_end is not None:
            raise UsageError("clip_timestamps and clip_start or clip_end exclude each other")
        bounds = [bound for clip in self.clips for bound in clip if bound is not None]
        if not bounds:
            raise UsageError("clip_timestamps needs at least one start")
        late = [pair for pair in self.clips if pair[1] is not None and pair[0] == pair[1]]
        if bounds != sorted(bounds) or late:
            raise UsageError(
                f"clip_timestamps must ascend, unlike {','.join(f'{bound:g}' for bound in bounds)}"
            )

    @property
    def clips(self) -> tuple[tuple[float, float | None], ...]:
        """Start and end in seconds of each part to transcribe; None is the recording's end."""
        if (given := self.clip_timestamps) is None:
            return ((self.clip_start, self.clip_end),)
        bounds = _seconds(given)
        return tuple(zip_longest(bounds[::2], bounds[1::2]))

    def unclipped(self) -> Self:
        return replace(self, clip_start=0.0, clip_end=None, clip_timestamps=None)

    @property
    def temperatures(self) -> tuple[float, ...]:
        given = self.temperature
        return (given,) if isinstance(given, int | float) else tuple(given)


_OF_RECORDINGS = (
    *("timestamps", "clip_start", "clip_end", "clip_timestamps", "batch", "prefix"),
    *("multilingual", "language_detection_threshold", "language_detection_segments"),
    *("vad", "min_silence", "speech_pad", "max_speech"),
    *("word_timestamps", "prepend_punctuations", "append_punctuations", "replace"),
    *("audio_track", "channels"),
)  # options that do not apply to live audio


@dataclass(frozen=True, kw_only=True)
class LiveParams(TranscribeParams):
    step: float | None = LIVE(
        None,
        least=0.03,
        most=10,
        metavar="SECONDS",
        shown="1; 0.03 for models that encode audio as it arrives",
    )(
        "seconds of new audio after which the streaming window is decoded again; more "
        "takes less work, and confirms text later"
    )
    margin: float = LIVE(0.5, least=0, most=10, metavar="SECONDS")(
        "seconds at the end of the audio: words that the model attends to there are not "
        "confirmed yet; less confirms words earlier, and more of them wrong"
    )
    agreement: int | None = LIVE(
        None,
        least=2,
        most=10,
        metavar="N",
        shown="2 where the alignment heads of the model are not known",
    )(
        "successive hypotheses that must begin with a word before it is confirmed, instead "
        "of --margin; fewer confirm it earlier, and more of them wrong"
    )
    pause: float = LIVE(0.6, least=0.1, most=10, metavar="SECONDS")(
        "seconds without speech that end an utterance"
    )

    @override
    def _refuse_without_effect(self) -> None:
        """Live, vad_threshold is of use without vad, and the others of both groups never are."""
        if self.hallucination_silence_threshold is not None:
            raise UsageError("hallucination_silence_threshold needs word_timestamps")

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        for option in self.declared():
            if option.name in _OF_RECORDINGS and getattr(self, option.name) != option.default:
                raise UsageError(f"{option.name} is for recordings, and means nothing live")
        if self.progress:
            raise UsageError("progress is for recordings, and means nothing live")
        if self.sampling_rate != AudioParams.sampling_rate:
            raise UsageError("sampling_rate is for recordings: resample audio that is fed live")
        if self.agreement is not None and self.margin != LiveParams.margin:
            raise UsageError("margin and agreement exclude each other: give one of them")
