"""Generates texts after prompts of token ids, for every family: requests in, texts out."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np
from typing_extensions import override

from kvcast.decoding.params import SamplingParams
from kvcast.decoding.speculative_decoding import Paired, Speculations, speculations
from kvcast.engine.callers import RequestList
from kvcast.engine.prefix_cache import PrefixCache
from kvcast.engine.requests import Prompt
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.progress_bar import ProgressBar
from kvcast.options import shown
from kvcast.runtimes.base import Int64, Runtime
from kvcast.text.beam_search import SearchedTexts
from kvcast.text.params import (
    NO_DEFAULTS,
    GenerationDefaults,
)
from kvcast.text.requests import SampledText, TextRequest, TextSpec
from kvcast.text.structured_output import Grammars
from kvcast.text.texts import StoppingCriteria, Stopwatch, TextGeneration, TextStream
from kvcast.tokenizers.base import TextTokenizer

T = TypeVar("T")
TextPrompt: TypeAlias = str | Sequence[int] | Int64
"""Text, or token ids, which are used unchanged."""


def is_one_prompt(prompt: Any) -> bool:
    if isinstance(prompt, (str, Mapping)):
        return True
    if (
        isinstance(prompt, bytes)
        or not hasattr(prompt, "__len__")
        or getattr(prompt, "shape", None) == ()
    ):
        raise UsageError(f"a prompt is text, or a sequence of token ids, not {shown(prompt)}")
    return len(prompt) > 0 and all(isinstance(token, Integral) for token in prompt)


@dataclass(frozen=True, eq=False)
class EncodedText:
    """A text and its tokens, from `TextGenerator.encoded`, to encode it only once."""

    text: str
    tokens: Int64


@dataclass(frozen=True, kw_only=True)
class Limits:
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

    def ids(self, prompt: Sequence[int] | Int64) -> Int64:
        """Return a user's token ids; raises UsageError if they exceed the vocabulary."""
        if isinstance(prompt, Mapping):
            raise UsageError("messages are answered by model.chat(messages), which takes a list")
        tokens = np.asarray(prompt)
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise UsageError("a prompt is text, or a sequence of token ids")
        if (foreign := tokens[(tokens < 0) | (tokens >= self.vocabulary)]).size:
            raise UsageError(
                f"the model has no token {foreign[0]}: give ids from 0 to {self.vocabulary - 1}"
            )
        return tokens.astype(np.int64)

    def known(self, tokens: Sequence[int]) -> Int64:
        """Return a tokenizer's tokens; raises KvcastError if they exceed the vocabulary."""
        if (last := max(tokens, default=0)) >= self.vocabulary:
            raise KvcastError(
                f"the tokenizer has a token {last}, but the model only {self.vocabulary} tokens: "
                "the files belong to two models"
            )
        return np.array(tokens, np.int64)


class TextPieces(TextStream):
    def __init__(self, request: SampledText, scheduler: Scheduler) -> None:
        self._request = request
        self._caller = RequestList([request])
        self._scheduler = scheduler
        self._shown = 0
        scheduler.add(self._caller)

    @override
    def __next__(self) -> str:
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

    @override
    def __repr__(self) -> str:
        text = self._request.text
        return f"<TextPieces: {len(text.tokens)} tokens, {text.finish_reason or 'not done'}>"

    @property
    @override
    def result(self) -> TextGeneration:
        return self._request.generations()[0]


@dataclass(frozen=True, kw_only=True)
class GenerationTask:
    """Generates texts; raises KvcastError for an end token that the model does not have."""

    runtime: Runtime
    tokenizer: TextTokenizer
    limits: Limits
    family: str
    read: Callable[[Int64], Prompt]
    grammars: Grammars
    held: int = 0
    encodes: bool = False
    # a text continues its prompt in one sequence, so prompts may share a prefix
    continues: bool = False
    chunk: int | None = None  # default of most prompt tokens in one call; None reads it whole
    defaults: GenerationDefaults = NO_DEFAULTS

    def __post_init__(self) -> None:
        self.limits.known(self.tokenizer.end_tokens)

    def each(
        self, prompts: Sequence[Int64], params: SamplingParams
    ) -> Iterator[list[TextGeneration]]:
        """Yield the texts of each prompt, in order, once done; they share its computation.

        Raises UsageError for no prompt, or one that is empty, or too long for the model.
        """
        if not prompts:
            raise UsageError("there is no prompt: give at least one")
        watch, drafts = Stopwatch(), speculations(params.draft, self.paired)
        specs = [self._spec(prompt, params, watch, drafts) for prompt in prompts]
        texts = self._texts(prompts, specs, params)
        return _watched(texts, len(prompts)) if params.progress else texts

    def pieces(self, prompt: Int64, params: SamplingParams) -> TextPieces:
        watch, drafts = Stopwatch(), speculations(params.draft, self.paired)
        request = SampledText(self._spec(prompt, params, watch, drafts))
        return TextPieces(request, self._scheduler([request.spec], params))

    def requests(self, tokens: Int64, params: SamplingParams) -> list[TextRequest]:
        """Return requests for the texts of one prompt, for a shared scheduler. Raises as `each`."""
        drafts = speculations(params.draft, self.paired)
        spec = self._spec(tokens, params, Stopwatch(), drafts)
        if params.beam > 1:
            return [SearchedTexts(spec)]
        return [SampledText(spec, stream) for stream in range(params.n)]

    def within(self, capacity: int) -> Self:
        limits = self.limits
        if capacity >= limits.sequence:
            return self
        longest = limits.prompt if self.encodes else min(limits.prompt, capacity - 1)
        return replace(self, limits=replace(limits, sequence=capacity, prompt=longest))

    def prefixes(self, rows: int, capacity: int) -> PrefixCache | None:
        """Return an empty prefix cache; None for bidirectional sources, which share no prefix."""
        if not self.continues:
            return None
        return PrefixCache(rows, capacity, prompts_differ=self.runtime.prompts_differ)

    @cached_property
    def paired(self) -> Paired:
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
            # A text's seed depends on how often the same prompt came before, and on no other
            # prompts: their order does not matter.
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


def _watched(texts: Iterator[T], prompts: int) -> Iterator[T]:
    bar = ProgressBar("generating", prompts, "prompts")
    try:
        for done, each in enumerate(texts, start=1):
            bar.reach(done)
            yield each
    finally:
        bar.close()
