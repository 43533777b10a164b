"""Models that `kvcast.load` returns to embed texts, and to rank documents for a query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Never

import numpy as np
from typing_extensions import override

from kvcast.engine.model import Model
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.families.text_encoder import TextEncoderDimensions
from kvcast.keywords import keywords_of
from kvcast.options import shown
from kvcast.runtimes.base import Float32, exclusive
from kvcast.runtimes.text_encoder import EncodedSource, TextEncoderRuntime
from kvcast.text.generation import Limits, TextPrompt, is_one_prompt
from kvcast.text.params import EmbedParams, RerankParams
from kvcast.tokenizers.encoder import EncoderTokenizer


class EncoderModel(Model):
    """A runtime with its tokenizer and dimensions."""

    dimensions: TextEncoderDimensions

    def __init__(
        self,
        runtime: TextEncoderRuntime,
        tokenizer: EncoderTokenizer,
        dimensions: TextEncoderDimensions,
    ) -> None:
        self.runtime: TextEncoderRuntime = runtime
        self.tokenizer: EncoderTokenizer = tokenizer
        self.dimensions = dimensions
        longest = dimensions.longest
        self._limits = Limits(prompt=longest, sequence=longest, vocabulary=dimensions.vocab_size)

    @property
    def longest_text(self) -> int:
        """Most tokens of a text, or of a pair."""
        return self.dimensions.longest

    @override
    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        """Return one of an empty cache: work comes through `Engine.run`."""
        runtime: Any = self.runtime
        return Scheduler(runtime, rows=1, capacity=self.dimensions.longest)

    @override
    def caller(self, given: Any, options: Mapping[str, Any], scheduler: Scheduler) -> Never:
        raise UsageError(f"{type(self).__name__} generates no text: call it with Engine.run")

    @property
    @override
    def notices(self) -> Sequence[str]:
        return self.tokenizer.notices

    @property
    @override
    def _described(self) -> str:
        sizes = f"vectors of {self.dimensions.outputs}, texts of {self.dimensions.longest} tokens"
        return f"{family_with(self.dimensions).title}, {self.dimensions.architecture}, {sizes}"

    def _encoded(self, *texts: str, truncate: bool) -> EncodedSource:
        most = self.dimensions.longest
        encoded = self.tokenizer.encode_texts(*texts, most=most if truncate else None)
        tokens = self._limits.known(encoded.tokens)
        return EncodedSource(tokens, np.array(encoded.segments, np.int64))

    def _vectors(self, sources: Sequence[EncodedSource], what: str) -> Float32:
        most, longest = self.dimensions.longest, max(map(len, sources))
        if longest > most:
            raise UsageError(
                f"{what} {longest} tokens and the model takes {most} at most: shorten it, or let "
                "truncate cut it"
            )
        with exclusive(self.runtime):
            return self.runtime.vectors(sources)


class EmbeddingModel(EncoderModel):
    """A text encoder: texts to vectors."""

    task: ClassVar[Literal["embed"]] = "embed"

    @property
    def prompts(self) -> Mapping[str, str]:
        """Texts to put before queries, documents and so on, by the names of these."""
        return self.tokenizer.prompts

    @keywords_of(EmbedParams)
    def embed(
        self, texts: str | Sequence[TextPrompt | EncodedSource], params: EmbedParams
    ) -> Float32:
        """Return the vectors of texts, or of their tokens, fp32 [texts, dimensions].

        A text's vector does not depend on the others.

        Args:
            texts: one or several; token ids are used unchanged, special ones included.
            params: given as keywords.

        Raises:
            UsageError: for no texts, an empty one, or one that is longer than the model takes.

        """
        several: Any = [texts] if is_one_prompt(texts) else texts
        if not len(several):
            raise UsageError("there is no text: give at least one")
        check_dimensions(params.dimensions, self.dimensions.outputs)
        sources = [self.source(text, params) for text in several]
        vectors_nd = self._vectors(sources, "a text has")
        return shortened(vectors_nd, params.dimensions, normalized=self.dimensions.normalized)

    def source(self, text: TextPrompt | EncodedSource, params: EmbedParams) -> EncodedSource:
        """Return the tokens of a text behind its prompt, which may be too many."""
        if isinstance(text, EncodedSource):
            return text
        if isinstance(text, str):
            prompt = chosen_prompt(self.prompts, self.tokenizer.default_prompt, params)
            return self._encoded(prompt + text, truncate=params.truncate)
        tokens = self._limits.ids(text)
        if not len(tokens):
            raise UsageError("a text is empty: give at least one token")
        if params.truncate:
            tokens = tokens[: self.dimensions.longest]
        return EncodedSource(tokens, np.zeros_like(tokens))


@dataclass(frozen=True, kw_only=True)
class RankedDocument:
    index: int  # of the document among those given
    relevance_score: float  # from 0 to 1


class RerankingModel(EncoderModel):
    """A cross-encoder: the relevance of documents for a query."""

    task: ClassVar[Literal["rerank"]] = "rerank"

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate: bool = False,
    ) -> list[RankedDocument]:
        """Return documents, the most relevant first; of equal ones the first.

        Args:
            query: what is asked.
            documents: one or several.
            top_n: documents to return, the best ones; None: all.
            truncate: cut the end of a document that with the query is longer than the model takes,
                instead of refusing it.

        Raises:
            UsageError: for no documents, and for a query or a document that is too long.

        """
        params = RerankParams(top_n=top_n, truncate=truncate)
        if isinstance(documents, str) or not len(documents):
            raise UsageError("documents must list one text or more")
        pairs = [self.pair(query, document, params) for document in documents]
        return best_first(self.scores(pairs), params.top_n)

    def pair(self, query: str, document: str, params: RerankParams) -> EncodedSource:
        """Return the tokens of a query and a document, which may be too many."""
        for name, text in (("query", query), ("a document", document)):
            if not isinstance(text, str):
                raise UsageError(f"{name} must be a string, not {shown(text)}")
        return self._encoded(query, document, truncate=params.truncate)

    def scores(self, pairs: Sequence[EncodedSource]) -> Float32:
        """Return the logits of pairs, fp32 [pairs]."""
        return self._vectors(pairs, "the query with a document has")[:, 0]


def best_first(scores: Float32, top_n: int | None) -> list[RankedDocument]:
    order = np.argsort(-scores, kind="stable")[:top_n]
    relevance = 1 / (1 + np.exp(-scores.astype(np.float64)))
    return [RankedDocument(index=int(i), relevance_score=float(relevance[i])) for i in order]


def chosen_prompt(prompts: Mapping[str, str], default: str | None, params: EmbedParams) -> str:
    """Return the text to put before a text; raises UsageError for an unknown name."""
    if params.prompt is not None:
        return params.prompt
    name = default if params.prompt_name is None else params.prompt_name
    if name is None:
        return ""
    if name not in prompts:
        known = f"one of {', '.join(prompts)}" if prompts else "it has none, leave it out"
        raise UsageError(f"the model has no prompt {name[:40]!r}: {known}")
    return prompts[name]


def check_dimensions(dimensions: int | None, most: int) -> None:
    if dimensions is not None and dimensions > most:
        raise UsageError(f"dimensions is {dimensions}, and the model's vectors have {most}")


def shortened(vectors_nd: Float32, dimensions: int | None, *, normalized: bool) -> Float32:
    """Return the first `dimensions` of vectors (None: all), of length 1 if these are fewer.

    Matryoshka representations, Kusupati et al. 2022, arXiv:2205.13147.
    """
    if not normalized and dimensions in (None, vectors_nd.shape[1]):
        return vectors_nd
    kept_nd = vectors_nd[:, :dimensions]
    lengths = np.linalg.norm(kept_nd, axis=1, keepdims=True)
    return np.asarray(kept_nd / np.maximum(lengths, 1e-12), np.float32)
