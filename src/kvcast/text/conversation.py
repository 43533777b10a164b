"""A conversation with a model: its messages and options, answers as they come, and its document."""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any, cast

from kvcast.chat.conversation import Message, check_conversation
from kvcast.chat.output_parsers import ReasoningParser
from kvcast.engine import Engine
from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.base import Int64
from kvcast.text.logits_pipeline import has_begun
from kvcast.text.model import TextModel
from kvcast.text.requests import TextJob
from kvcast.text.texts import TextGeneration

JSON_FORMAT = "kvcast.conversation"
JSON_VERSION = 1
_ANSWER = 512  # positions that are left for an answer, unless the context is short
_ROWS = 2  # of the cache: the conversation's, and one for a branch that /retry begins


class Conversation:
    """Messages and the model that answers them; what they share with earlier turns is cached.

    `options` are keywords of `generate`. Answers have no reasoning when they become messages.
    """

    def __init__(self, model: TextModel, options: Mapping[str, Any], system: str | None) -> None:
        self._model = model
        self._engine = Engine(model, rows=_ROWS, queue=1)
        self.options = dict(options)
        self.system = system
        self.messages: list[Message] = []
        self.forgotten = 0  # oldest messages that the last prompt had no room for
        self.last: TextGeneration | None = None  # None before the first, and if it was stopped

    def ask(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield the pieces of an answer, each with its reasoning; what came before a stop is kept.

        The first raises KvcastError, and drops the message, for one that the model cannot take.
        """
        while self.messages and self.messages[-1]["role"] != "assistant":
            self.messages.pop()  # stopped before its answer began
        self.messages.append({"role": "user", "content": text})
        return self._answer()

    def retry(self) -> Iterator[tuple[str, str]]:
        """Answer the last message again; raises UsageError if there is none."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise UsageError("there is no message to answer again")
        return self._answer()

    def _submit(self) -> tuple[Int64, TextJob]:
        tokens = self._fitting()
        defaults = {
            "max_new_tokens": self._model.generation.limits.sequence,
            "seed": secrets.randbelow(2**31),  # or a second try would be the first again
            "beam": 1,
        }
        chosen = self._model.defaults.conversing(self.options) | self.options
        return tokens, self._engine.submit(tokens.tolist(), **defaults | chosen)

    def _fitting(self) -> Int64:
        """Return the prompt, without the oldest turns if these leave no room for an answer."""
        capacity = min(self._engine.status().capacity, self._model.generation.limits.sequence)
        most = capacity - min(capacity // 4, _ANSWER)
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.forgotten = 0
        while True:
            tokens = self._model.chat_tokens([*system, *self.messages[self.forgotten :]])
            if len(tokens) <= most or self.forgotten >= len(self.messages) - 1:
                return tokens
            self.forgotten += 1
            while self.messages[self.forgotten]["role"] != "user":
                self.forgotten += 1

    def _answer(self) -> Iterator[tuple[str, str]]:
        self.last = None
        try:
            tokens, job = self._submit()
        except KvcastError:
            self.messages.pop()
            raise
        parser = ReasoningParser(begun=has_begun(self._model.tokenizer, tokens))
        pieces = list[str]()
        try:
            for delta in job:
                reasoning, piece = parser.push(delta.text, last=delta.finish_reason is not None)
                pieces.append(piece)
                if reasoning or piece:
                    yield reasoning, piece
            self.last = cast(TextGeneration, job.result())
        finally:
            job.cancel()
            if answer := "".join(pieces):
                self.messages.append({"role": "assistant", "content": answer})

    def clear(self) -> None:
        self.messages.clear()

    @property
    def document(self) -> dict[str, Any]:
        return {
            "format": JSON_FORMAT,
            "version": JSON_VERSION,
            "system": self.system,
            "messages": self.messages,
        }

    def restore(self, document: object) -> None:
        """Go on from a document, or from a list of messages in OpenAI's format.

        Raises UsageError for anything else, which leaves the conversation as it was.
        """
        fields = document if isinstance(document, dict) else {"messages": document}
        if not isinstance(given := fields.get("messages"), list):
            raise UsageError("there is no list of messages")
        messages = check_conversation(given, None).messages
        system = fields.get("system")
        if messages[0]["role"] == "system":
            system, messages = messages[0]["content"], messages[1:]
        if system is not None and not isinstance(system, str):
            raise UsageError("system must be a string")
        self.system, self.messages = system, [dict(message) for message in messages]

    def close(self) -> None:
        self._engine.close()
