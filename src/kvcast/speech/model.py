"""Models of speech beside Whisper, as `kvcast.load` returns them: excerpts in, texts out.

A subclass names its `Recognition`. What an option does is the same for all; what a model has no use
for is refused. Knows no file format and no runtime.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from typing_extensions import override

from kvcast.audio.params import VOICE
from kvcast.engine.callers import JobCaller
from kvcast.engine.memory import fitting
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.families.programs import ENCODED
from kvcast.families.table import family_with
from kvcast.options import keywords_of
from kvcast.runtimes.base import EncoderDecoder
from kvcast.speech.abilities import Abilities, LanguageSource
from kvcast.speech.channels import CHANNELS_ARE_MIXED, AnyTranscription, by_channel
from kvcast.speech.chunks import ExcerptPlan, Manner
from kvcast.speech.languages import language_code
from kvcast.speech.live_model import Answer, LiveModel
from kvcast.speech.params import SPLIT, TEMPERATURES, LiveParams, TranscribeParams
from kvcast.speech.recognition import Hints, Recognition
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, Strategy
from kvcast.speech.transcription import ServedRecording, Transcription

if TYPE_CHECKING:
    from kvcast.audio.decode import AudioInput
    from kvcast.speech.live_window import LiveWindow

TAKEN = frozenset(
    {
        *("language", "clip_start", "clip_end", "clip_timestamps", "batch", "replace"),
        *("audio_track", "beam", "patience", "length_penalty", "best_of", "temperature", "seed"),
        *("max_new_tokens", "repetition_penalty", "no_repeat_ngram"),
        *(
            "vad",
            *(
                option.name
                for option in TranscribeParams.declared()
                if option.option.group == VOICE
            ),
        ),
    }
)
"""Options that every model takes, whatever its abilities."""

_AS_IT_IS: Mapping[str, Any] = {
    "timestamps": False,
    "condition_on_previous_text": False,
    **dict.fromkeys(
        ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"), None
    ),
}
"""Values that ask for what is done anyway: excerpts are segments, independent, and decoded once."""

_REASONS = {
    "task": "it writes what is said, and does not translate",
    "word_timestamps": "it gives no times of words, of which subtitles could be laid out",
    "channels": "it gives no times of words, by which channels are told apart",
    "multilingual": "it knows one language, or is told which one it hears",
    "initial_prompt": "it reads no text before the speech",
    "hotwords": "it reads no text before the speech",
}
STEP = 0.03
"""Seconds of new sound that are worth a hypothesis live, to models that encode sound as it comes:

