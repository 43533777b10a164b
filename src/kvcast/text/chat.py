"""Chat templates, which format conversations as a model expects them. Knows no tokens.

A template comes with a model and is a program in Jinja2's language. So it runs in a process of its
own (template_process.py), and whatever it does, the worst outcome is a one-line error.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcast.errors import KvcastError, UsageError, in_one_line
from kvcast.text.base import Message
from kvcast.text.characters import whole_characters

ROLES = ("system", "user", "assistant")

NO_TEMPLATE = "this model has no chat template: prompt it with plain text"

SECONDS = 10.0
"""Time limit for one conversation; published templates take milliseconds."""

LONGEST = 16_000_000
"""Limit on the characters of a formatted conversation."""

# Limits on memory in bytes, CPU seconds (in case nobody waits any more), file size, processes.
_LIMITS = {"AS": 1 << 30, "CPU": 2 * int(SECONDS), "FSIZE": 0, "NPROC": 0}

_PROGRAM = Path(__file__).with_name("template_process.py")


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template in Jinja2's language and the constants that it may use, such as bos_token."""

    source: str
    constants: Mapping[str, str]

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Format a conversation, up to where the assistant's answer starts.

        Raises:
            KvcastError: the template refuses the conversation, is damaged, tries to leave its
                sandbox, or exceeds the limits on time, memory or text.

        """
        reply = self._reply(messages)
        if "refused" in reply:
            raise KvcastError(f"the chat template refuses the conversation: {_line(reply)}")
        if "failed" in reply:
            raise KvcastError(
                f"the chat template failed: {_line(reply)}; use a model that you trust"
            )
        return whole_characters(reply["text"])

    def _reply(self, messages: Sequence[dict[str, str]]) -> dict[str, str]:
        """Run the process; it has this one's import path, without the current folder."""
        request = {
            "template": self.source,
            "values": {
                **self.constants,
                "messages": list(messages),
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
            },
            "limits": _LIMITS,
            "longest": LONGEST,
        }
        importable = os.pathsep.join(filter(None, sys.path))
        try:
            finished = subprocess.run(  # noqa: S603, our own program
                [sys.executable, "-P", str(_PROGRAM)],
                input=json.dumps(request).encode(),
                capture_output=True,
                timeout=SECONDS,
                env=os.environ | {"PYTHONPATH": importable},
                check=False,
            )
            reply: dict[str, str] = json.loads(finished.stdout)
        except subprocess.TimeoutExpired:
            return {"failed": f"it takes more than {SECONDS:g} seconds"}
        except OSError as error:
            raise KvcastError(f"cannot start a process for the chat template: {error}") from None
        except ValueError:  # the process died without an answer
            return {"failed": f"its process ended with status {finished.returncode}"}
        return reply


def checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Return a valid conversation, with lone surrogates replaced.

    Raises UsageError unless it has at least one message, and each has a known role and a content,
    as texts. Templates turn roles into control tokens, so a role must not be arbitrary text.
    """
    if not messages:
        raise UsageError("the conversation is empty: give at least one message")
    for message in messages:
        if message.get("role") not in ROLES:
            raise UsageError(f"a message's role must be one of {', '.join(ROLES)}")
        if "content" not in message or not all(isinstance(text, str) for text in message.values()):
            raise UsageError('a message must be like {"role": "user", "content": "Hello"}')
    return [{key: whole_characters(text) for key, text in m.items()} for m in messages]


def _line(reply: Mapping[str, str]) -> str:
    (message,) = reply.values()
    return in_one_line(message)
