"""A stretch of a recording, decoded window by window, each after the text before.

Follows `transcribe` in openai/whisper's transcribe.py: windows seek by the timestamps that were
predicted, text conditions the next window, doubtful windows are tried again, silent ones skipped.
Knows no file formats and no runtime, and not who else is decoded meanwhile.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcast.decoding.speculation import DraftCounts
from kvcast.whisper.alignment import AlignmentJob
from kvcast.whisper.decoding import DecodingOptions, DecodingResult, Features, Job, WindowJob
from kvcast.whisper.fallback import is_silence, rejection
from kvcast.whisper.hallucination import Heard
from kvcast.whisper.params import TranscribeParams
from kvcast.whisper.placing import NO_TOKENS, Said, WordPlacing
from kvcast.whisper.segments import WINDOW_FRAMES, Segment, Span, Window, ends_alone, split
from kvcast.whisper.sound import Sound
from kvcast.whisper.token_times import TokenTimes
from kvcast.whisper.tokenizer import WhisperTokenizer

if TYPE_CHECKING:
    from kvcast.whisper.turns import Turn, Turns

PROMPT_RESET_TEMPERATURE = 0.5
"""Text that took a higher temperature is too doubtful to condition the next window."""


class Ending:
    """What is known of the end of a window: nothing, so a text may go on in the next one."""

    def options(self, options: DecodingOptions, window: Window) -> DecodingOptions:
        """Return how to decode a window."""
        del window
        return options

    def tokens(self, result: DecodingResult, window: Window) -> Sequence[int]:
        """Return a window's tokens, with a timestamp at the end if nothing goes on."""
        del window
        return result.tokens

    def resumed(self, after_words: int, after_timestamps: int) -> int:
        """Return where the next window begins, of what the last word and the timestamps tell."""
        del after_timestamps
        return after_words


