"""A budget of tokens for a text's reasoning: once it is used up, the reasoning is ended.

Knows no model and not how tokens are chosen.
"""

from collections import deque
from collections.abc import Sequence

from kvcast.chat.reasoning import BEGIN, END, ReasoningParser
from kvcast.runtimes.base import Int64
from kvcast.tokenizers.base import TextTokenizer

_TAIL = 16
"""Tokens at the end of a prompt that may begin the reasoning."""


class ReasoningBudget:
    """The tokens that one text's reasoning may still take."""

    def __init__(self, most: int, tokenizer: TextTokenizer, prompt_s: Int64) -> None:
        """Begin after a prompt, with so many tokens."""
        self._left = most
        self._parser = ReasoningParser(begun=has_begun(tokenizer, prompt_s))
        self._ending = _tokens_of_end(tokenizer)
        self._forced: deque[int] = deque()
        self._check()

    def forced(self) -> int | None:
        """Return the token that must come next, if one must."""
        return self._forced.popleft() if self._forced else None

    def wrote(self, text: str) -> None:
        """Take note of a token, by the text that became certain with it."""
        self._left -= self._parser.reasons
        self._parser.push(text)
        self._check()

    def _check(self) -> None:
        if self._left <= 0 and self._parser.reasons and not self._forced:
            self._forced.extend(self._ending)


def has_begun(tokenizer: TextTokenizer, prompt_s: Sequence[int] | Int64) -> bool:
    """Tell whether a prompt ends with the beginning of reasoning, as some templates' do."""
    tail = [int(token) for token in prompt_s[-_TAIL:]]
    return tokenizer.decode(tail).rstrip().endswith(BEGIN)


def _tokens_of_end(tokenizer: TextTokenizer) -> list[int]:
    if (token := tokenizer.control_tokens([END]).get(END)) is not None:
        return [token]
    empty = tokenizer.encode("")
    tokens = tokenizer.encode(END)
    return tokens[len(empty) :] if tokens[: len(empty)] == empty else tokens
