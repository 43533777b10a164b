"""Typed access to the fields of a configuration file. A field that is null counts as missing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvcast.errors import KvcastError

_T = TypeVar("_T")
# Larger than any real size, and small enough to compute with.
_MOST = 2**31 - 1
ACTIVATIONS: Mapping[str, str] = {
    **{"silu": "silu", "swish": "silu", "relu": "relu", "gelu": "gelu", "gelu_python": "gelu"},
    **dict.fromkeys(
        ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"
    ),
}
"""Activations by the names that transformers has for them."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """A JSON object and its name in messages; every method raises KvcastError."""

    values: Mapping[str, Any]
    label: str

    def whole(
        self, name: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        value = self._value(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.error(f"{name} must be a whole number from {least} to {most}")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        value = self._value(name, default)
        # A comparison, because an integer too large for a float cannot be converted.
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.error(f"{name} must be a number above 0")
        try:
            return float(value)
        except OverflowError:
            raise self.error(f"{name} is too large") from None

    def positive_floats(self, name: str) -> tuple[float, ...]:
        """Finite, above 0."""
        values = self._value(name, None)
        if not isinstance(values, list):
            raise self.error(f"{name} must list numbers above 0")
        each = Fields(values={}, label=self.label)
        return tuple(
            replace(each, values={f"each of {name}": value}).positive(f"each of {name}")
            for value in values
        )

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} must be true or false")
        return value

    def activation(self, name: str, default: str | None = None) -> str:
        value = str(self._value(name, default))
        if value not in ACTIVATIONS:
            supported = ", ".join(ACTIVATIONS)
            raise self.error(f"{name} {value!r} is not supported (supported: {supported})")
        return ACTIVATIONS[value]

    def require(self, expected: Mapping[str, Any]) -> None:
        for name, value in expected.items():
            if (given := self.values.get(name)) not in (None, value):
                raise self.error(f"{name} must be {value!r}, not {given!r}")

    def group(self, name: str) -> "Fields | None":
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object")
        return Fields(values=value, label=f"{self.label}: {name}")

    def over(self, defaults: Mapping[str, Any]) -> "Fields":
        given = {name: value for name, value in self.values.items() if value is not None}
        return replace(self, values={**defaults, **given})

    def group_over(self, name: str, defaults: Mapping[str, Any]) -> "Fields":
        """Return an object within this one, perhaps missing, over defaults."""
        group = self.group(name) or Fields(values={}, label=f"{self.label}: {name}")
        return group.over(defaults)

    def make(self, kind: Callable[..., _T], **values: Any) -> _T:
        """Call `kind`; its KvcastErrors name these fields."""
        try:
            return kind(**values)
        except KvcastError as error:
            raise self.error(str(error)) from None

    def error(self, reason: str) -> KvcastError:
        return KvcastError(f"{self.label}: {reason}")

    def _value(self, name: str, default: object) -> Any:
        value = self.values.get(name)
        value = default if value is None else value
        if value is None:
            raise self.error(f"{name} is missing")
        return value
