"""Text-to-text models: a text answers its source, which is read whole.

Knows no family, no file format and no runtime.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Input, Prompt
from kvcast.errors import UsageError
from kvcast.families.sources import SourceSizes
from kvcast.runtimes.base import EncoderDecoder, Int32, Int64
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextGenerator,
    TextPrompt,
)
from kvcast.text.grammars import Grammars
from kvcast.text.params import PromptParams
from kvcast.text.sentences import Part, split
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.languages import Languages


class SourceTextModel(TextGenerator):
    """A model whose texts answer their sources.

    Takes the keywords of `kvcast.text.model.TextModel`, without the ones about conversations and
    chunks of prompts.
    """

    def __init__(self, generation: GenerationTask, source_tokens: int | None = None) -> None:
        """Take the number of tokens that sources have, if it is not that of texts."""
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
        told = (params.source_language, params.target_language)
        return self._limits.known(languages.before(tokens.tolist(), *told))

    @override
    def understood(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> PromptParams:
        """Return the options with the first token that the target's language wants."""
        languages = self.tokenizer.languages
        if languages is None:
            told = params.source_language is not None or params.target_language is not None
            if self.tokenizer.translates and told:
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
        """Return the token that a text in this language is forced to begin with, if any."""
        return languages.forced(language)

    @override
    def parts(
        self, prompt: TextPrompt | EncodedText, params: PromptParams, longest: int
    ) -> list[Part]:
        """Return the sentences of a text, if they are wanted or it is too long to be translated."""
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
        """Return a source's tokens; raises UsageError if all of them are special."""
        if isinstance(source, EncodedText):
            return source.tokens
        if not isinstance(source, str):
            return self._limits.ids(source)
        tokens = self.tokenizer.encode(source)
        if tokens == self.tokenizer.encode(""):
            raise UsageError("the source is empty: give at least one word")
        return self._limits.known(tokens)


class Source(Input):
    """A source of tokens [t]."""

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
    """A model whose encoder reads the source."""

    def __init__(
        self,
        runtime: EncoderDecoder,
        tokenizer: TextTokenizer,
        sizes: SourceSizes,
        family: str,
        source_tokens: int | None = None,
    ) -> None:
        """Take the parts of a model; see `GenerationTask` and `SourceTextModel`."""
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
        """Return them as `SourceTextModel` does; UsageError where a text needs a language."""
        understood = super().understood(prompt, params)
        languages = self.tokenizer.languages
        is_told = languages is None or languages.place == "target" or self._begins(understood)
        if is_told or not isinstance(prompt, (str, EncodedText)):
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
        """Tell whether the first token of texts, perhaps their language, is known."""
        languages = self.tokenizer.languages
        starts = languages is not None and languages.code(self._sizes.start_token) is not None
        return starts or params.forced_bos_token_id is not None

    @property
    @override
    def input_bytes(self) -> int:
        sizes = self._sizes
        heads = 2 * sizes.decoder_layers * sizes.decoder_heads
        return 4 * heads * sizes.head_dim * sizes.source_positions  # there may be narrower ones