about a block of those that arrive."""
_LONGEST_CONTEXT = 512
"""Most tokens of names and terms in an engine, whose rows are as long as any request needs."""


class SpeechModel(LiveModel):
    """A runtime with its tokenizer, dimensions and recognition."""

    task: ClassVar[Literal["transcribe"]] = "transcribe"

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: Any, dimensions: Any, recognition: Recognition
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.dimensions = dimensions
        self.recognition = recognition
        self._positions: int = family_with(dimensions).positions(dimensions)

    @property
    def abilities(self) -> Abilities:
        """What it can do."""
        return self.recognition.abilities

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that it knows."""
        return tuple(self.abilities.languages)

    @property
    def is_multilingual(self) -> bool:
        """Whether it knows languages besides English."""
        return self.languages != ("en",)

    @keywords_of(TranscribeParams)
    def transcribe(self, audio: "AudioInput", params: TranscribeParams) -> AnyTranscription:
        """Turn speech into segments of text, which are decoded while they are taken.

        Args:
            audio: a path, "-" for standard input, a binary file object, a file's bytes, or an
                array of samples; see `kvcast.audio.decode.open_audio`.
            params: given as keywords.

        Returns:
            An iterator of `Segment`, with `language`, `duration`, `notices` and `skipped`.

        Raises:
            UsageError: for options that the model does not take.
            InputMissingError, InputOutputError: the recording cannot be read.

        """
        [transcription] = self._together([audio], params)
        return transcription.open()

    @keywords_of(TranscribeParams)
    def transcribe_all(
        self, audio: "Iterable[AudioInput]", params: TranscribeParams
    ) -> list[AnyTranscription]:
        """Turn recordings into segments; with `batch`, excerpts of several are decoded together.

        Args:
            audio: recordings, each as `transcribe` takes it.
            params: given as keywords.

        Returns:
            A transcription for each, best taken in this order. Nothing is opened before its turn
            comes, so an error of a recording is raised when its segments are taken.

        Raises:
            UsageError: for options that the model does not take.

        """
        return self._together(audio, params)

    def detect_language(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError: the model tells the language with the text, or not at all."""
        if self.abilities.language is LanguageSource.DETECTED:
            raise UsageError("this model tells the language with the text: use kvcast transcribe")
        raise UsageError("this model does not tell the language: use one that detects it")

    def align(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError: the model places no given text."""
        raise UsageError("this model places no given text: align with a Whisper model")

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> "LiveWindow":
        raise UsageError("this model hears whole excerpts, and no sound that is still arriving")

    @property
    def input_bytes(self) -> int:
        """Bytes that the cache takes at most for an encoded excerpt."""
        layers = family_with(self.dimensions).caches(self.dimensions)
        numbers = sum(
            run.layers * len(run.parts) * prod((run.heads, run.capacity, run.head_dim))
            for run in layers
            if run.kind in ENCODED
        )
        return 4 * numbers  # in fp32

    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        """Return an engine's scheduler; see `kvcast.engine.engine.Model`."""
        recognition = self.recognition
        prompt = len(recognition.prompt(recognition.most_positions, Hints()))
        longest = min(prompt + _LONGEST_CONTEXT + recognition.most_tokens, self._positions)
        sizes = fitting(
            self.runtime.row_bytes,
            longest=longest,
            rows=rows,
            budget=budget,
            fixed=self.input_bytes,
        )
        if sizes.capacity < longest:
            raise UsageError(
                f"an excerpt needs rows of {longest} positions, and the cache's memory is enough "
                f"for {sizes.capacity}: give it more"
            )
        return Scheduler(
            self.runtime,
            rows=sizes.rows,
            capacity=longest,
            inputs=sizes.rows,
            chunk=chunk,
            turn=max(chunk, recognition.most_positions),
            cache_bytes=sizes.bytes,
        )

    def caller(
        self, given: "AudioInput", options: Mapping[str, Any], scheduler: Scheduler
    ) -> JobCaller:
        """Return a recording as an engine's caller.

        Raises UsageError for options that the model does not take.
        """
        drawn = min(TranscribeParams().best_of, scheduler.rows)
        params = TranscribeParams(**{"best_of": drawn, **options})
        manner = self.manner(params)
        if params.channels == SPLIT:
            raise UsageError(CHANNELS_ARE_MIXED)
        if manner.strategy(0).width > scheduler.rows:
            raise UsageError(
                f"beam and best_of must be at most {scheduler.rows}, the rows of the engine"
            )
        if self._capacity(manner) > scheduler.capacity:
            raise UsageError(
                f"max_new_tokens and the text before the speech need {self._capacity(manner)} "
                f"positions, and the engine's rows have {scheduler.capacity}: give fewer"
            )
        return ServedRecording(
            self._opening(given, params),
            ExcerptPlan(manner),
            params=manner.params,
            together=scheduler.rows,
        )

    def _together(
        self, audio: "Iterable[AudioInput]", params: TranscribeParams
    ) -> list[AnyTranscription]:
        manner, together = self.manner(params), params.batch or 1
        scheduler = Scheduler(
            self.runtime,
            rows=together * manner.strategy(0).width,
            capacity=self._capacity(manner),
            inputs=together,
            requests=together,
        )

        def begun(recording: "AudioInput", priority: int) -> Transcription:
            return Transcription(
                scheduler,
                self._opening(recording, params),
                ExcerptPlan(manner),
                params=manner.params,
                priority=priority,
            )

        return [
            by_channel(recording, params, partial(begun, priority=index))
            if params.channels == SPLIT
            else begun(recording, index)
            for index, recording in enumerate(audio)
        ]

    def _opening(self, audio: "AudioInput", params: TranscribeParams) -> Any:
        """Return a function that opens a recording; raises InputMissingError as `vad` needs."""
        from kvcast.speech.voice import open_samples, voice_listener

        if params.vad:
            voice_listener()
        return partial(open_samples, audio, params)

    def _capacity(self, manner: Manner) -> int:
        """Return the positions of the longest excerpt's row; UsageError for too many."""
        recognition = self.recognition
        prompt = len(recognition.prompt(recognition.most_positions, manner.hints))
        if prompt >= self._positions:
            raise UsageError(
                f"the text before the speech is too long: the model takes {self._positions} "
                f"positions, and that and the speech have {prompt}"
            )
        return min(prompt + manner.room, self._positions)

    def language(self, params: TranscribeParams) -> str | None:
        """Return the code of the language that is spoken, if that is known before it is heard.

        Raises UsageError for one that the model does not know, and if it has to be told.
        """
        if params.language:
            return language_code(params.language, self.languages)
        match self.abilities.language:
            case LanguageSource.TOLD:
                raise UsageError("this model has to be told the language: name it with language")
            case LanguageSource.ASSUMED:
                return "en"
        return None

    def manner(self, params: TranscribeParams) -> Manner:
        """Return how excerpts are decoded; raises UsageError for what the model does not take."""
        recognition = self.recognition
        check(params, (TAKEN | self.abilities.options) - recognition.refused)
        temperature = _temperature(params)
        context = " ".join(filter(None, (params.initial_prompt, params.hotwords)))
        return Manner(
            recognition=recognition,
            hints=Hints(
                language=self.language(params),
                context=context,
                translates=params.task == "translate",
            ),
            strategy=partial(_strategy, params, temperature),
            temperature=temperature,
            room=params.max_new_tokens or recognition.most_tokens,
            positions=self._positions,
            params=params.unclipped() if params.vad else params,
        )


def check(params: TranscribeParams, taken: frozenset[str]) -> None:
    """Raise UsageError for an option that was given and is none of those taken."""
    for option in params.declared():
        value = getattr(params, option.name)
        usual = (option.default, _AS_IT_IS.get(option.name, option.default))
        if option.name not in taken and value not in usual:
            reason = _REASONS.get(option.name, "it has no use for it")
            raise UsageError(f"this model does not take {option.name}: {reason}")


def _temperature(params: TranscribeParams) -> float:
    """Return the one temperature; by default 0."""
    if tuple(params.temperatures) == TEMPERATURES:
        return 0.0
    if len(params.temperatures) > 1:
        raise UsageError("this model takes one temperature: a text is not tried again")
    temperature = float(params.temperatures[0])
    if temperature > 0 and params.beam > 1:
        raise UsageError("beam needs temperature 0: above it best_of samples are drawn")
    return temperature


def _strategy(params: TranscribeParams, temperature: float, stream: int) -> Strategy:
    if temperature > 0:
        seed = (params.seed, stream, round(1000 * temperature))
        return Sampling(temperature, params.best_of, seed)
    if params.beam > 1:
        return BeamSearch(params.beam, params.patience or 1.0)
    return Greedy()
