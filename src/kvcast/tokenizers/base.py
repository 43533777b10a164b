"""The tokenizer interface that generation uses: text to tokens, conversations, tokens to text."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from typing_extensions import override

from kvcast.chat.conversation import Message, Tool
from kvcast.chat.templates import NO_TEMPLATE
from kvcast.chat.tool_calls import ToolForm
from kvcast.errors import KvcastError, UsageError
from kvcast.tokenizers.decoder import TextStream, TokenDecoder
from kvcast.tokenizers.languages import Languages


class TextTokenizer(Protocol):
    end_tokens: tuple[int, ...]
    """Tokens that end a generation: one or more."""

    notices: Sequence[str] = ()
    """Lines for users about the model's files."""

    generation: Mapping[str, Any] = MappingProxyType({})
    """Values of options that the model's files recommend, by the options' names."""

    translates: bool = False
    """Whether it is a translating model's, which takes sentences."""

    languages: Languages | None = None
    """Languages of a model that translates; None where there are none to choose."""

    source_language: str | None = None
    """The default language of sources, from its files."""

    has_chat_template: bool = False
    """Whether `encode_chat` takes conversations."""

    decoder: TokenDecoder | None
    """How tokens spell bytes; None where a token's text depends on its neighbours."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have a text."""

    def encode(self, text: str) -> list[int]:
        """Add the beginning-of-text token, if any; special tokens spelt out are plain text."""

    def encode_ready(self, text: str) -> list[int]:  # noqa: ARG002
        """Return the tokens of a text in which spelt special tokens are meant.

        It may begin with the beginning-of-text token, which is added otherwise. UsageError for a
        tokenizer without tokens that a text can spell.
        """
        raise UsageError("this model's tokenizer has no special tokens that a prompt can spell")

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant's answer starts.

        UsageError for an invalid conversation; KvcastError without a chat template, or if the
        template fails or tries to do more than format text.
        """

    def encode_chat_ready(self, messages: Sequence[Message]) -> list[int]:  # noqa: ARG002
        """As `encode_chat`, for messages that may contain special tokens."""
        raise KvcastError("this model's prompts need a chat template: fetch the model again")

    @property
    def tool_form(self) -> ToolForm:
        """The model's format of tool calls; UsageError for a template of an unknown form."""

    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the special tokens among these texts; the rest are spelt with ordinary ones."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without special ones, except for the tokens of `tool_form`."""

    def stream(self) -> TextStream:
        """Start decoding a text token by token."""

    def special_tokens(self) -> Mapping[str, Sequence[int]]:
        """Tokens that start, steer and end a text, by role."""
        return {"end_tokens": sorted(self.end_tokens)}


class Vocabulary(Protocol):
    """The meaning of token ids: tokens from 0 to `vocab_size - 1`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have a text."""

    def decode(self, tokens: Sequence[int], /) -> str:
        """Return the text of tokens."""


def longest_token(tokenizer: TextTokenizer) -> int:
    decoder = tokenizer.decoder
    if decoder is not None:
        return max(len(decoder.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return max(len(text.encode()) for text in texts_of_tokens(tokenizer))


def texts_of_tokens(tokenizer: Vocabulary) -> list[str]:
    return [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]


class PlainTokenizer(TextTokenizer):
    @override
    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        raise KvcastError(NO_TEMPLATE)

    @property
    @override
    def tool_form(self) -> ToolForm:
        raise UsageError(NO_TEMPLATE)

    @override
    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        return {}
