"""Options of prompts.

Knows no tensor library, so that the command line can show its help at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from typing_extensions import override

from kvcast.decoding.grammar import Grammar
from kvcast.decoding.params import (
    SamplingParams,
)
from kvcast.errors import UsageError
from kvcast.options import FILLED, Check, Group, Text

CONVERSATION = Group("conversation")
TRANSLATION = Group("translation")
STRUCTURE = Group("structured output")


class _Schema(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        return None if isinstance(value, Mapping) else FILLED.problem(value, kind)


@dataclass(frozen=True, kw_only=True)
class PromptParams(SamplingParams):
    """How prompts are understood, and how texts are written after them."""

    chat: bool = CONVERSATION(False)(
        "put the prompt into the model's chat template as the user's message"
    )
    system: str | None = CONVERSATION(None, check=Text(), metavar="TEXT")(
        "the system message, with chat; on the command line it implies chat"
    )
    special_tokens: bool = CONVERSATION(False)(
        "read control tokens that a prompt spells, such as </s>, as these tokens; without "
        "it they are text"
    )
    source_language: str | None = TRANSLATION(
        None, check=FILLED, metavar="CODE", shown="the tokenizer's"
    )("the source's language, by the model's code, such as eng_Latn, or its beginning")
    target_language: str | None = TRANSLATION(None, check=FILLED, metavar="CODE")(
        "the language to translate into; models of one language take none"
    )
    sentences: bool = TRANSLATION(False)(
        "answer a source sentence by sentence, as is done in any case with one that is "
        "too long for the model; needs kvcast[translation]"
    )
    json_schema: str | Mapping[str, Any] | None = STRUCTURE(
        None, check=_Schema(), metavar="JSON|FILE"
    )(
        "write JSON that this JSON Schema describes, given as its text (on the command "
        "line also a file, in Python also a dict)"
    )
    json_object: bool = STRUCTURE(False)("write a JSON object")
    regex: str | None = STRUCTURE(None, check=FILLED, metavar="PATTERN")(
        "write a text that this regular expression matches as a whole"
    )
    lark: str | None = STRUCTURE(None, check=FILLED, metavar="FILE")(
        "write a text of this grammar in llguidance's variant of Lark (on the command line a file)"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chat and self.special_tokens:
            raise UsageError("special_tokens is for ready prompts: leave out chat")
        if len(self._grammars) > 1:
            raise UsageError(
                "a text keeps one grammar: give one of json_schema, json_object, regex and lark"
            )

    @override
    @property
    def constraint(self) -> Grammar | None:
        return next(iter(self._grammars), None)

    @cached_property
    def _grammars(self) -> list[Grammar]:
        """Return the given grammars."""
        grammars = [] if self.grammar is None else [self.grammar]
        if self.json_schema is not None:
            grammars.append(Grammar.json_schema(self.json_schema))
        if self.json_object:
            grammars.append(Grammar.json_object())
        if self.regex is not None:
            grammars.append(Grammar.regex(self.regex))
        if self.lark is not None:
            grammars.append(Grammar.lark(self.lark))
        return grammars
