"""The tokenizer interface that generation uses: text to tokens, conversations, tokens to text.

Knows no file format and no model.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

Message = Mapping[str, str]
"""One turn of a conversation: "role" (system, user, assistant) and "content"."""


class TextStream(Protocol):
    """Turns tokens into text, one at a time."""

    def push(self, token: int) -> str:
        """Take one token; return the text that is now complete, possibly none.

        Bytes of an incomplete character are held back until the rest arrives.
        """

    def finish(self) -> str:
        """Return what was held back, with U+FFFD for bytes that make no character."""


class TextTokenizer(Protocol):
    """Text to tokens and back."""

    end_tokens: tuple[int, ...]
    """Tokens that end a generation: one or more."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have a text."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a plain prompt, with the beginning-of-text token if there is one.

        Special tokens spelt out in the text are treated as plain text.
        """

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of a conversation, up to where the assistant's answer starts.

        Raises KvcastError if the model has no chat template, or its template fails or tries to do
        more than format text.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, leaving out special ones."""

    def stream(self) -> TextStream:
        """Start decoding a text token by token."""


class Vocabulary(Protocol):
    """What numbers mean: tokens from 0 to `vocab_size - 1`."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens that have a text."""

    def decode(self, tokens: Sequence[int], /) -> str:
        """Return the text of tokens."""


def texts_of_tokens(tokenizer: Vocabulary) -> list[str]:
    """Return the text of each token, by which two vocabularies are compared."""
    return [tokenizer.decode([token]) for token in range(tokenizer.vocab_size)]
