"""Text-to-text models that are ready to generate: what `kvcast.load` returns for a T5 or a UniLM.

A text answers its source, which is read whole, and does not go on from it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from typing_extensions import override

from kvcast.decoding.prefixes import Nothing
from kvcast.decoding.readers import PromptReader, Reader, SourceReader
from kvcast.errors import UsageError
from kvcast.runtimes.base import DecoderOnly, EncoderDecoder, Float32, Int64
from kvcast.spec.options import keywords_of
from kvcast.spec.t5 import T5Dimensions
from kvcast.spec.unilm import UnilmDimensions
from kvcast.tasks.calls import Author, Limits, as_asked
from kvcast.tasks.generations import TextGeneration, TextPieces
from kvcast.tasks.params import PromptParams
from kvcast.text.base import TextTokenizer


class SourceTextModel:
    """What both kinds have in common: the methods of `kvcast.tasks.generate.TextModel`.

    Keywords are the same, but for those that are about conversations and about prompts that are
    read in parts.
    """

    task: ClassVar[Literal["generate"]] = "generate"

    def __init__(self, reader: Reader, tokenizer: TextTokenizer, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self._limits = limits
        self._author = Author(_only(reader), tokenizer, limits)

    @keywords_of(PromptParams)
    def generate(
        self, prompt: str | Sequence[str], params: PromptParams
    ) -> TextGeneration | list[Any]:
        """Answer a source, or several; see `kvcast.tasks.generate.TextModel.generate`.

        In fp32 neither `batch` nor the order of sources changes a text.

        Raises:
            UsageError: for options that cannot be served, no sources, and sources that are empty
                or too long.

        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        return as_asked(self._each(prompts, params), prompt, params.n)

    @keywords_of(PromptParams)
    def generate_each(
        self, prompts: Sequence[str], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        """Return the n texts of each source, in order, as they are done; see `generate`."""
        return self._each(prompts, params)

    @keywords_of(PromptParams)
    def stream(self, prompt: str, params: PromptParams) -> TextPieces:
        """Return an iterator of the text's pieces, which has the `result` at its end.

        Options that are about several texts stay at their defaults; see `generate`.
        """
        params.check_one_text()
        _refuse_conversation(params)
        return self._author.call(params).pieces(self._tokens(prompt))

    def _each(self, prompts: Sequence[str], params: PromptParams) -> Iterator[list[TextGeneration]]:
        _refuse_conversation(params)
        return self._author.call(params).each([self._tokens(prompt) for prompt in prompts])

    def _tokens(self, source: str) -> list[int]:
        """Return a source's tokens; raises UsageError if all of them are special."""
        tokens = self.tokenizer.encode(source)
        if tokens == self.tokenizer.encode(""):
            raise UsageError("the source is empty: give at least one word")
        return tokens


class T5Model(SourceTextModel):
    """A T5 runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5Dimensions
    ) -> None:
        super().__init__(
            SourceReader(runtime, dimensions.start_token),
            tokenizer,
            Limits(
                prompt=dimensions.source_positions,
                sequence=dimensions.target_positions,
                vocabulary=dimensions.vocab_size,
            ),
        )
        self.runtime = runtime
        self.dimensions = dimensions


class UnilmRuntime(DecoderOnly, Protocol):
    """A decoder-only runtime whose first call on an empty row reads a whole source."""

    def embed(self, sources: Sequence[Int64]) -> Float32:
        """Return what the model pools of each source, [len(sources), width]."""


class UnilmModel(SourceTextModel):
    """A UniLM runtime with its tokenizer and dimensions.

    With n above 1 the texts of a source are ranked as SimBERT's users do it: those most similar to
    the source come first, by the cosine of their embeddings. A text that is there already, or is
    the source itself, is left out, so there may be fewer than n, and always at least one.
    """

    def __init__(
        self, runtime: UnilmRuntime, tokenizer: TextTokenizer, dimensions: UnilmDimensions
    ) -> None:
        most = dimensions.max_positions
        super().__init__(
            PromptReader(Nothing(runtime), chunk=most),
            tokenizer,
            Limits(prompt=most - 1, sequence=most, vocabulary=dimensions.vocab_size),
        )
        self.runtime = runtime
        self.dimensions = dimensions

    @override
    def _each(self, prompts: Sequence[str], params: PromptParams) -> Iterator[list[TextGeneration]]:
        each = super()._each(prompts, params)
        return map(self._ranked, prompts, each) if params.n > 1 else each

    def embed(self, texts: str | Sequence[str]) -> Float32:
        """Return the embeddings of a text or several, fp32 [texts, width], as the model pools them.

        Raises UsageError for no texts, and texts that are empty or longer than the model takes.
        """
        several = [texts] if isinstance(texts, str) else texts
        if not several:
            raise UsageError("there is no text: give at least one")
        sources = [self._tokens(text) for text in several]
        for source in sources:
            replace(self._limits, prompt=self.dimensions.max_positions).check(source)
        return self._embedded(sources)

    def _embedded(self, sources: Sequence[Sequence[int]]) -> Float32:
        return self.runtime.embed([np.array(source, np.int64) for source in sources])

    def _ranked(self, source: str, texts: Sequence[TextGeneration]) -> list[TextGeneration]:
        """Return different texts, the most similar to their source first."""
        encoded = self.tokenizer.encode(source)
        itself = {source, self.tokenizer.decode(encoded)}
        different: dict[str, TextGeneration] = {}
        for text in texts:
            if text.text not in itself:
                different.setdefault(text.text, text)
        kept = list(different.values()) or [texts[0]]
        # What was written within the model's positions may not be, when it is spelled anew.
        most = self.dimensions.max_positions
        anew = [self.tokenizer.encode(text.text)[:most] for text in kept]
        embeddings_nd = self._embedded([encoded, *anew])
        embeddings_nd /= np.linalg.norm(embeddings_nd, axis=1, keepdims=True)
        similarities_n = embeddings_nd[1:] @ embeddings_nd[0]
        best_first = np.argsort(-similarities_n, kind="stable")
        return [replace(kept[i], similarity=float(similarities_n[i])) for i in best_first]


def _only(reader: Reader) -> Callable[[int | None], Reader]:
    def whole(chunk: int | None) -> Reader:
        if chunk is not None:
            raise UsageError("chunk is for prompts that are continued: a source is read whole")
        return reader

    return whole


def _refuse_conversation(params: PromptParams) -> None:
    if params.chat or params.system is not None:
        raise UsageError("this model answers a source as it is: leave out chat and system")
