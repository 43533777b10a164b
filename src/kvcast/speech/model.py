"""Base class of all speech models but Whisper; a subclass names its `Recognition`.

An option means the same for all; options without an effect on a model raise UsageError.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from typing_extensions import override

from kvcast.audio.features import SampledAudio
from kvcast.audio.params import VOICE
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.runtimes.base import EncoderDecoder
from kvcast.speech.abilities import Abilities, LanguageSource
from kvcast.speech.base import Answer, Decoding, TranscriptionModel
from kvcast.speech.languages import language_code
from kvcast.speech.live import LiveWindow
from kvcast.speech.params import TEMPERATURES, LiveParams, TranscribeParams
from kvcast.speech.recognition import ChunkOptions, ChunkPlan, Recognition, SpeechContext
from kvcast.speech.recordings import open_samples
from kvcast.speech.strategies import BeamSearch, Greedy, Sampling, Strategy

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
)  # options that every model takes, whatever its abilities

_AS_IT_IS: Mapping[str, Any] = {
    "timestamps": False,
    "condition_on_previous_text": False,
    **dict.fromkeys(
        ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"), None
    ),
}  # values that change nothing: chunks are segments, independent, and decoded once

_REASONS = {
    "task": "it transcribes, and does not translate",
    "word_timestamps": "it returns no word times, which subtitles are laid out by",
    "channels": "it returns no word times, which channels are merged by",
    "multilingual": "it knows one language, or needs --language",
    "initial_prompt": "it has no text prompt",
    "hotwords": "it has no text prompt",
}
STEP = 0.03  # seconds of new audio, about one arriving block, worth a live hypothesis
_LONGEST_CONTEXT = 512  # most tokens of names and terms in an engine


class SpeechModel(TranscriptionModel):
    def __init__(
        self, runtime: EncoderDecoder, tokenizer: Any, dimensions: Any, recognition: Recognition
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.dimensions = dimensions
        self.recognition = recognition
        self._positions: int = family_with(dimensions).positions(dimensions)

    @property
    @override
    def abilities(self) -> Abilities:
        return self.recognition.abilities

    @override
    def streaming_window(self, params: LiveParams, answer: Answer | None = None) -> LiveWindow:
        raise UsageError("this model does not support live transcription")

    @property
    @override
    def _row_positions(self) -> int:
        recognition = self.recognition
        prompt = len(recognition.prompt(recognition.most_positions, SpeechContext()))
        return min(prompt + _LONGEST_CONTEXT + recognition.most_tokens, self._positions)

    @override
    def _prefill(self, chunk: int) -> tuple[int | None, int]:
        return chunk, max(chunk, self.recognition.most_positions)

    @override
    def _decoding(self, params: TranscribeParams) -> Decoding:
        options = self.chunk_options(params)
        return Decoding(
            params=options.params,
            plan=partial(ChunkPlan, options),
            widths=[options.strategy(0).width],
            capacity=self._capacity(options),
        )

    @override
    def _open(self, audio: Any, params: TranscribeParams) -> SampledAudio:
        return open_samples(audio, params)

    def _capacity(self, options: ChunkOptions) -> int:
        """Return the positions of the longest chunk's row; UsageError for too many."""
        recognition = self.recognition
        prompt = len(recognition.prompt(recognition.most_positions, options.context))
        if prompt >= self._positions:
            raise UsageError(
                f"the prompt is too long: with the audio it has {prompt} positions, and the model "
                f"has {self._positions}"
            )
        return min(prompt + options.room, self._positions)

    def language(self, params: TranscribeParams) -> str | None:
        """Return the code of the spoken language, if it is known before decoding.

        Raises UsageError for an unsupported language, and if the model needs one and has none.
        """
        if params.language:
            return language_code(params.language, self.languages)
        match self.abilities.language:
            case LanguageSource.REQUIRED:
                raise UsageError("this model cannot detect the language: pass --language")
            case LanguageSource.ASSUMED:
                return "en"
        return None

    def chunk_options(self, params: TranscribeParams) -> ChunkOptions:
        """Return how chunks are decoded; raises UsageError for unsupported options."""
        recognition = self.recognition
        check(params, (TAKEN | self.abilities.options) - recognition.refused)
        temperature = _temperature(params)
        prompt = " ".join(filter(None, (params.initial_prompt, params.hotwords)))
        return ChunkOptions(
            recognition=recognition,
            context=SpeechContext(
                language=self.language(params),
                prompt=prompt,
                translates=params.task == "translate",
            ),
            strategy=partial(_strategy, params, temperature),
            temperature=temperature,
            room=params.max_new_tokens or recognition.most_tokens,
            positions=self._positions,
            params=params.unclipped() if params.vad else params,
        )


def check(params: TranscribeParams, taken: frozenset[str]) -> None:
    for option in params.declared():
        value = getattr(params, option.name)
        usual = (option.default, _AS_IT_IS.get(option.name, option.default))
        if option.name not in taken and value not in usual:
            reason = f": {_REASONS[option.name]}" if option.name in _REASONS else ""
            raise UsageError(f"{option.name} is not supported by this model{reason}")


def _temperature(params: TranscribeParams) -> float:
    """Return the temperature, of which there may be only one; by default 0."""
    if tuple(params.temperatures) == TEMPERATURES:
        return 0.0
    if len(params.temperatures) > 1:
        raise UsageError("this model does not retry at other temperatures: give one")
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
