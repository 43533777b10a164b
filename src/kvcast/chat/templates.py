"""Chat templates, which format conversations as a model expects them. Knows no tokens.

A template comes with a model and is a program in Jinja2's language. So it runs in a process of its
own (template_worker.py), so the worst outcome is a one-line error.
"""

import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvcast.chat.template_worker import EndedError, TemplateWorker, TooSlowError
from kvcast.chat.tool_calls import ToolForm, form_of, knows_tools
from kvcast.errors import KvcastError, in_one_line
from kvcast.spec.text_files import whole_characters

NO_TEMPLATE = "this model has no chat template: prompt it with plain text"

_PARTS = re.compile(r"for \w+ in \w+(?:\.content|\[['\"]content['\"]\])")

SECONDS = 10.0
"""Time limit for one conversation; published templates take milliseconds."""

LONGEST = 16_000_000
"""Limit on the characters of a formatted conversation."""

# Limits on memory in bytes, CPU seconds (in case nobody waits any more), file size, processes.
_LIMITS = {"AS": 1 << 30, "CPU": 2 * int(SECONDS), "FSIZE": 0, "NPROC": 0}


class TemplateRefusalError(KvcastError):
    """The template itself refuses a conversation."""


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template in Jinja2's language and the constants that it may use, such as bos_token.

    `with_tools` takes its place in conversations with tools, where a model has two.
    """

    source: str
    constants: Mapping[str, str]
    with_tools: "ChatTemplate | None" = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Format a conversation, up to where the assistant's answer starts.

        Raises:
            TemplateRefusalError: the template refuses the conversation.
            KvcastError: it is damaged, tries to leave its sandbox, or exceeds the limits on time,
                memory or text.

        """
        if tools and self.with_tools is not None:
            return self.with_tools.render(messages, tools)
        values = {
            **self.constants,
            "messages": list(map(_with_reasoning, messages)),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        reply = self._reply(values)
        if "refused" in reply:
            raise TemplateRefusalError(
                f"the chat template refuses the conversation: {_line(reply)}"
            )
        if "failed" in reply:
            raise KvcastError(
                f"the chat template failed: {_line(reply)}; use a model that you trust"
            )
        return whole_characters(reply["text"])

    def _reply(self, values: Mapping[str, Any]) -> dict[str, str]:
        try:
            return self._worker.render(values, SECONDS)
        except TooSlowError:
            return {"failed": f"it takes more than {SECONDS:g} seconds"}
        except EndedError as error:
            return {"failed": str(error)}
        except OSError as error:
            raise KvcastError(f"cannot start a process for the chat template: {error}") from None

    @property
    def tool_form(self) -> ToolForm | None:
        """How it writes calls of tools; None if it knows none, or in no form that is known."""
        return form_of(self._for_tools.source)

    @property
    def knows_tools(self) -> bool:
        """Whether it does anything with tools."""
        return knows_tools(self._for_tools.source)

    @property
    def reads_parts(self) -> bool:
        """Whether it goes through the parts of a content."""
        sources = [self.source, self._for_tools.source]
        return all(_PARTS.search(source) for source in sources)

    @property
    def _for_tools(self) -> "ChatTemplate":
        return self if self.with_tools is None else self.with_tools

    @cached_property
    def _worker(self) -> TemplateWorker:
        worker = TemplateWorker(self.source, _LIMITS, LONGEST)
        weakref.finalize(self, worker.close)  # at the interpreter's end at the latest
        return worker


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its reasoning under both names that templates read."""
    given = (
        message[name] for name in ("reasoning_content", "thinking", "reasoning") if name in message
    )
    reasoning = next(given, None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _line(reply: Mapping[str, str]) -> str:
    (message,) = reply.values()
    return in_one_line(message)
