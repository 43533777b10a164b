"""Text-to-text models that are ready to generate: what `kvcast.load` returns for a T5 or a UniLM.

A text answers its source, which is read whole, and does not go on from it. Knows no file format
and no runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Input, Prompt
from kvcast.errors import UsageError
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.runtimes.base import EncoderDecoder, Float32, Int32, Int64, Runtime
from kvcast.runtimes.exclusive import exclusive
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextGenerator,
    TextPrompt,
)
from kvcast.text.grammars import Grammars
from kvcast.text.params import PromptParams
from kvcast.text.texts import TextGeneration
from kvcast.tokenizers.base import TextTokenizer


class SourceTextModel(TextGenerator):
    """What both kinds have in common.

    Keywords are those of `kvcast.text.model.TextModel`, but for those that are about
    conversations and about prompts that are read in parts.
    """

    @override
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        if params.chat or params.system is not None:
            raise UsageError("this model answers a source as it is: leave out chat and system")
        if params.chunk is not None:
            raise UsageError("chunk is for prompts that are continued: a source is read whole")
        return self._encoded(prompt)

    def _encoded(self, source: TextPrompt | EncodedText) -> Int64:
        """Return a source's tokens; raises UsageError if all of them are special."""
        if isinstance(source, EncodedText):
            return source.tokens
        if not isinstance(source, str):
            return self._limits.ids(source)
        tokens = self.tokenizer.encode(source)
        if tokens == self.tokenizer.encode(""):
            raise UsageError("the source is empty: give at least one word")
        return self._limits.known(tokens)


@dataclass(frozen=True, eq=False)
class Source(Input):
    """Tokens [t] of a source."""

    tokens: Int64

    @property
    @override
    def positions(self) -> int:
        return len(self.tokens)

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Int64, Int32]:
        lengths_b = np.array([len(source.tokens) for source in inputs], np.int32)
        tokens_bt = np.zeros((len(inputs), lengths_b.max()), np.int64)
        for tokens_t, source in zip(tokens_bt, inputs, strict=True):
            tokens_t[: len(source.tokens)] = source.tokens
        return tokens_bt, lengths_b


class T5Model(SourceTextModel):
    """A T5 runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5Dimensions
    ) -> None:
        start = np.array([dimensions.start_token], np.int64)
        limits = Limits(
            prompt=dimensions.source_positions,
            sequence=dimensions.target_positions,
            vocabulary=dimensions.vocab_size,
        )
        super().__init__(
            GenerationTask(
                runtime=runtime,
                tokenizer=tokenizer,
                limits=limits,
                family="T5",
                read=lambda tokens: Prompt(start, input=Source(tokens)),
                encodes=True,
                grammars=Grammars(tokenizer, limits.vocabulary),
            )
        )
        self.dimensions = dimensions

    @property
    @override
    def input_bytes(self) -> int:
        sizes = self.dimensions
        numbers = 2 * sizes.decoder_layers * sizes.heads * sizes.head_dim * sizes.source_positions
        return 4 * numbers  # in fp32; there may be narrower ones


class UnilmRuntime(Runtime, Protocol):
    """A runtime whose first call on an empty row reads a whole source."""

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
        limits = Limits(prompt=most - 1, sequence=most, vocabulary=dimensions.vocab_size)
        super().__init__(
            GenerationTask(
                runtime=runtime,
                tokenizer=tokenizer,
                limits=limits,
                family="UniLM",
                read=Prompt,
                grammars=Grammars(tokenizer, limits.vocabulary),
            )
        )
        self.runtime: UnilmRuntime = runtime
        self.dimensions = dimensions

    @override
    def finished(
        self, prompt: TextPrompt | EncodedText, texts: list[TextGeneration], params: PromptParams
    ) -> list[TextGeneration]:
        return self._ranked(prompt, texts) if params.n > 1 else texts

    def embed(self, texts: str | Sequence[TextPrompt | EncodedText]) -> Float32:
        """Return the embeddings of a text or several, fp32 [texts, width], as the model pools them.

        A text's tokens may stand for it.

        Raises UsageError for no texts, and texts that are empty or longer than the model takes.
        """
        several = [texts] if isinstance(texts, str) else texts
        if not several:
            raise UsageError("there is no text: give at least one")
        sources = [self._encoded(text) for text in several]
        for source in sources:
            replace(self._limits, prompt=self.dimensions.max_positions).check(source)
        with exclusive(self.runtime):
            return self.runtime.embed(sources)

    def _ranked(
        self, source: TextPrompt | EncodedText, texts: Sequence[TextGeneration]
    ) -> list[TextGeneration]:
        """Return different texts, the most similar to their source first."""
        encoded = self._encoded(source)
        itself = [self.tokenizer.decode(encoded.tolist())]
        if isinstance(source, (str, EncodedText)):
            itself.append(source if isinstance(source, str) else source.text)
        different: dict[str, TextGeneration] = {}
        for text in texts:
            if text.text not in itself:
                different.setdefault(text.text, text)
        kept = list(different.values()) or [texts[0]]
        # Encoding a text again may give more tokens than the model has positions.
        most = self.dimensions.max_positions
        anew = [self._limits.known(self.tokenizer.encode(text.text)[:most]) for text in kept]
        embeddings_nd = self.runtime.embed([encoded, *anew])
        embeddings_nd /= np.linalg.norm(embeddings_nd, axis=1, keepdims=True)
        similarities_n = embeddings_nd[1:] @ embeddings_nd[0]
        best_first = np.argsort(-similarities_n, kind="stable")
        return [replace(kept[i], similarity=float(similarities_n[i])) for i in best_first]
