"""Generates texts for every family: prompts in, requests to a scheduler, texts out.

`kvcast.text.model` and `kvcast.text.text2text` add how their families encode and read a prompt.

"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

import numpy as np

from kvcast.decoding.params import SamplingParams
from kvcast.decoding.speculative_decoding import Paired, Speculations, speculations
from kvcast.engine.callers import RequestList
from kvcast.engine.memory import fitting
from kvcast.engine.prefix_cache import PrefixCache
from kvcast.engine.requests import Prompt
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError, UsageError
from kvcast.options import keywords_of
from kvcast.runtimes.base import Int64, Runtime, exclusive
from kvcast.text.params import (
    NO_DEFAULTS,
    GenerationDefaults,
    PromptParams,
    completed,
    completed_alone,
)
from kvcast.text.requests import SampledText, SearchedTexts, TextRequest, TextSpec
from kvcast.text.sentences import JoinedPieces, Part, joined
from kvcast.text.structured_output import Grammars
from kvcast.text.texts import StoppingCriteria, Stopwatch, TextGeneration
from kvcast.tokenizers.base import TextTokenizer

if TYPE_CHECKING:
    from kvcast.text.caller import TextCaller

TextPrompt: TypeAlias = str | Sequence[int]
"""Text, or token ids that are taken as they are."""


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text and its tokens, which `TextGenerator.encoded` returns: it is not encoded again."""

    text: str
    tokens: Int64


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a model.

    Attributes:
        prompt: most tokens of a prompt, or of a source.
        sequence: most tokens of a text and its prompt, where they are one sequence.
        vocabulary: number of tokens to choose from.

    """

    prompt: int
    sequence: int
    vocabulary: int

    def check(self, tokens: Int64, held: int = 0) -> None:
        """Raise UsageError for a prompt, `held` tokens and these, that is empty or too long."""
        length = held + len(tokens)
        if not length:
            raise UsageError("the prompt is empty: give at least one character")
        if length > self.prompt:
            raise UsageError(
                f"the prompt has {length} tokens and the model takes {self.prompt} "
                "at most: shorten it"
            )

    def ids(self, prompt: Sequence[int]) -> Int64:
        """Return a user's token ids; raises UsageError for ids that the model does not have."""
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise UsageError("a prompt is text, or a sequence of token ids")
        if (foreign := tokens[(tokens < 0) | (tokens >= self.vocabulary)]).size:
            raise UsageError(
                f"the model has no token {foreign[0]}: give ids from 0 to {self.vocabulary - 1}"
            )
        return tokens.astype(np.int64)

    def known(self, tokens: Sequence[int]) -> Int64:
        """Return a tokenizer's tokens; raises KvcastError for one that the model does not have."""
        if (last := max(tokens, default=0)) >= self.vocabulary:
            raise KvcastError(
                f"the tokenizer has a token {last}, but the model only {self.vocabulary} tokens: "
                "the files belong to two models"
            )
        return np.array(tokens, np.int64)


class TextPieces(Iterator[str]):
    """Pieces of one text, generated while they are taken; can be taken once."""

    def __init__(self, request: SampledText, scheduler: Scheduler) -> None:
        self._request = request
        self._caller = RequestList([request])
        self._scheduler = scheduler
        self._shown = 0
        scheduler.add(self._caller)

    def __next__(self) -> str:
        """Generate until some text is certain."""
        pieces = self._request.text.pieces
        while True:
            while self._shown < len(pieces):
                self._shown += 1
                if piece := pieces[self._shown - 1]:
                    return piece
            if self._caller.error is not None:
                raise self._caller.error
            if self._caller.over:
                raise StopIteration
            self._scheduler.step()

    @property
    def result(self) -> TextGeneration:
        """The whole text, once the last piece was taken; raises KvcastError before."""
        return self._request.generations()[0]


@dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """Writes texts after prompts of token ids.

    Attributes:
        runtime: runs the model.
        tokenizer: of the model.
        limits: of the model.
        family: the kind of model; models of one kind read prompts alike.
        read: returns the content of a row before the text, for the tokens of a prompt.
        grammars: compiles grammars for its texts.
        held: how many tokens precede every prompt.
        encodes: whether an encoder reads the prompt.
        continues: whether a text continues its prompt in one sequence, so that prompts may share a
            cached prefix.
        chunk: most tokens of a prompt in one call, where none is given; None reads it whole.
        defaults: values that the model's files recommend.

    Raises:
        KvcastError: for a token that ends texts and that the model does not have.

    """

    runtime: Runtime
    tokenizer: TextTokenizer
    limits: Limits
    family: str
    read: Callable[[Int64], Prompt]
    grammars: Grammars
    held: int = 0
    encodes: bool = False
    continues: bool = False
    chunk: int | None = None
    defaults: GenerationDefaults = NO_DEFAULTS

    def __post_init__(self) -> None:
        self.limits.known(self.tokenizer.end_tokens)

    def each(
        self, prompts: Sequence[Int64], params: SamplingParams
    ) -> Iterator[list[TextGeneration]]:
        """Return the texts of each prompt, in order, as they are done.

        Several texts of one prompt share its computation.

        Raises:
            UsageError: for no prompt, or one that is empty, or too long for the model.

        """
        if not prompts:
            raise UsageError("there is no prompt: give at least one")
        watch, drafts = Stopwatch(), speculations(params.draft, self.paired)
        specs = [self._spec(prompt, params, watch, drafts) for prompt in prompts]
        return self._texts(prompts, specs, params)

    def pieces(self, prompt: Int64, params: SamplingParams) -> TextPieces:
        """Return the pieces of one text; raises as `each`."""
        watch, drafts = Stopwatch(), speculations(params.draft, self.paired)
        request = SampledText(self._spec(prompt, params, watch, drafts))
        return TextPieces(request, self._scheduler([request.spec], params))

    def requests(self, tokens: Int64, params: SamplingParams) -> list[TextRequest]:
        """Return requests for the texts of one prompt, for a shared scheduler.

        Each reads the prompt itself, or finds it in a row. Raises as `each`.
        """
        drafts = speculations(params.draft, self.paired)
        spec = self._spec(tokens, params, Stopwatch(), drafts)
        if params.beam > 1:
            return [SearchedTexts(spec)]
        return [SampledText(spec, stream) for stream in range(params.n)]

    def within(self, capacity: int) -> Self:
        """Return a task that writes into rows of this capacity."""
        limits = self.limits
        if capacity >= limits.sequence:
            return self
        longest = limits.prompt if self.encodes else min(limits.prompt, capacity - 1)
        return replace(self, limits=replace(limits, sequence=capacity, prompt=longest))

    def prefixes(self, rows: int, capacity: int) -> PrefixCache | None:
        """Return an empty prefix cache for that many rows.

        None for a model that reads a source in both directions: nothing of it serves another one.
        """
        if not self.continues:
            return None
        return PrefixCache(rows, capacity, prompts_differ=self.runtime.prompts_differ)

    @cached_property
    def paired(self) -> Paired:
        """The model as one that drafts for another, or that another drafts for."""
        return Paired(
            runtime=self.runtime,
            family=self.family,
            vocabulary=self.tokenizer,
            tokens=self.limits.vocabulary,
            longest=self.limits.sequence,
            chunk=self.chunk,
        )

    def _spec(
        self,
        tokens: Int64,
        params: SamplingParams,
        watch: Stopwatch,
        drafts: Speculations | None,
    ) -> TextSpec:
        self.limits.check(tokens, self.held)
        vocabulary = self.limits.vocabulary
        if params.beam > vocabulary:
            raise UsageError(
                f"beam must be at most {vocabulary}, the model's tokens, not {params.beam}"
            )
        if (last := max(params.biases, default=0)) >= vocabulary:
            raise UsageError(
                f"logit_bias: the model has no token {last}: give ids from 0 to {vocabulary - 1}"
            )
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            forced = getattr(params, name)
            if forced is not None and forced >= vocabulary:
                raise UsageError(
                    f"{name}: the model has no token {forced}: give an id from 0 to "
                    f"{vocabulary - 1}"
                )
        suppressed = chain(params.suppress_tokens, *params.suppress_sequences)
        if (last := max(suppressed, default=0)) >= vocabulary:
            raise UsageError(f"suppressed tokens: the model has no token {last}")
        prompt = self.read(tokens)
        room = self.limits.sequence - prompt.length
        grammar = params.constraint
        return TextSpec(
            prompt=prompt,
            prompt_tokens=self.held + len(tokens),
            params=params,
            criteria=StoppingCriteria.of(params, self.tokenizer.end_tokens, room),
            tokenizer=self.tokenizer,
            watch=watch,
            speculations=drafts,
            grammar=None if grammar is None else self.grammars.begin(grammar, prompt.last),
        )

    def _texts(
        self, prompts: Sequence[Int64], specs: Sequence[TextSpec], params: SamplingParams
    ) -> Iterator[list[TextGeneration]]:
        groups: list[list[TextRequest]] = []

        def requests() -> Iterator[TextRequest]:
            # A text's random numbers depend on how often the same prompt came before, and on
            # nothing else of its neighbours: the order of prompts does not matter.
            repeated: Counter[bytes] = Counter()
            for tokens, spec in zip(prompts, specs, strict=True):
                first = repeated[tokens.tobytes()]
                repeated[tokens.tobytes()] += params.n
                groups.append(self._requests(spec, first))
                yield from groups[-1]

        done = 0
        scheduler, caller = self._scheduler(specs, params), RequestList(requests())
        scheduler.add(caller)
        while not caller.over:
            scheduler.step()
            if caller.error is not None:  # its request is done, and has no texts
                raise caller.error
            while done < len(groups) and all(request.done for request in groups[done]):
                yield [text for request in groups[done] for text in request.generations()]
                done += 1

    def _requests(self, spec: TextSpec, first: int) -> list[TextRequest]:
        params = spec.params
        if params.beam > 1:
            return [SearchedTexts(spec)]
        if params.n > 1:
            chunk = params.chunk or self.chunk
            spec = replace(spec, prompt=spec.prompt.shared(self.runtime, chunk))
        return [SampledText(spec, stream) for stream in range(first, first + params.n)]

    def _scheduler(self, specs: Sequence[TextSpec], params: SamplingParams) -> Scheduler:
        texts = len(specs) * (params.n if params.beam == 1 else 1)
        encodes = specs[0].prompt.input is not None
        return Scheduler(
            self.runtime,
            rows=min(params.batch, texts) * params.beam,
            capacity=max(spec.capacity for spec in specs),
            inputs=min(params.batch, len(specs)) if encodes else 0,
            chunk=params.chunk or self.chunk,
        )


