"""A Whisper model that is ready to transcribe: what `kvcast.load` returns.

The one place where the words of the API meet the parts that own the options.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from kvcast.decoding.whisper import DecodingOptions, WindowDecoder
from kvcast.errors import UsageError
from kvcast.runtimes.base import EncoderDecoder
from kvcast.spec.whisper import WhisperDimensions
from kvcast.tasks.transcribe import Clip, Prompting, Transcription
from kvcast.tasks.whisper.fallback import Thresholds
from kvcast.text.whisper import WhisperTokenizer

if TYPE_CHECKING:
    from kvcast.audio.decode import AudioInput

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


class WhisperModel:
    """A runtime with its tokenizer and dimensions."""

    task: ClassVar[Literal["transcribe"]] = "transcribe"

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: WhisperTokenizer,
        dimensions: WhisperDimensions,
    ) -> None:
        self.dimensions = dimensions
        self.decoder = WindowDecoder(runtime, tokenizer, dimensions.target_positions)

    @property
    def is_multilingual(self) -> bool:
        """Whether it knows other languages than English."""
        return self.decoder.tokenizer.is_multilingual

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes of the languages that it knows."""
        return self.decoder.tokenizer.languages

    def transcribe(
        self,
        audio: "AudioInput",
        *,
        language: str | None = None,
        task: str = "transcribe",
        timestamps: bool = True,
        beam: int = 1,
        best_of: int = 5,
        temperature: float | Sequence[float] = TEMPERATURES,
        patience: float | None = None,
        length_penalty: float | None = None,
        initial_prompt: str | None = None,
        condition_on_previous_text: bool = True,
        suppress_tokens: str | Sequence[int] | None = "-1",
        no_speech_threshold: float | None = 0.6,
        compression_ratio_threshold: float | None = 2.4,
        logprob_threshold: float | None = -1.0,
        clip_start: float = 0.0,
        clip_end: float | None = None,
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Transcription:
        """Turn speech into segments of text, which are decoded while they are taken.

        Args:
            audio: a path, "-" for standard input, a binary file object, or an array of samples
                at 16 kHz; see `kvcast.audio.decode.open_audio`.
            language: code or English name; None detects it in the first 30 seconds.
            task: "transcribe", or "translate" to English.
            timestamps: whether to predict them; without, each window of 30 s is one segment.
            beam: beams at temperature 0; 1 is greedy.
            best_of: samples at temperatures above 0.
            temperature: one, or several of which each is tried when the one before it fails.
            patience: the beam search ends at round(beam * patience) finished beams.
            length_penalty: 0 to 1, exponent of Google NMT's; None divides by the length.
            initial_prompt: text that precedes the recording: names and spellings to expect.
            condition_on_previous_text: whether text prompts the window after it.
            suppress_tokens: ids never to emit; -1 stands for the non-speech tokens.
            no_speech_threshold: above this probability of no speech an improbable window is
                skipped; None skips none.
            compression_ratio_threshold: text that compresses better repeats itself and has
                failed; None accepts it.
            logprob_threshold: a mean log-probability below this has failed; None accepts it.
            clip_start: where to begin, in seconds.
            clip_end: where to end, in seconds.
            max_new_tokens: most tokens of a window; None is half the decoder's context.
            seed: of sampling.

        Returns:
            An iterator of `Segment`, with `language`, `duration` and `notices`.

        Raises:
            UsageError: for options that cannot be served.
            InputMissingError, InputOutputError: the recording cannot be read.

        """
        cold = DecodingOptions(
            language=None if language is None else self.decoder.tokenizer.language_code(language),
            task=task,
            timestamps=timestamps,
            beam=beam,
            patience=patience,
            length_penalty=length_penalty,
            suppress_tokens=suppress_tokens,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        cold.check(self.decoder.tokenizer)
        hot = replace(cold, temperature=1.0, best_of=best_of, beam=1, patience=None)
        temperatures = (
            (temperature,) if isinstance(temperature, int | float) else tuple(temperature)
        )
        if not temperatures:
            raise UsageError("temperature needs at least one value")
        attempts = [replace(cold if t == 0 else hot, temperature=t) for t in temperatures]
        thresholds = Thresholds(
            compression_ratio=compression_ratio_threshold,
            logprob=logprob_threshold,
            no_speech=no_speech_threshold,
        )
        prompting = Prompting(
            initial_prompt=initial_prompt, condition_on_previous_text=condition_on_previous_text
        )
        clip = Clip(start=clip_start, end=clip_end)
        # Opened last: a mistake in the options should not wait for an hour of sound to be read.
        from kvcast.audio.features import open_features

        return Transcription(
            self.decoder,
            open_features(audio, self.dimensions.n_mels),
            attempts=attempts,
            thresholds=thresholds,
            prompting=prompting,
            clip=clip,
        )
