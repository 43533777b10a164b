"""The calls of the tokenizers library that turn text into ids or pieces."""

from tokenizers import Tokenizer


def ids_of(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Return a text's tokens.

    A batch of one: `encode` would keep the interpreter's lock, and so block all threads, for as
    long as a text takes.
    """
    [encoding] = tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def pieces_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return a text's pieces; unknown ones are as the text spells them."""
    [encoding] = tokenizer.encode_batch([text], add_special_tokens=False)
    pieces: list[str] = encoding.tokens
    return pieces
