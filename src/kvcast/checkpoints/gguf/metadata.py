"""Typed access to a GGUF file's metadata."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcast.checkpoints.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Values:
    """The values of an architecture, whose names start with the architecture's.

    `tensors`: names of the file's tensors.
    """

    fields: Fields
    architecture: str
    tensors: Collection[str] = ()

    @property
    def layers(self) -> int:
        """Number of layers, without multi-token prediction layers, which come last."""
        return self.whole("block_count") - self.whole("nextn_predict_layers", 0, least=0)

    @property
    def head_dim(self) -> int:
        width, heads = self.whole("embedding_length"), self.same_whole("attention.head_count")
        return self.whole("attention.key_length", max(width // heads, 1))

    def has_tensor(self, ending: str) -> bool:
        return any(name.endswith(ending) for name in self.tensors)

    def has(self, name: str) -> bool:
        return self.plain(name) is not None

    def whole(self, name: str, default: int | None = None, **limits: int) -> int:
        return self.fields.whole(self._full(name), default, **limits)

    def count(self, name: str) -> int:
        """Return an integer, 0 for none."""
        return self.whole(name, 0, least=0)

    def same_whole(self, name: str, default: int | None = None, absent: int | None = None) -> int:
        """Return a number that the file may have once for each layer, if all are the same.

        Layers with the value `absent` lack the feature.
        """
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return self.whole(name, default)
        numbers, layers = set(value.tolist()) - {absent}, self.whole("block_count")
        if len(value) != layers or len(numbers) != 1:
            raise self.fields.error(
                f"{self._full(name)} must be one number, the same for each of {layers} layers: "
                "models whose layers differ are not supported"
            )
        alone = {self._full(name): numbers.pop()}
        return Fields(values=alone, label=self.fields.label).whole(self._full(name))

    def each(self, name: str, default: int | None = None) -> tuple[int, ...]:
        """Return a number of each layer, which the file may have once for all of them."""
        layers = self.whole("block_count", most=len(self.tensors))
        value = self.plain(name)
        if not isinstance(value, np.ndarray):
            return (self.whole(name, default),) * layers
        if len(value) != layers:
            raise self.fields.error(f"{self._full(name)} is not one for each of {layers} layers")
        label = self.fields.label
        return tuple(
            Fields(values={self._full(name): number}, label=label).whole(self._full(name))
            for number in value.tolist()
        )

    def positive(self, name: str, default: float | None = None) -> float:
        """Return a finite number above 0."""
        return self.fields.positive(self._full(name), default)

    def optional(self, name: str) -> float:
        """Return a number above 0; 0 for none, which conversions may write as 0 or -1."""
        value = self.plain(name)
        is_none = value is None or (type(value) in (int, float) and value in (0, -1))
        return 0.0 if is_none else self.positive(name)

    def flag(self, name: str, default: bool) -> bool:
        return self.fields.flag(self._full(name), default)

    def plain(self, name: str) -> Any:
        return self.fields.values.get(self._full(name))

    def text(self, name: str, default: str) -> str:
        value = self.plain(name)
        if not isinstance(value, str | None):
            raise self.fields.error(f"{self._full(name)} must be a text")
        return default if value is None else value

    def _full(self, name: str) -> str:
        return f"{self.architecture}.{name}"
