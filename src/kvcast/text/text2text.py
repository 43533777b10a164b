"""Text-to-text models (T5, BART, T5Gemma, UniLM), which read a source whole and answer it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Input, Prompt
from kvcast.errors import UsageError
from kvcast.families.bart import BartDimensions
from kvcast.families.stacks import SourceSizes
from kvcast.families.t5 import T5Dimensions
from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.keywords import keywords_of
from kvcast.runtimes.base import EncoderDecoder, Float32, Int32, Int64, PrefixRuntime, exclusive
from kvcast.text.encoders import check_dimensions, chosen_prompt, shortened
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextPrompt,
    is_one_prompt,
)
from kvcast.text.model import TextGenerator
from kvcast.text.params import EmbedParams, PromptParams
from kvcast.text.sentences import Part, split
from kvcast.text.structured_output import Grammars
from kvcast.text.texts import TextGeneration
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.languages import Languages


class SourceTextModel(TextGenerator):
    """A model that reads a source; `TextModel`'s keywords without conversations and `chunk`."""

    def __init__(self, generation: GenerationTask, source_tokens: int | None = None) -> None:
        super().__init__(generation)
        if source_tokens is not None:
            self._limits = replace(generation.limits, vocabulary=source_tokens)

    @override
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        if params.chat or params.system is not None:
            raise UsageError("this model answers a source as it is: leave out chat and system")
        if params.chunk is not None:
            raise UsageError("chunk is for prompts that are continued: a source is read whole")
        if params.special_tokens and isinstance(prompt, str):
            return self._limits.known(self.tokenizer.encode_ready(prompt))
        tokens, languages = self._encoded(prompt), self.tokenizer.languages
        if languages is None or not isinstance(prompt, (str, EncodedText)):
            return tokens
        languages_given = (params.source_language, params.target_language)
        return self._limits.known(languages.before(tokens.tolist(), *languages_given))

    @override
    def understood(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> PromptParams:
        """Return the options with the first token of the target language."""
        languages = self.tokenizer.languages
        if languages is None:
            is_given = params.source_language is not None or params.target_language is not None
            if self.tokenizer.translates and is_given:
                raise UsageError("this model translates from one language into one: name neither")
            return super().understood(prompt, params)
        forced = self.first_token(languages, params.target_language)
        if forced is None or params.forced_bos_token_id == forced:
            return params
        if params.forced_bos_token_id not in (None, *languages.tokens.values()):
            raise UsageError("the target's language is its first token: leave out another one")
        understood = replace(params, forced_bos_token_id=forced)
        object.__setattr__(understood, "generation_config", params.generation_config)
        return understood

    def first_token(self, languages: Languages, language: str | None) -> int | None:
        """Return the forced first token of a text in this language, if any."""
        return languages.forced(language)

    @override
    def parts(
        self, prompt: TextPrompt | EncodedText, params: PromptParams, longest: int
    ) -> list[Part]:
        """Return the sentences of a text, if requested or it is too long to be translated."""
        text = prompt.text if isinstance(prompt, EncodedText) else prompt
        if not isinstance(text, str):
            return [Part(tokens=self.prompt_tokens(prompt, params))]
        if not params.sentences:
            tokens = self.prompt_tokens(prompt, params)
            if len(tokens) <= longest or not self.tokenizer.translates:
                return [Part(tokens=tokens)]
        language = params.source_language or self.tokenizer.source_language
        parts = split(text, language, lambda part: self.prompt_tokens(part, params))
        if (most := max((len(part.tokens) for part in parts), default=0)) > longest:
            raise UsageError(
                f"a sentence of the source has {most} tokens and the model takes {longest} at "
                "most: shorten it"
            )
        return parts or [Part(tokens=self.prompt_tokens(prompt, params))]

    def _encoded(self, source: TextPrompt | EncodedText) -> Int64:
        if isinstance(source, EncodedText):
            return source.tokens
        if not isinstance(source, str):
            return self._limits.ids(source)
        tokens = self.tokenizer.encode(source)
        if tokens == self.tokenizer.encode(""):
            raise UsageError("the source is empty: give at least one word")
        return self._limits.known(tokens)


class Source(Input):
    def __init__(self, tokens: Int64) -> None:
        self._tokens = tokens

    @property
    @override
    def tokens(self) -> Int64:
        return self._tokens

    @property
    @override
    def positions(self) -> int:
        return len(self._tokens)

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Int64, Int32]:
        lengths_b = np.array([len(source.tokens) for source in inputs], np.int32)
        tokens_bt = np.zeros((len(inputs), lengths_b.max()), np.int64)
        for tokens_t, source in zip(tokens_bt, inputs, strict=True):
            tokens_t[: len(source.tokens)] = source.tokens
        return tokens_bt, lengths_b


