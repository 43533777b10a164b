"""Merges adapters into the tensors of a model's files, each when it is read.

Tensors have the names of the files, before a family joins and reorders them: the adapted part of a
fused tensor is changed alone. Knows no file format and no family.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.checkpoints.base import StoredTensor
from kvcast.errors import KvcastError
from kvcast.spec.files import combined_sha256
from kvcast.spec.stored_matrices import FileRows

Layout: TypeAlias = Literal["PEFT", "GGUF"]

# They depend on the class that saved a model.
_WRAPPERS = re.compile(
    r"^(?:(?:base_model|model|language_model|text_model|gpt_neox|transformer)\.)+"
)
# No weight is as large: beyond it something is damaged.
_MOST = 1e30
_MATRIX = 2  # axes


class Change(Protocol):
    """A change of one tensor."""

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Tell whether a tensor of this shape can be changed."""

    def applied(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        """Return a weight with this share of the change, in its own memory or in another's.

        Raises KvcastError for a change that is damaged.
        """


@dataclass(frozen=True, kw_only=True)
class LowRank(Change):
    """A product of two small matrices, B A, that is added.

    Attributes:
        lora_a: [rank, inputs], of a convolution [rank, channels, size].
        lora_b: [outputs, rank], of a convolution [outputs, rank, 1].
        scale: of the product.
        transposed: whether the weight has its inputs first; "either": where its shape allows it.
        label: the adapter's name for it, in messages.

    """

    lora_a: StoredTensor
    lora_b: StoredTensor
    scale: float
    transposed: bool | Literal["either"] = False
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == (self._shape[::-1] if self._turned(shape) else self._shape)

    @override
    def applied(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        rank, scale = self.lora_a.shape[0], share * self.scale
        lora_a = self.lora_a.read().astype(np.float32).reshape(rank, -1)
        lora_b = self.lora_b.read().astype(np.float32).reshape(-1, rank)
        most = rank * float(np.abs(lora_a).max()) * float(np.abs(lora_b).max())
        if not max(most, most * abs(scale), abs(scale)) < _MOST:  # NaN is not, either
            raise KvcastError(f"{self.label} is damaged: it holds numbers that are not finite")
        product = ((np.float32(scale) * lora_b) @ lora_a).reshape(self._shape)
        weight += product.T if self._turned(weight.shape) else product
        return weight

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.lora_b.shape[0], *self.lora_a.shape[1:])

    def _turned(self, shape: tuple[int, ...]) -> bool:
        """Tell whether a weight of this shape has its inputs first."""
        either = isinstance(self.transposed, str)
        return shape == self._shape[::-1] if either else bool(self.transposed)


@dataclass(frozen=True, kw_only=True)
class Replacement(Change):
    """A tensor that was trained whole. A share of it is that share of the difference."""

    tensor: StoredTensor
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == self.tensor.shape

    @override
    def applied(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        trained = self.tensor.read().astype(np.float32)
        if not np.isfinite(trained).all():
            raise KvcastError(f"{self.label} is damaged: it holds numbers that are not finite")
        return trained if share == 1 else weight + np.float32(share) * (trained - weight)


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Changes of a model's tensors, and their weight in it.

    Attributes:
        name: as users call it.
        layout: of its files, whose names it has for tensors.
        files: all that it was read from.
        changes: by the name of a tensor, in order.
        base: the model that it was trained for, or its architecture; empty if it does not say.
        weight: 1 for the adapter as it was trained.

    """

    name: str
    layout: Layout
    files: Sequence[Path]
    changes: Mapping[str, Sequence[Change]]
    base: str = ""
    weight: float = 1.0

    def record(self) -> dict[str, Any]:
        """Return the adapter's entry in manifests."""
        return {"name": self.name, "sha256": self.digest(), "weight": self.weight}

    def digest(self) -> str:
        """Return the SHA-256 of its files in hexadecimal."""
        return combined_sha256(f"adapter {self.layout}", self.files)


def merged(
    stored: Mapping[str, StoredTensor],
    adapters: Iterable[Adapter],
    label: str,
    heads: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, StoredTensor]:
    """Return a model's tensors with what adapters change.

    `heads` maps the name of a head that files leave out to those that the embedding which is used
    for it may have. Training changed one of both: the other stays as it is.

    Raises KvcastError, naming the adapter, for a tensor that the model lacks or of another shape.
    """
    changes: dict[str, list[tuple[Adapter, Change]]] = {}
    own = {**stored}
    names = _Names(stored, heads or {})
    for adapter in adapters:
        for name, of_one in adapter.changes.items():
            target = names.found(name)
            if target is None:
                raise KvcastError(f"{adapter.name} changes {name}, which {label} does not have")
            if original := names.original(target):
                own.setdefault(target, stored[original])
            changes.setdefault(target, []).extend((adapter, change) for change in of_one)
    for head, embedding in names.tied():
        if embedding in changes:
            own.setdefault(head, stored[embedding])
    for name, of_tensor in changes.items():
        shape = own[name].shape
        for adapter, change in of_tensor:
            if not change.fits(shape):
                raise KvcastError(
                    f"{adapter.name} does not fit {label}: {name} has shape {list(shape)}, and its "
                    "change another; give the model that it was trained for"
                )
        own[name] = _changed(own[name], of_tensor)
    return own


def _changed(tensor: StoredTensor, changes: Sequence[tuple[Adapter, Change]]) -> StoredTensor:
    def read() -> NDArray[np.float32]:
        weight: NDArray[np.float32] = tensor.read().astype(np.float32)
        for adapter, change in changes:
            weight = change.applied(weight, adapter.weight)
        return weight

    def rows() -> FileRows:
        return FileRows.of_numbers(read().reshape(-1, tensor.shape[-1]))

    has_rows = len(tensor.shape) >= _MATRIX
    return replace(tensor, read=read, blocks=None, rows=rows if has_rows else None)


class _Names:
    """Names of a model's tensors, found by an adapter's, which may begin otherwise."""

    def __init__(
        self, stored: Mapping[str, StoredTensor], heads: Mapping[str, Sequence[str]]
    ) -> None:
        self._plain = {_WRAPPERS.sub("", name): name for name in stored}
        self._stored = stored
        # Of heads that are not in the files.
        self._embeddings = {
            head: self._plain[embedding]
            for head, embeddings in heads.items()
            for embedding in embeddings
            if head not in self._plain and embedding in self._plain
        }

    def found(self, name: str) -> str | None:
        """Return the name in the files, or that of a head which files leave out."""
        if name in self._stored:
            return name
        plain = _WRAPPERS.sub("", name)
        if plain in self._plain:
            return self._plain[plain]
        if plain in self._embeddings:
            return plain
        longer = [own for own in self._stored if own.endswith(f".{plain}")]
        return longer[0] if len(longer) == 1 else None

    def original(self, head: str) -> str | None:
        """Return the embedding that is used for a head."""
        return self._embeddings.get(head)

    def tied(self) -> Iterable[tuple[str, str]]:
        """Return heads that files leave out, with their embeddings."""
        return self._embeddings.items()
