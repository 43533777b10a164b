"""Options of prompts.

Knows no tensor library, so that the command line can show its help at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

from typing_extensions import override

from kvcast.decoding.grammar import Grammar
from kvcast.decoding.params import (
    SamplingParams,
)
from kvcast.errors import UsageError
from kvcast.options import Check, Option, Text

CONVERSATION = "conversation"
TRANSLATION = "translation"
STRUCTURE = "structured output"


class _Schema(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        return None if isinstance(value, Mapping) else Text(filled=True).problem(value, kind)


@dataclass(frozen=True, kw_only=True)
class PromptParams(SamplingParams):
    """How prompts are understood, and how texts are written after them."""

    chat: Annotated[
        bool,
        Option(
            group=CONVERSATION,
            help="put the prompt into the model's chat template as the user's message",
        ),
    ] = False
    system: Annotated[
        str | None,
        Option(
            group=CONVERSATION,
            help="the system message, with chat; on the command line it implies chat",
            check=Text(),
            metavar="TEXT",
        ),
    ] = None
    special_tokens: Annotated[
        bool,
        Option(
            group=CONVERSATION,
            help="read control tokens that a prompt spells, such as </s>, as these tokens; without "
            "it they are text",
        ),
    ] = False
    source_language: Annotated[
        str | None,
        Option(
            group=TRANSLATION,
            help="the source's language, by the model's code, such as eng_Latn, or its beginning",
            check=Text(filled=True),
            metavar="CODE",
            default="the tokenizer's",
        ),
    ] = None
    target_language: Annotated[
        str | None,
        Option(
            group=TRANSLATION,
            help="the language to translate into; models of one language take none",
            check=Text(filled=True),
            metavar="CODE",
        ),
    ] = None
    sentences: Annotated[
        bool,
        Option(
            group=TRANSLATION,
            help="answer a source sentence by sentence, as is done in any case with one that is "
            "too long for the model; needs kvcast[translation]",
        ),
    ] = False
    json_schema: Annotated[
        str | Mapping[str, Any] | None,
        Option(
            group=STRUCTURE,
            help="write JSON that this JSON Schema describes, given as its text (on the command "
            "line also a file, in Python also a dict)",
            check=_Schema(),
            metavar="JSON|FILE",
        ),
    ] = None
    json_object: Annotated[bool, Option(group=STRUCTURE, help="write a JSON object")] = False
    regex: Annotated[
        str | None,
        Option(
            group=STRUCTURE,
            help="write a text that this regular expression matches as a whole",
            check=Text(filled=True),
            metavar="PATTERN",
        ),
    ] = None
    lark: Annotated[
        str | None,
        Option(
            group=STRUCTURE,
            help="write a text of this grammar in llguidance's variant of Lark (on the command "
            "line a file)",
            check=Text(filled=True),
            metavar="FILE",
        ),
    ] = None

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
