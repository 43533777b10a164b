"""text.json: settings of a model's text that the tokenizer's own files do not have.

It has "end_tokens" (ids), "bos_token" and "eos_token" (texts for chat templates, or null), and may
have "special_tokens" (further texts by name), "extra_special_tokens" (texts without names),
"added_tokens" (beyond the tokenizer's own), "generation" (recommended options), "notices" (lines
for users), "source_language" (a code) and "language_place" ("first" or "last" in a source). Without
a tokenizer.json it may have "language_codes" (the name of a list, such as "wmt21") and
"prefix_space": whether a source begins with a space.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvcast.errors import KvcastError

SETTINGS = "text.json"
_MOST = 1 << 31


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The fields of text.json; every method raises KvcastError for a field of the wrong type."""

    fields: Mapping[str, Any]

    @classmethod
    def read(cls, content: bytes) -> "TextSettings":
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            raise KvcastError(f"{SETTINGS} is not valid JSON: fetch it again") from None
        if not isinstance(fields, dict):
            raise _damaged("it is not an object with end_tokens")
        return cls(fields=fields)

    @property
    def kind(self) -> str | None:
        """The kind of tokenizer, if its files do not show it."""
        return self.text("tokenizer")

    @property
    def end_tokens(self) -> list[int]:
        match self.fields.get("end_tokens"):
            case [_, *_] as tokens if all(type(t) is int and 0 <= t < _MOST for t in tokens):
                return list(tokens)
            case _:
                raise _damaged("end_tokens is not a list of one or more ids")

    @property
    def constants(self) -> dict[str, str]:
        values = {name: self.text(name) for name in ("bos_token", "eos_token")}
        named = {name: value for name, value in values.items() if value is not None}
        return named | self.texts("special_tokens")

    @property
    def special_tokens(self) -> tuple[str, ...]:
        match self.fields.get("extra_special_tokens", []):
            case [*texts] if all(type(text) is str for text in texts):
                return tuple(text for text in (*self.constants.values(), *texts) if text)
            case _:
                raise _damaged("extra_special_tokens are not texts")

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        match self.fields.get("added_tokens", []):
            case [*tokens] if all(map(_is_added_token, tokens)):
                return tokens
            case _:
                raise _damaged("added_tokens is not a list of tokens")

    @property
    def generation(self) -> dict[str, Any]:
        values = self.fields.get("generation", {})
        if not isinstance(values, dict):
            raise _damaged("generation has no values by name")
        return values

    @property
    def notices(self) -> tuple[str, ...]:
        match self.fields.get("notices", []):
            case [*lines] if all(type(line) is str for line in lines):
                return tuple(lines)
            case _:
                raise _damaged("notices are not texts")

    @property
    def translates(self) -> bool:
        return self.fields.get("translates") is True

    @property
    def source_language(self) -> str | None:
        return self.text("source_language")

    @property
    def language_codes(self) -> str | None:
        return self.text("language_codes")

    @property
    def language_place(self) -> Literal["first", "last"] | None:
        match self.text("language_place"):
            case None | "first" | "last" as place:
                return place
            case _:
                raise _damaged("language_place is neither first nor last")

    def texts(self, name: str) -> dict[str, str]:
        """By name; none if the field is missing."""
        values = self.fields.get(name, {})
        if not isinstance(values, dict) or not all(type(text) is str for text in values.values()):
            raise _damaged(f"{name} are not texts by name")
        return values

    def flag(self, name: str) -> bool:
        value = self.fields.get(name)
        if type(value) is not bool:
            raise _damaged(f"{name} is not true or false")
        return value

    def count(self, name: str, most: int) -> int | None:
        """From 0 to `most`; None if the field is missing."""
        value = self.fields.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise _damaged(f"{name} is not a whole number from 0 to {most}")
        return value

    def text(self, name: str) -> str | None:
        value = self.fields.get(name)
        if not isinstance(value, str | None):
            raise _damaged(f"{name} is not a text")
        return value


def _is_added_token(token: object) -> bool:
    match token:
        case {"content": str(content), **flags}:
            return bool(content) and all(type(flag) is bool for flag in flags.values())
    return False


def _damaged(label: str) -> KvcastError:
    return KvcastError(f"{SETTINGS} is damaged: {label}")
