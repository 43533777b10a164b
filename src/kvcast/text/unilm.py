"""The UniLM model that `kvcast.load` returns, ready to generate and to embed.

Knows no file format and no runtime.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Prompt
from kvcast.errors import UsageError
from kvcast.families.unilm import UnilmDimensions
from kvcast.runtimes.base import Float32, PrefixRuntime
from kvcast.runtimes.exclusive import exclusive
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextPrompt,
)
from kvcast.text.grammars import Grammars
from kvcast.text.params import PromptParams
from kvcast.text.sources import SourceTextModel
from kvcast.text.texts import TextGeneration
from kvcast.tokenizers.base import TextTokenizer


class UnilmModel(SourceTextModel):
    """A UniLM runtime with its tokenizer and dimensions.

    With n above 1 the texts of a source are ranked as SimBERT's users do it: those most similar to
    the source come first, by the cosine of their embeddings. Duplicates and copies of the source
    are left out, so there may be fewer than n, and always at least one.
    """

    def __init__(
        self, runtime: PrefixRuntime, tokenizer: TextTokenizer, dimensions: UnilmDimensions
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
        self.runtime: PrefixRuntime = runtime
        self.dimensions = dimensions

    @override
    def finished(
        self, prompt: TextPrompt | EncodedText, texts: list[TextGeneration], params: PromptParams
    ) -> list[TextGeneration]:
        return self._ranked(prompt, texts) if params.n > 1 else texts

    def embed(self, texts: str | Sequence[TextPrompt | EncodedText]) -> Float32:
        """Return the embeddings of a text or several, fp32 [texts, width], as the model pools them.

        A text may be given by its tokens.

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
        read = [i for i, tokens in enumerate(anew) if len(tokens)]
        similarities_n = np.zeros(len(kept), np.float32)  # a text without tokens is like nothing
        if read:
            embeddings_nd = self.runtime.embed([encoded, *(anew[i] for i in read)])
            embeddings_nd /= np.linalg.norm(embeddings_nd, axis=1, keepdims=True)
            similarities_n[read] = embeddings_nd[1:] @ embeddings_nd[0]
        best_first = np.argsort(-similarities_n, kind="stable")
        return [replace(kept[i], similarity=float(similarities_n[i])) for i in best_first]
