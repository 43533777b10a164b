"""LoRA adapters: merges them into a model's tensors when these are read.

Tensors have the names of the files, before a family joins and reorders them: only the adapted part
of a fused tensor changes.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.lora_changes import (
    Added,
    Change,
    ReplacedRows,
    Replacement,
    StackedLowRank,
    Weight,
    with_inputs_first,
)
from kvcast.errors import KvcastError
from kvcast.spec.files import combined_sha256
from kvcast.spec.stored_matrices import FileRows

Layout: TypeAlias = Literal["PEFT", "GGUF"]

# They depend on the class that saved a model.
_WRAPPERS = re.compile(
    r"^(?:(?:base_model|model|language_model|text_model|gpt_neox|transformer)\.)+"
)
_MATRIX = 2  # axes
# Names of each expert's matrices, whose rows files may list in place of a stack of all experts'.
_LISTED: Mapping[str, Sequence[Sequence[str]]] = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "up_proj": (("up_proj",),),
    "down_proj": (("down_proj",), ("w2",)),
}


@dataclass(frozen=True, kw_only=True)
class Adapter:
    name: str
    layout: Layout  # of its files, whose names it has for tensors
    files: Sequence[Path]
    changes: Mapping[str, Sequence[Change]]  # by the name of a tensor, in order
    base: str = ""  # the model that it was trained for, or its architecture, if known
    weight: float = 1.0  # 1 for the adapter as it was trained

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self.digest(), "weight": self.weight}

    def digest(self) -> str:
        return combined_sha256(f"adapter {self.layout}", self.files)


def _without_wrappers(name: str) -> str:
    return _WRAPPERS.sub("", name)


@dataclass(frozen=True, kw_only=True)
class Modules:
    """How a model's files differ from the modules whose parameters adapters name."""

    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of tied heads that files may omit, each with possible names of the embedding."""

    tied: bool = True
    """Whether the head is the embedding, even where files have both."""

    plain: Callable[[str], str] = _without_wrappers
    """The name by which tensors of files and adapters are compared."""

    inputs_first: Callable[[str], bool] = lambda _: False
    """Whether files have a matrix, or those of a stack, as [inputs, outputs], by its name."""

    in_codes: Callable[[Mapping[str, StoredTensor]], Mapping[str, StoredTensor]] = lambda _: {}
    """Floats, by the names of modules, of what files have in codes that `read` takes as they are;
    where both are given, `read` takes these."""


def merge(
    stored: Mapping[str, StoredTensor],
    adapters: Iterable[Adapter],
    label: str,
    modules: Modules | None = None,
) -> dict[str, StoredTensor]:
    """Merge adapters; KvcastError, naming the adapter, for missing or misshapen tensors.

    Of a head and an embedding that are tied, only the trained one changes, except that the
    embeddings of trained tokens are the head's, too.
    """
    targets = _Targets(stored, modules or Modules(), label)
    changes: dict[str, list[tuple[Adapter, Change]]] = {}
    for adapter in adapters:
        for name, change in targets.of(adapter):
            changes.setdefault(name, []).append((adapter, change))
    for head, embedding in targets.omitted.items():
        if embedding in changes and changes.get(head) == changes[embedding]:
            del changes[head]
        elif embedding in changes:
            changes.setdefault(head, [])
    own = {**stored}
    for name, of_tensor in changes.items():
        tensor = targets[name]
        for adapter, change in of_tensor:
            if not change.fits(tensor.shape):
                raise targets.unfit(adapter, name, f"has shape {list(tensor.shape)}")
        own[name] = _apply_changes(tensor, of_tensor) if of_tensor else tensor
    return own


def _apply_changes(tensor: StoredTensor, changes: Sequence[tuple[Adapter, Change]]) -> StoredTensor:
    def changed(applied: Sequence[tuple[Adapter, Change]]) -> Weight:
        weight: Weight = tensor.read().astype("float32")
        for adapter, change in applied:
            weight = change.apply(weight, adapter.weight, base)
        return weight

    def base() -> Weight:
        return changed([pair for pair in changes if isinstance(pair[1], Replacement)])

    def rows() -> FileRows:
        return FileRows.of_floats(changed(changes).reshape(-1, tensor.shape[-1]))

    has_rows = len(tensor.shape) >= _MATRIX
    return replace(
        tensor, read=lambda: changed(changes), blocks=None, rows=rows if has_rows else None
    )


class _Targets:
    """A model's tensors that adapters may change, by the names of files and of modules."""

    def __init__(self, stored: Mapping[str, StoredTensor], modules: Modules, label: str) -> None:
        self._stored, self._modules, self._label = stored, modules, label
        self._in_codes = modules.in_codes(stored)
        self._plain = {modules.plain(name): name for name in (*stored, *self._in_codes)}
        pairs = [
            (head, self._plain[embedding])
            for head, embeddings in modules.heads.items()
            for embedding in embeddings
            if embedding in self._plain
        ]
        self.omitted = {head: name for head, name in pairs if head not in self._plain}
        self._heads = {
            name: self._plain.get(head, head)
            for head, name in pairs
            if head in self.omitted or modules.tied
        }

    def __getitem__(self, name: str) -> StoredTensor:
        own = self.omitted.get(name, name)
        return self._in_codes[own] if own in self._in_codes else self._stored[own]

    def of(self, adapter: Adapter) -> Iterator[tuple[str, Change]]:
        """Yield an adapter's changes with the names of what they change."""
        pairs = [
            pair
            for name, changes in adapter.changes.items()
            for change in changes
            for pair in self._places(name, change, adapter)
        ]
        of_tokens = {name for name, change in pairs if isinstance(change, ReplacedRows)}
        for name, change in pairs:
            yield name, change
            head = self._heads.get(name)
            if isinstance(change, ReplacedRows) and head is not None and head not in of_tokens:
                yield head, change

    def _places(self, name: str, change: Change, adapter: Adapter) -> Iterator[tuple[str, Change]]:
        target = self._find(name)
        if target is not None:
            turned = self._modules.inputs_first(target)
            yield target, with_inputs_first(change) if turned else change
        elif isinstance(change, StackedLowRank) and (parts := self._listed(name)):
            if self._find(parts[0].format(change.experts)) is not None:
                raise self.unfit(adapter, name, f"has more than {change.experts} experts")
            rows = -(-change.outputs // len(parts))
            for expert in range(change.experts):
                for i, part in enumerate(parts):
                    of_part = change.part(expert, slice(i * rows, (i + 1) * rows))
                    yield from self._places(part.format(expert), of_part, adapter)
        elif isinstance(change, Added):
            raise KvcastError(
                f"{adapter.name} adds to {name}, but that layer of {self._label} has no bias, so "
                "that neither kvcast nor peft can merge it: train it without lora_bias"
            )
        else:
            raise KvcastError(f"{adapter.name} changes {name}, which {self._label} does not have")

    def unfit(self, adapter: Adapter, name: str, what: str) -> KvcastError:
        return KvcastError(
            f"{adapter.name} does not fit {self._label}: {name} {what}, unlike its change; "
            "give the model that it was trained for"
        )

    def _find(self, name: str) -> str | None:
        """Return the name in the files, of a head that they omit, or of what they have in codes."""
        if name in self._stored:
            return name
        plain = self._modules.plain(name)
        if plain in self._plain:
            return self._plain[plain]
        if plain in self.omitted:
            return plain
        longer = [own for own in self._stored if own.endswith(f".{plain}")]
        return longer[0] if len(longer) == 1 else None

    def _listed(self, name: str) -> Sequence[str]:
        """Return the names of an expert's matrices, with a place for its number."""
        module, _, parameter = name.rpartition(".")
        for parts in _LISTED.get(parameter, ()):
            if self._find(f"{module}.0.{parts[0]}.weight") is not None:
                return [f"{module}.{{}}.{part}.weight" for part in parts]
        return ()