class Passage:
    """Clips of a recording whose windows are decoded one after the other.

    Attributes:
        drafts: what became of drafted tokens, of each attempt that had some.
        notices: what a user should know: from which second on, and what.
        segments: what was found and not taken yet. Segments that are empty or take no time are
            left out. Ids count from 0 within the passage.

    """

    def __init__(
        self,
        sound: Sound,
        clips: Sequence[tuple[int, int]],
        *,
        attempts: Sequence[DecodingOptions],
        params: TranscribeParams,
        tokenizer: WhisperTokenizer,
        ending: Ending | None = None,
        turns: "Sequence[Turns | None] | None" = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            sound: the recording, or this part of it.
            clips: the first frame (of 10 ms) of each clip, and the one after its last; none is
                empty.
            attempts: how to decode a window first, and after each rejection; one at least. Their
                prefix is for the first window alone.
            params: all other options.
            tokenizer: of the model.
            ending: what is known of the windows' ends.
            turns: the languages of each clip, or None where these do not change; a window ends
                where its language does.

        """
        self._sound = sound
        self._clips = deque(zip(clips, turns or [None] * len(clips), strict=True))
        self._seek = clips[0][0] if clips else 0
        self._attempts = list(attempts)
        self._params = params
        self._tokenizer = tokenizer
        self._ending = ending or Ending()
        self._prompt = initial_tokens(params, tokenizer)
        self._heard: Features | None = None
        self._rejections: list[str] = []
        self._prompt_language: str | None = None
        self._placing = WordPlacing(params, tokenizer, self._ending.resumed)
        self._untimed: tuple[Said, AlignmentJob] | None = None
        self._found = 0
        self.drafts: list[DraftCounts] = []
        self.notices: list[tuple[float, str]] = []
        self.segments: deque[Segment] = deque()

    @property
    def over(self) -> bool:
        """Whether everything was decoded."""
        return not self._clips

    def next(self) -> Job:
        """Return what is to be done next, if it is not over; `take` its result."""
        if self._untimed is not None:
            return self._untimed[1]
        options = self._attempts[len(self._rejections)]
        if (turn := self._turn) is not None:
            options = replace(options, language=turn.language)
        return WindowJob(
            window=self._features(),
            options=self._ending.options(options, self._window),
            prompt=tuple(self._prompt),
            prompt_language=self._prompt_language,
            stream=self._seek,
        )

    def take(self, result: Any) -> None:
        """Find a window's segments and go on behind it, or find out what else is to be done."""
        if self._untimed is None:
            self._take_text(result)
        else:
            said, _ = self._untimed
            self._take_times(said, result)

    def _take_text(self, result: DecodingResult) -> None:
        if result.draft is not None:
            self.drafts.append(result.draft)
        reason = rejection(result, self._params)
        if reason is not None and len(self._rejections) + 1 < len(self._attempts):
            self._rejections.append(reason)
            return
        rejections, self._rejections = tuple(self._rejections), []
        window, features, self._heard = self._window, self._features(), None
        if self._attempts[0].prefix is not None:
            self._attempts = [replace(options, prefix=None) for options in self._attempts]
        if is_silence(result, self._params):
            self._advance(window.frames)
            return
        if result.repetition is not None:
            self.notices.append((window.start, f"the text {result.repetition}: cut"))
        if self._prompt_language not in (None, result.language):
            self._prompt.clear()
        self._prompt_language = result.language
        tokens = self._ending.tokens(result, window)
        spans, advance = split(tokens, window, self._tokenizer.timestamp_begin)
        said = Said(
            window=window,
            features=features,
            result=result,
            rejections=rejections,
            spans=spans,
            complete=ends_alone(tokens, self._tokenizer.timestamp_begin),
            seek=window.seek + advance,
        )
        if not self._params.word_timestamps:
            self._keep(said, Heard(spans, said.seek))
        elif (job := self._placing.job(said)) is not None:
            self._untimed = said, job
        else:
            self._take_times(said, NO_TOKENS)

    def _take_times(self, said: Said, times: TokenTimes) -> None:
        self._untimed = None
        self._keep(said, self._placing.heard(said, times, end=self._clip[1]))

    def _keep(self, said: Said, heard: Heard) -> None:
        self._advance(heard.seek - said.window.seek)
        if heard.skipped:
            return
        for span in heard.spans:
            text = self._text(span)
            if text.strip() and span.start != span.end:
                self._prompt += span.tokens
                self.segments.append(_segment(self._found, said, span, text))
                self._found += 1
        if not self._conditions_next(said.result):
            self._prompt.clear()

    def _features(self) -> Features:
        """Return what is heard in the window, which is read once."""
        if self._heard is None:
            window = self._window
            self._heard = Features(self._sound.window(window.seek, window.seek + window.frames))
        return self._heard

    @property
    def _clip(self) -> tuple[int, int]:
        return self._clips[0][0]

    @property
    def _turn(self) -> "Turn | None":
        """What is spoken where the window begins, if languages change."""
        turns = self._clips[0][1]
        return None if turns is None else turns.at(self._seek)

    @property
    def _window(self) -> Window:
        turn = self._turn
        end = self._clip[1] if turn is None else turn.end
        return Window(self._seek, min(WINDOW_FRAMES, end - self._seek))

    def _advance(self, frames: int) -> None:
        """Go on so many frames further, or with the next clip."""
        self._seek += frames
        if self._seek >= self._clip[1]:
            self._clips.popleft()
            self._seek = self._clip[0] if self._clips else self._seek

    def _conditions_next(self, result: DecodingResult) -> bool:
        """Tell whether a window's text prompts the next window."""
        certain = result.temperature <= PROMPT_RESET_TEMPERATURE and result.repetition is None
        return self._params.condition_on_previous_text and certain

    def _text(self, span: Span) -> str:
        tokenizer = self._tokenizer
        return tokenizer.decode(token for token in span.tokens if tokenizer.is_text(token))


def initial_tokens(params: TranscribeParams, tokenizer: WhisperTokenizer) -> list[int]:
    """Return what precedes the first window."""
    if params.initial_prompt is None:
        return []
    return tokenizer.encode(" " + params.initial_prompt.strip())


def _segment(id_: int, said: Said, span: Span, text: str) -> Segment:
    return Segment(
        id=id_,
        seek=said.window.seek,
        start=span.start,
        end=span.end,
        text=text,
        tokens=span.tokens,
        language=said.result.language,
        temperature=said.result.temperature,
        avg_logprob=said.result.avg_logprob,
        compression_ratio=said.result.compression_ratio,
        no_speech_prob=said.result.no_speech_prob,
        fallback=said.rejections,
        words=span.words,
    )
