"""Splits a run of Whisper's tokens into words, as in openai/whisper's tokenizer.py.

Knows no times.
"""

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcast.speech.languages import WITHOUT_SPACES
from kvcast.whisper.tokenizer import WhisperTokenizer

_INVALID = "\ufffd"


@dataclass(frozen=True)
class TokenWord:
    """A word with the tokens that spell it; the text starts with its space, if there is one."""

    text: str
    tokens: tuple[int, ...]


def split_words(
    tokenizer: WhisperTokenizer, tokens: Sequence[int], language: str
) -> list[TokenWord]:
    """Split text tokens, without timestamps, into words of a text in this language.

    A word begins at a space, and punctuation at its start or on its own is a word. Nothing is
    lost: the words' tokens, joined, are the tokens.
    """
    characters = list(_characters(tokenizer, tokens))
    return characters if language in WITHOUT_SPACES else list(_spaced(characters))


def _characters(tokenizer: WhisperTokenizer, tokens: Sequence[int]) -> Iterator[TokenWord]:
    """Yield the shortest runs of tokens that are whole characters."""
    text = tokenizer.decode(tokens)
    done, run, spelled = 0, list[int](), b""
    for token in tokens:
        run.append(token)
        spelled += tokenizer.token_bytes(token)
        decoded = spelled.decode("utf-8", errors="replace")
        invalid = decoded.find(_INVALID)
        # Bytes that are invalid in the whole text, too, wait for nothing.
        if invalid < 0 or text[done + invalid : done + invalid + 1] == _INVALID:
            yield TokenWord(decoded, tuple(run))
            done, run, spelled = done + len(decoded), [], b""
    if run:
        yield TokenWord(decoded, tuple(run))


def _spaced(parts: Sequence[TokenWord]) -> Iterator[TokenWord]:
    """Yield words, each from a space or a punctuation mark up to the next."""
    texts, tokens = list[str](), list[int]()
    for part in parts:
        begins = part.text.startswith(" ") or part.text.strip() in string.punctuation
        if begins and tokens:
            yield TokenWord("".join(texts), tuple(tokens))
            texts, tokens = [], []
        texts.append(part.text)
        tokens += part.tokens
    if tokens:
        yield TokenWord("".join(texts), tuple(tokens))