class TextGenerator(ABC):
    """A model that turns prompts into texts, with its tokenizer."""

    task: ClassVar[Literal["generate"]] = "generate"

    def __init__(self, generation: GenerationTask) -> None:
        self.runtime = generation.runtime
        self.tokenizer = generation.tokenizer
        self.generation = generation
        self._limits = generation.limits

    @property
    def defaults(self) -> GenerationDefaults:
        """Values of options that the model's generation_config.json recommends."""
        return self.generation.defaults

    def recommend(self, defaults: GenerationDefaults) -> None:
        """Take these values where a call leaves its options open."""
        self.generation = replace(self.generation, defaults=defaults)

    @property
    def paired(self) -> Paired:
        """The model as one that drafts for another, or that another drafts for."""
        return self.generation.paired

    @property
    def notices(self) -> Sequence[str]:
        """Lines for users about the model's files."""
        return self.tokenizer.notices

    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        """Return an engine's scheduler; see `kvcast.engine.engine.Model`."""
        generation = self.generation
        sizes = fitting(
            generation.runtime.row_bytes,
            longest=generation.limits.sequence,
            rows=rows,
            budget=budget,
            fixed=self.input_bytes,
        )
        return Scheduler(
            generation.runtime,
            rows=sizes.rows,
            capacity=sizes.capacity,
            inputs=sizes.rows if generation.encodes else 0,
            chunk=chunk if generation.chunk else None,
            turn=chunk,
            prefixes=generation.prefixes(sizes.rows, sizes.capacity),
            cache_bytes=sizes.bytes,
        )

    def caller(
        self, given: TextPrompt, options: Mapping[str, Any], scheduler: Scheduler
    ) -> "TextCaller":
        """Return the texts of a prompt as an engine's caller; raises as `generate`."""
        from kvcast.text.caller import TextCaller

        params = self.understood(given, self.defaults.params(PromptParams, options))
        if params.beam > scheduler.rows:
            raise UsageError(f"beam must be at most {scheduler.rows}, the rows of the engine")
        generation = self.generation.within(scheduler.capacity)
        parts = self.parts(given, params, generation.limits.prompt)
        requests = [
            request for part in parts for request in generation.requests(part.tokens, params)
        ]

        def finished(texts: list[TextGeneration]) -> list[TextGeneration]:
            each = len(texts) // len(parts)
            whole = _joined(parts, [texts[i : i + each] for i in range(0, len(texts), each)])
            with exclusive(self.runtime):
                return self.finished(given, whole, params)

        return TextCaller(requests, params, finished, len(parts))

    @keywords_of(PromptParams, completed)
    def generate(
        self, prompt: TextPrompt | Sequence[TextPrompt], params: PromptParams
    ) -> TextGeneration | list[Any]:
        """Continue a prompt, or several; a T5, BART or UniLM answers its source.

        In fp32 neither `batch` nor `chunk` nor the order of prompts changes a text; in int8 what
        is multiplied in one call shares a scale. A text that has no room for `max_new_tokens`
        within what the model takes ends sooner, for its length.

        Args:
            prompt: text, or token ids that are taken as they are; or several of them.
            params: given as keywords.

        Returns:
            For one prompt a text, for several a list in their order; with n above 1 a list of n
            takes the place of each text.

        Raises:
            UsageError: for options that cannot be served, no prompts, prompts that are empty or
                too long, and token ids that the model does not have.

        """
        alone = is_one_prompt(prompt)
        prompts: Sequence[Any] = [prompt] if alone else prompt
        generations: list[Any] = []
        for texts in self._each(prompts, params):
            generations.append(texts if params.n > 1 else texts[0])
        return generations[0] if alone else generations

    @keywords_of(PromptParams, completed)
    def generate_each(
        self, prompts: Sequence[TextPrompt], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        """Return the n texts of each prompt, in order, as they are done; see `generate`."""
        return self._each(prompts, params)

    @keywords_of(PromptParams, completed_alone)
    def stream(self, prompt: TextPrompt, params: PromptParams) -> TextPieces | JoinedPieces:
        """Return an iterator of the text's pieces, which has the `result` at its end.

        Options for several texts stay at their defaults, whatever the model's files recommend; see
        `generate`.
        """
        params.check_one_text()
        params = self.understood(prompt, params)
        parts = self.parts(prompt, params, self._limits.prompt)
        if len(parts) == 1:
            return self.generation.pieces(parts[0].tokens, params)
        return JoinedPieces(parts, lambda tokens: self.generation.pieces(tokens, params))

    def understood(
        self,
        prompt: TextPrompt | EncodedText,  # noqa: ARG002
        params: PromptParams,
    ) -> PromptParams:
        """Return the options of a prompt's texts, as the model understands them."""
        if params.source_language is not None or params.target_language is not None:
            raise UsageError("this model does not translate: leave out languages")
        return params

    def parts(
        self,
        prompt: TextPrompt | EncodedText,
        params: PromptParams,
        longest: int,  # noqa: ARG002
    ) -> list[Part]:
        """Return the parts of a prompt of at most so many tokens, which have texts of their own."""
        if params.sentences:
            raise UsageError("this model continues a text: leave out sentences")
        return [Part(tokens=self.prompt_tokens(prompt, params))]

    @abstractmethod
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        """Return a prompt's tokens; raises UsageError for a prompt that the model cannot take."""

    def encoded(self, text: str, *, special_tokens: bool = False) -> EncodedText:
        """Return a text as a prompt whose tokens are known; raises as `prompt_tokens`."""
        params = PromptParams(special_tokens=special_tokens)
        return EncodedText(text, self.prompt_tokens(text, params))

    @property
    def input_bytes(self) -> int:
        """Bytes that the cache takes at most for an encoded prompt; 0 without an encoder."""
        return 0

    def finished(
        self,
        prompt: TextPrompt | EncodedText,  # noqa: ARG002
        texts: list[TextGeneration],
        params: PromptParams,  # noqa: ARG002
    ) -> list[TextGeneration]:
        """Return the texts of a prompt as callers get them, once all of them are over."""
        return texts

    def _each(
        self, prompts: Sequence[TextPrompt], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        if not prompts:
            raise UsageError("there is no prompt: give at least one")
        understood = [self.understood(prompt, params) for prompt in prompts]
        parts = [self.parts(prompt, params, self._limits.prompt) for prompt in prompts]
        # What is understood is the same for all that are texts.
        tokens = [part.tokens for some in parts for part in some]
        each = self.generation.each(tokens, understood[0])
        if len(tokens) > len(prompts):
            each = _whole(parts, each)
        return map(self.finished, prompts, each, understood)


def _whole(
    parts: Sequence[Sequence[Part]], each: Iterator[list[TextGeneration]]
) -> Iterator[list[TextGeneration]]:
    """Yield the texts of each prompt, from those of all parts in order."""
    for some in parts:
        yield _joined(some, list(islice(each, len(some))))


def _joined(parts: Sequence[Part], texts: Sequence[list[TextGeneration]]) -> list[TextGeneration]:
    """Return the texts of a prompt, whose parts have as many each."""
    return [joined(parts, several) for several in zip(*texts, strict=True)]


def is_one_prompt(prompt: TextPrompt | Sequence[TextPrompt]) -> bool:
    """Tell one prompt from several."""
    return isinstance(prompt, str) or (
        len(prompt) > 0 and all(isinstance(token, Integral) for token in prompt)
    )
