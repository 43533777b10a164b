"""Divides an answer's text into reasoning, content and calls of tools, piece by piece.

Knows no endpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.chat.reasoning import ReasoningParser
from kvcast.server.served import CHAT, Served
from kvcast.server.tools import CalledTool, Tools
from kvcast.text.logits_processors import has_begun


@dataclass
class MadePrompt:
    """A prompt that is made later, in a thread, and remembered.

    Attributes:
        make: makes it.
        tokens: of it, once it is made.

    """

    make: Callable[[], Any]
    tokens: Sequence[int] = ()

    def __call__(self) -> Any:
        """Make it."""
        prompt = self.make()
        self.tokens = getattr(prompt, "tokens", prompt)
        return prompt


class AnswerReader:
    """Divides one text into reasoning, content and calls, piece by piece."""

    def __init__(
        self, served: Served, tools: Tools, prompt: MadePrompt, *, splits: bool = True
    ) -> None:
        """Prepare for the first piece of a text after a prompt that was made.

        `splits`: whether reasoning is told apart from content.
        """
        begun = served.kind == CHAT and has_begun(served.model.tokenizer, prompt.tokens)
        self._reasoning = ReasoningParser(begun=begun) if splits else None
        self._reader = tools.reader()

    @property
    def calls(self) -> Sequence[CalledTool]:
        """The calls so far."""
        return self._reader.calls

    def push(self, piece: str, *, last: bool) -> tuple[str, str, list[CalledTool]]:
        """Take a piece; return what is certain now."""
        thought = ""
        if self._reasoning is not None:
            thought, piece = self._reasoning.push(piece, last=last)
        return thought, *self._reader.push(piece, last=last)
