"""Grammars: schemas, patterns and rules that users give for a text."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from kvcast.chat.tool_calls import EnforcedCall, lark
from kvcast.errors import UsageError
from kvcast.options import shown

Kind: TypeAlias = Literal["json_schema", "json_object", "regex", "lark", "tool_call"]
JsonSchema: TypeAlias = str | Mapping[str, Any]
"""A JSON Schema: its text or its parsed value."""

# Without \u: llguidance takes an escaped key for a different key. White space is fixed: a model
# that may generate any may generate it forever.
_OPTIONS = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": 'nrbtf\\"',
    "lenient": False,
    "coerce_one_of": False,
}

LONGEST = 100_000
"""Most bytes of a grammar. A longer one would not fit into an argument of a child process."""


@dataclass(frozen=True)
class Grammar:
    """A grammar for a text, made by one of the class methods.

    Raises:
        UsageError: for text that is too long, or cannot be encoded as UTF-8.

    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise UsageError(f"{self.kind} must be a string, not {shown(self.text)}")
        try:
            size = len(self.text.encode())
        except UnicodeEncodeError:
            raise UsageError(f"{self.kind} is not valid UTF-8") from None
        if size > LONGEST:
            raise UsageError(f"{self.kind} has {size} bytes and may have {LONGEST}: shorten it")

    @classmethod
    def json_schema(cls, schema: JsonSchema) -> "Grammar":
        """Return the grammar of JSON that a schema describes."""
        return cls("json_schema", _dumped("json_schema", _checked("json_schema", schema)))

    @classmethod
    def json_object(cls) -> "Grammar":
        """Return the grammar of any JSON object."""
        return replace(cls.json_schema({"type": "object"}), kind="json_object")

    @classmethod
    def regex(cls, pattern: str) -> "Grammar":
        """Return the grammar of texts that a regular expression matches as a whole."""
        return cls("regex", pattern)

    @classmethod
    def lark(cls, grammar: str) -> "Grammar":
        """Return a grammar in llguidance's variant of Lark's syntax."""
        return cls("lark", grammar)

    @classmethod
    def tool_call(cls, calls: Sequence[EnforcedCall], special: Mapping[str, int]) -> "Grammar":
        """Return the grammar of one of these calls; `special`: a tokenizer's `control_tokens`."""
        if not calls:
            raise UsageError("tool_call has no tool: give at least one")
        kept = [replace(call, schema=_checked("a tool's schema", call.schema)) for call in calls]
        return cls("tool_call", lark(kept, special))


def _checked(label: str, schema: JsonSchema) -> dict[str, Any]:
    try:
        document = json.loads(schema) if isinstance(schema, str) else dict(schema)
        if not isinstance(document, dict):
            raise UsageError(f"{label} must be a JSON object, as in {{}}")
        prepared: dict[str, Any] = _prepared(label, document)
    except (ValueError, RecursionError, TypeError, OverflowError):
        raise UsageError(
            f"{label} is not JSON, nested too deeply, or has too large a number"
        ) from None
    # A user's options could weaken the guarantee.
    prepared["x-guidance"] = _OPTIONS
    if _ESCAPED_CONTROL.search(_dumped(label, prepared)):
        raise UsageError(f"{label} has a control character that only \\u can write")
    return prepared


def _prepared(label: str, part: Any) -> Any:
    """Adapt a part of a schema to llguidance; UsageError for keywords that it would not enforce."""
    if isinstance(part, list):
        return [_prepared(label, subschema) for subschema in part]
    if not isinstance(part, dict):
        return part
    made: dict[str, Any] = {}
    for key, value in part.items():
        if key in _DATA:
            made[key] = value
        elif key == "pattern" and isinstance(value, str):
            made[key] = _pattern(label, value)
        elif key == "patternProperties" and isinstance(value, dict):
            made[key] = {
                _pattern(label, name): _prepared(label, subschema)
                for name, subschema in value.items()
            }
        elif key in _NAMED and isinstance(value, dict):
            made[key] = {name: _prepared(label, subschema) for name, subschema in value.items()}
        else:
            made[key] = _prepared(label, value)
    _check(label, part)
    return made


def _check(label: str, part: Mapping[str, Any]) -> None:
    """Raise UsageError for keywords that llguidance accepts but does not enforce."""
    least, required = part.get("minProperties"), part.get("required")
    told = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, told):
        raise UsageError(
            f"{label} has minProperties {least}, but a text may repeat a key: name the properties "
            "under required"
        )
    for excluded in ("exclusiveMinimum", "exclusiveMaximum"):
        for other in _BOUNDS - {excluded}:
            pair = part.get(excluded), part.get(other)
            if all(isinstance(bound, int | float) for bound in pair) and _within_one(*pair):
                raise UsageError(
                    f"{label} has {excluded} {pair[0]} and {other} {pair[1]}, which differ by less "
                    "than 1: give bounds that belong to the range"
                )


def _within_one(whole: Any, other: Any) -> bool:
    return float(whole).is_integer() and 0 < abs(whole - other) < 1


_DATA = frozenset({"const", "enum", "default", "examples"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_NAMED = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_ESCAPED_CONTROL = re.compile(r"(?:^|[^\\])(?:\\\\)*\\u00")
_PATTERN_PARTS = re.compile(
    r"(?P<control>[\x00-\x1f]|\\(?:[0acv]|x[01][0-9a-fA-F]|[xu]\{0*1?[0-9a-fA-F]\}|u00[01]|p\{?C))"
    r"|\\P(?P<property>\{[^}]*\}|\w)|\\.|(?P<negated>\[\^)(?P<dash>-?)",
    re.DOTALL,
)


def _pattern(label: str, pattern: str) -> str:
    r"""Exclude NUL, which no text contains, from negated classes.

    With a class of all control characters llguidance allows \" and \\, even if the class excludes
    both; it enforces no class that names single control characters.
    """

    def part(match: re.Match[str]) -> str:
        if match["control"]:
            raise UsageError(f"{label} has a pattern with a control character: leave that out")
        if match["property"]:
            return rf"[^\x00\p{match['property']}]"
        if match["negated"]:
            return r"[^\x00" + ("\\-" if match["dash"] else "")
        return match[0]

    return _PATTERN_PARTS.sub(part, pattern)


def _dumped(label: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError, TypeError):
        raise UsageError(f"{label} is not JSON") from None
