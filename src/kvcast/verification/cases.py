"""Inputs of a verification, and drivers that feed them to a runtime: at once or in steps."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kvcast.engine.model import Model
from kvcast.engine.requests import Input, Prompt
from kvcast.errors import UsageError
from kvcast.families.base import Family, Probe
from kvcast.runtimes.base import Float32, Int64, Runtime, Tokens

if TYPE_CHECKING:
    from kvcast.speech.model import SpeechModel
    from kvcast.text.model import TextGenerator
    from kvcast.whisper.model import WhisperModel


Columns: TypeAlias = slice | NDArray[np.intp]
"""Which logits of a position are compared."""
ALL = slice(None)

_MOST_NUMBERS = 32 << 20
"""Logits that one call may give: 128 MiB."""
_MOST_COLUMNS = 1 << 15


@dataclass(frozen=True, eq=False)
class Case:
    """The input of a row: a prompt [s] and, with an encoder, the encoder's arrays [1, ...]."""

    prompt_s: Int64
    source: tuple[NDArray[Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Text:
    """A case and the tokens [n] after its prompt."""

    case: Case
    generated_n: Int64

    @property
    def tokens(self) -> Int64:
        return np.concatenate([self.case.prompt_s, self.generated_n])

    @property
    def first(self) -> int:
        """The position whose logits give the first token after the prompt."""
        return len(self.case.prompt_s) - 1

    def __len__(self) -> int:
        return len(self.case.prompt_s) + len(self.generated_n)

    def with_tokens(self, generated_n: Sequence[int] | Int64) -> "Text":
        return Text(self.case, np.asarray(generated_n, np.int64))


def cases_of(probe: Probe) -> list[Case]:
    return [
        Case(np.asarray(prompt_s), probe.source_of(i)) for i, prompt_s in enumerate(probe.prompts)
    ]


def columns_of(vocab: int) -> Columns:
    """Return a sample of the vocabulary, if all logits would take too much memory."""
    if vocab <= _MOST_COLUMNS:
        return ALL
    return np.sort(np.random.default_rng(0).choice(vocab, _MOST_COLUMNS, replace=False))


def one_each(tokens: Sequence[int] | Int64) -> list[Int64]:
    return [np.array([token], np.int64) for token in tokens]


@dataclass(frozen=True, kw_only=True)
class Driver:
    runtime: Any = field(repr=False)
    vocab: int
    positions: int
    one_by_one: bool = False  # a call takes one token of each row
    prefix: bool = False  # a source is prefilled in a separate call
    same_lengths: bool = False  # all rows hold the same number of tokens
    most_rows: int | None = None  # None: any number
    refuses: bool = True  # a full cache refuses further tokens

    def cache(self, cases: Sequence[Case], capacity: int) -> Any:
        """Return a cache whose row i is empty and reads the input of case i."""
        rows = range(len(cases))
        if not cases[0].source:
            return self.runtime.new_cache(len(rows), capacity)
        cache = self.runtime.new_cache(len(rows), capacity, inputs=len(rows))
        for slot, case in enumerate(cases):
            cache = self.runtime.encode(cache, [slot], *case.source)
        return self.runtime.reset(cache, rows, rows)

    def restart(self, cache: Any, row: int, case: Case) -> Any:
        """Return a cache with a row reset and the input that it alone reads encoded anew."""
        if not case.source:
            return self.runtime.reset(cache, [row])
        cache = self.runtime.encode(self.runtime.reset(cache, [row]), [row], *case.source)
        return self.runtime.reset(cache, [row], [row])

    def decode(
        self, cache: Any, tokens: Tokens, rows: Sequence[int] | None = None
    ) -> tuple[Float32, Any]:
        """Return a copy of the logits [rows, vocab] after tokens, and the grown cache."""
        logits_rsv, cache = self.runtime.decode(tokens, cache, rows)
        return logits_rsv[:, -1].copy(), cache

    def prefill(
        self, cache: Any, tokens: Tokens, rows: Sequence[int] | None = None
    ) -> tuple[Float32, Any]:
        logits_rsv, cache = self.runtime.prefill(tokens, cache, rows)
        return logits_rsv[:, -1].copy(), cache

    def at_once(self, text: Text, columns: Columns = ALL) -> tuple[Float32, Any]:
        """Return logits [n + 1, columns] after the prompt and each token, and the cache.

        One call, except for models that take single tokens, or prefill a source separately.
        """
        count = len(text.generated_n) + 1
        parts, cache = [], None
        for block in np.array_split(np.arange(count), ceil(count * self.vocab / _MOST_NUMBERS)):
            logits_nv, cache = self._at_once(text, block, columns)
            parts.append(logits_nv)
        return np.concatenate(parts), cache

    def _at_once(self, text: Text, asked_n: Int64, columns: Columns) -> tuple[Float32, Any]:
        if self.one_by_one:
            logits_nv, cache = self.stepped(text, columns)
            return logits_nv[asked_n], cache
        cache = self.cache([text.case], len(text))
        if self.prefix:
            return self._after_source(cache, text, asked_n, columns)
        positions = (text.first + asked_n).tolist()
        logits_rsv, cache = self.runtime.decode([text.tokens], cache, positions=positions)
        return logits_rsv[0][:, columns].copy(), cache

    def _after_source(
        self, cache: Any, text: Text, asked_n: Int64, columns: Columns
    ) -> tuple[Float32, Any]:
        first_rv, cache = self.decode(cache, [text.case.prompt_s])
        parts = [first_rv[:, columns]] if 0 in asked_n else []
        if len(text.generated_n):
            after = (asked_n[asked_n > 0] - 1).tolist()
            logits_rsv, cache = self.runtime.decode(
                [text.generated_n], cache, positions=after or (-1,)
            )
            parts += [logits_rsv[0][:, columns].copy()] if after else []
        return np.concatenate(parts), cache

    def stepped(
        self,
        text: Text,
        columns: Columns = ALL,
        *,
        prompt: bool = False,
        capacity: int | None = None,
    ) -> tuple[Float32, Any]:
        """Return logits as `at_once`, from one token after the other; `prompt`: after a prefill."""
        cache = self.cache([text.case], capacity or len(text))
        read = self.prefill if prompt else self.decode
        step_rv, cache = read(cache, [text.case.prompt_s])
        logits = [step_rv[:, columns]]
        for token in text.generated_n:
            step_rv, cache = self.decode(cache, one_each([token]))
            logits.append(step_rv[:, columns])
        return np.concatenate(logits), cache

    def greedy(self, case: Case, count: int) -> tuple[Text, Float32]:
        """Return the likeliest tokens after a prompt, decoded in steps, with their logits."""
        return self._generate(case, count, lambda logits_v: int(logits_v.argmax()), ALL)

    def sampled(
        self, case: Case, count: int, generator: np.random.Generator, columns: Columns = ALL
    ) -> tuple[Text, Float32]:
        """Sample tokens in steps: a random model repeats its likeliest ones, which hides errors.

        Returns logits [count + 1, columns].
        """

        def drawn(logits_v: Float32) -> int:
            return int((logits_v + generator.gumbel(size=logits_v.shape)).argmax())

        return self._generate(case, count, drawn, columns, whole=True)

    def _generate(
        self, case: Case, count: int, choose: Any, columns: Columns, *, whole: bool = False
    ) -> tuple[Text, Float32]:
        cache = self.cache([case], len(case.prompt_s) + count - (not whole))
        read = self.decode if whole else self.prefill
        step_rv, cache = read(cache, [case.prompt_s])
        logits, generated_n = [step_rv[:, columns]], []
        for i in range(count):
            generated_n.append(choose(step_rv[0]))
            if whole or i + 1 < count:
                step_rv, cache = self.decode(cache, one_each(generated_n[-1:]))
                logits.append(step_rv[:, columns])
        return Text(case, np.array(generated_n, np.int64)), np.concatenate(logits)


def driver_of(runtime: Runtime, family: Family, dimensions: Any) -> Driver:
    return Driver(
        runtime=runtime,
        vocab=dimensions.vocab_size,
        positions=family.positions(dimensions),
        one_by_one=family.one_by_one,
        prefix=family.interface == "prefix",
    )


def cases_of_recordings(model: Model, paths: Sequence[str]) -> list[Case]:
    """Return the first window of each recording, with the prompt of a transcript.

    Raises UsageError if the model takes no audio, and errors of reading recordings.
    """
    if model.task != "transcribe":
        raise UsageError("the model reads text and does not listen: give --prompts")
    from kvcast.whisper.model import WhisperModel

    if isinstance(model, WhisperModel):
        return [_window(model, path) for path in paths]
    return [_recording_case(cast("SpeechModel", model), path) for path in paths]


def cases_of_prompts(model: Model, texts: Sequence[str]) -> list[Case]:
    """Return texts as prompts or sources; UsageError for another model, or a long text."""
    if model.task != "generate":
        raise UsageError("the model listens and takes no prompts: give --audio")
    return [_prompt(cast("TextGenerator", model), text) for text in texts]


def _window(model: "WhisperModel", path: str) -> Case:
    from kvcast.audio.features import open_features
    from kvcast.whisper.requests import Features

    tokenizer = model.tokenizer
    with open_features(path, model.dimensions.n_mels) as recording:
        window = Features(recording.window(0))
    language = "en" if "en" in model.languages else next(iter(model.languages))
    tokens = tokenizer.sot_sequence(language, "transcribe", timestamps=False)
    return Case(np.array(tokens, np.int64), _source(window))


def _recording_case(model: "SpeechModel", path: str) -> Case:
    from kvcast.speech.params import TranscribeParams
    from kvcast.speech.recognition import SpeechContext
    from kvcast.speech.recordings import open_samples

    recognition = model.recognition
    with closing(open_samples(path, TranscribeParams())) as recording:
        end = min(recording.content_frames, recognition.longest)
        encoder_input = recognition.input(recording.samples(0, end))
    request = recognition.request(encoder_input)
    tokens = recognition.prompt(encoder_input.positions, SpeechContext())
    prompt = Prompt(np.array(tokens, np.int64)) if request is None else request.prompt
    return Case(prompt.tokens, _source(encoder_input))


def _prompt(model: "TextGenerator", text: str) -> Case:
    from kvcast.text.params import PromptParams

    tokens = model.prompt_tokens(text, PromptParams())
    limit = model.generation.limits.prompt
    if len(tokens) > limit:
        raise UsageError(f"a prompt has {len(tokens)} tokens and the model takes {limit}")
    read = model.generation.read(tokens)
    return Case(read.tokens, () if read.input is None else _source(read.input))


def _source(given: Input) -> tuple[NDArray[Any], ...]:
    return type(given).batch([given])
