"""text.json: settings of a model's text that the tokenizer's own files do not have.

Knows no tokenizer; each kind reads the fields that it needs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcast.errors import KvcastError

SETTINGS = "text.json"
_MOST = 1 << 31


@dataclass(frozen=True, kw_only=True)
class TextSettings:
    """The fields of text.json; every method raises KvcastError for a field of the wrong type."""

    fields: Mapping[str, Any]

    @classmethod
    def read(cls, content: bytes) -> "TextSettings":
        """Read the file; raises KvcastError unless it is a JSON object."""
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
        return self._text("tokenizer")

    @property
    def end_tokens(self) -> list[int]:
        """One or more ids that end a text."""
        match self.fields.get("end_tokens"):
            case [_, *_] as tokens if all(type(t) is int and 0 <= t < _MOST for t in tokens):
                return list(tokens)
            case _:
                raise _damaged("end_tokens is not a list of one or more ids")

    @property
    def constants(self) -> dict[str, str]:
        """Texts that a chat template may use."""
        values = {name: self._text(name) for name in ("bos_token", "eos_token")}
        return {name: value for name, value in values.items() if value is not None}

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self.fields.get(name)
        if type(value) is not bool:
            raise _damaged(f"{name} is not true or false")
        return value

    def count(self, name: str, most: int) -> int | None:
        """Return a number from 0 to `most`; None if the field is missing."""
        value = self.fields.get(name)
        if value is not None and (type(value) is not int or not 0 <= value <= most):
            raise _damaged(f"{name} is not a whole number from 0 to {most}")
        return value

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        if not isinstance(value, str | None):
            raise _damaged(f"{name} is not a text")
        return value


def _damaged(label: str) -> KvcastError:
    return KvcastError(f"{SETTINGS} is damaged: {label}")
