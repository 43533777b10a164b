"""Tool-call formats that open models were trained on; `output_parsers.py` parses text with them.

A model's form follows from its chat template, which formats earlier calls in the same way.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcast.chat.output_parsers import AnswerParser, TextParser, ToolCallParser

UNKNOWN_FORM = "this model's template calls tools in a form that kvcast does not know"


@dataclass(frozen=True, kw_only=True)
class EnforcedCall:
    """The text that calls one tool: a prefix, JSON that follows a schema, a suffix."""

    prefix: str
    schema: Mapping[str, Any]
    suffix: str
    markers: tuple[str, ...]  # parts of prefix and suffix that may be special tokens


@dataclass(frozen=True, kw_only=True)
class ToolForm:
    """A model's format of tool calls.

    Attributes:
        head: pattern from opening to JSON; with a group `name`, the JSON is only its arguments.
        bare: whether a call at the beginning of a text, or after another, needs no opening.
        markers: texts that may be special tokens, which then count as text.
        call: the text of one call, with NAME and ARGUMENTS in it.
        answer: precedes the JSON string of an answer without calls; empty for plain text.

    """

    opening: str
    closing: str = ""
    head: str = r"\s*(?=\{)"
    separators: str = ""
    bare: bool = False
    markers: tuple[str, ...]
    call: str
    answer: str = ""

    def parser(self, names: Collection[str]) -> TextParser:
        """Return a parser for one text; a call of any other tool is content."""
        calls = ToolCallParser(self, names)
        return AnswerParser(self.answer, calls) if self.answer else calls

    def write_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        before, after = self.call.split("ARGUMENTS")
        return before.replace("NAME", name) + json.dumps(arguments, ensure_ascii=False) + after

    def answered(self, schema: Mapping[str, Any] | None = None) -> tuple[EnforcedCall, ...]:
        """Return the form of an answer without calls, if any; `schema` is of JSON answers."""
        if schema is not None:
            return (EnforcedCall(prefix="", schema=schema, suffix="", markers=self.markers),)
        if not self.answer:
            return ()
        schema = {"type": "string"}
        return (EnforcedCall(prefix=self.answer, schema=schema, suffix="}", markers=self.markers),)

    def enforced(self, tools: Sequence[Mapping[str, Any]]) -> tuple[EnforcedCall, ...]:
        """Return the texts that call one of these tools, as OpenAI describes them."""
        return tuple(self._enforce(tool["function"]) for tool in tools)

    def _enforce(self, function: Mapping[str, Any]) -> EnforcedCall:
        before, suffix = self.call.split("ARGUMENTS")
        prefix = before.replace("NAME", function["name"])
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        return EnforcedCall(prefix=prefix, schema=schema, suffix=suffix, markers=self.markers)


HERMES = ToolForm(
    opening="<tool_call>",
    closing="</tool_call>",
    bare=True,  # Qwen2.5-Coder leaves out both
    markers=("<tool_call>", "</tool_call>"),
    call='<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
)
"""Nous Hermes, Qwen 2.5 and 3, SmolLM 3."""

MISTRAL = ToolForm(
    opening="[TOOL_CALLS]",
    head=r"\s*(?=[\[{])",
    markers=("[TOOL_CALLS]",),
    call='[TOOL_CALLS][{"name": "NAME", "arguments": ARGUMENTS}]',
)
"""Mistral's up to version 7 of its formats: a list of calls."""

MISTRAL_NAMED = ToolForm(
    opening="[TOOL_CALLS]",
    head=r"\s*(?P<name>[\w-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)",
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    call="[TOOL_CALLS]NAME[ARGS]ARGUMENTS",
)
"""Mistral's from version 11 on: the name precedes the arguments."""

LLAMA = ToolForm(
    opening="<|python_tag|>",
    separators=";,",
    bare=True,
    markers=("<|python_tag|>",),
    call='{"name": "NAME", "parameters": ARGUMENTS}',
)
"""Llama 3.1 to 3.3."""


IN_WORDS = ToolForm(
    opening='{"tool_call": ',
    closing="}",
    markers=(),
    call='{"tool_call": {"name": "NAME", "arguments": ARGUMENTS}}',
    answer='{"response": ',
)
"""Models whose templates have no tools: a system message asks for this form."""


def knows_tools(template: str) -> bool:
    return re.search(r"""(?<![\w.'"])tools\b(?!['"])""", template) is not None


def form_of(template: str) -> ToolForm | None:
    """Return the form of a chat template's calls, if known. Qwen's coders and GLM use no JSON."""
    if not knows_tools(template):
        return None
    if "<tool_call>" in template:
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "[TOOL_CALLS]" in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL
    other_marker = re.search(r"<[^<>\s]*tool[^<>\s]*>", template)
    described = re.search(r'"name\\?": .*"parameters\\?": ', template, re.DOTALL)
    return LLAMA if described and not other_marker else None


def lark(calls: Sequence[EnforcedCall], special: Mapping[str, int]) -> str:
    """Return llguidance's Lark grammar for one of these calls; `special`: tokens of the markers."""
    names = [f"call_{i}" for i in range(len(calls))]
    rules = [
        f"{name}: {_terms(call.prefix, call.markers, special)} "
        f"%json {json.dumps(call.schema)} {_terms(call.suffix, call.markers, special)}".rstrip()
        for name, call in zip(names, calls, strict=True)
    ]
    return "\n".join([f"start: {' | '.join(names)}", *rules, ""])


def _terms(text: str, markers: Sequence[str], special: Mapping[str, int]) -> str:
    parts = re.split("(" + "|".join(map(re.escape, markers)) + ")", text)
    return " ".join(
        f"<[{special[part]}]>" if part in special else json.dumps(part) for part in parts if part
    )