class EncodedSourceModel(SourceTextModel):
    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        sizes: SourceSizes,
        family: str,
        source_tokens: int | None = None,
    ) -> None:
        start = np.array([sizes.start_token], np.int64)
        limits = Limits(
            prompt=sizes.source_positions,
            sequence=sizes.target_positions,
            vocabulary=sizes.vocab_size,
        )
        super().__init__(
            GenerationTask(
                runtime=runtime,
                tokenizer=tokenizer,
                limits=limits,
                family=family,
                read=lambda tokens: Prompt(start, input=Source(tokens)),
                encodes=True,
                grammars=Grammars(tokenizer, limits.vocabulary),
            ),
            source_tokens,
        )
        self._sizes = sizes

    @override
    def understood(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> PromptParams:
        """As `SourceTextModel`; UsageError if a target language is needed and not given."""
        understood = super().understood(prompt, params)
        languages = self.tokenizer.languages
        is_known = languages is None or languages.place == "target" or self._begins(understood)
        if is_known or not isinstance(prompt, (str, EncodedText)):
            return understood
        raise UsageError(
            "this model translates into many languages: name the text's with target_language"
        )

    @override
    def first_token(self, languages: Languages, language: str | None) -> int | None:
        own = languages.code(self._sizes.start_token)
        if own is None or language is None:
            return super().first_token(languages, language)
        # An mBART that was made for one language begins with it in any case.
        if languages.token(language) == self._sizes.start_token:
            return None
        raise UsageError(f"this model translates into {own} alone: leave out target_language")

    def _begins(self, params: PromptParams) -> bool:
        languages = self.tokenizer.languages
        starts = languages is not None and languages.code(self._sizes.start_token) is not None
        return starts or params.forced_bos_token_id is not None

    @property
    @override
    def input_bytes(self) -> int:
        sizes = self._sizes
        heads = 2 * sizes.decoder_layers * sizes.decoder_heads
        return 4 * heads * sizes.head_dim * sizes.source_positions  # there may be narrower ones


class BartModel(EncodedSourceModel):
    """A runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: BartDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, "BART", dimensions.source_tokens)
        self.dimensions = dimensions


class T5Model(EncodedSourceModel):
    """A T5 runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5Dimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, "T5")
        self.dimensions = dimensions


class T5GemmaModel(EncodedSourceModel):
    """A T5Gemma runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5GemmaDimensions
    ) -> None:
        sources = dimensions.source_vocab_size
        super().__init__(runtime, tokenizer, dimensions, "T5Gemma", sources)
        self.dimensions = dimensions


class UnilmModel(SourceTextModel):
    """A UniLM runtime with its tokenizer and dimensions.

    With n above 1 the texts of a source are ranked as SimBERT's users do it, by the cosine
    similarity of their embeddings to the source's. Duplicates and copies of the source are left
    out, so there may be fewer than n, and always at least one.
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
        self.dimensions: UnilmDimensions = dimensions

    @override
    def finished(
        self, prompt: TextPrompt | EncodedText, texts: list[TextGeneration], params: PromptParams
    ) -> list[TextGeneration]:
        return self._ranked(prompt, texts) if params.n > 1 else texts

    @property
    def longest_text(self) -> int:
        """Most tokens of a text to embed."""
        return self.dimensions.max_positions

    @keywords_of(EmbedParams)
    def embed(
        self, texts: str | Sequence[TextPrompt | EncodedText], params: EmbedParams
    ) -> Float32:
        """Return the pooled embeddings of texts (or their tokens), fp32 [texts, dimensions].

        Raises UsageError for no texts, and texts that are empty or longer than the model takes.
        """
        several: Any = [texts] if is_one_prompt(texts) else texts
        if not len(several):
            raise UsageError("there is no text: give at least one")
        check_dimensions(params.dimensions, self.dimensions.width)
        sources = [self.source(text, params) for text in several]
        for source in sources:
            replace(self._limits, prompt=self.longest_text).check(source)
        with exclusive(self.runtime):
            vectors_nd = self.runtime.embed(sources)
        return shortened(vectors_nd, params.dimensions, normalized=False)

    def source(self, text: TextPrompt | EncodedText, params: EmbedParams) -> Int64:
        """Return the tokens of a text to embed, which may be too many."""
        if isinstance(text, str):
            text = chosen_prompt({}, None, params) + text
        tokens, most = self._encoded(text), self.dimensions.max_positions
        if params.truncate and len(tokens) > most:
            tokens = np.append(tokens[: most - 1], tokens[-1])
        return tokens

    def _ranked(
        self, source: TextPrompt | EncodedText, texts: Sequence[TextGeneration]
    ) -> list[TextGeneration]:
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
