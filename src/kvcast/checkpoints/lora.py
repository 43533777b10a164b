"""LoRA adapters: reads PEFT's layout, and merges adapters into tensors when these are read.

Fields mean what they mean in PEFT's tuners/lora. Pickled weights are refused, and so are adapters
that cannot be merged into a model's weights. Tensors have the names of the files, before a family
joins and reorders them: only the adapted part of a fused tensor changes.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.checkpoints.base import StoredTensor, read_json_object, require_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.safetensors import read_safetensors, weight_files
from kvcast.errors import InputMissingError, KvcastError
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
    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether the change fits a tensor of this shape."""

    def apply(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        """With this share of the change, perhaps in place; KvcastError for a damaged change."""


@dataclass(frozen=True, kw_only=True)
class LowRank(Change):
    lora_a: StoredTensor  # [rank, inputs], of a convolution [rank, channels, size]
    lora_b: StoredTensor  # [outputs, rank], of a convolution [outputs, rank, 1]
    scale: float
    transposed: bool | Literal["either"] = False  # inputs first; "either": if shapes allow it
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == (self._shape[::-1] if self._is_transposed(shape) else self._shape)

    @override
    def apply(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        rank, scale = self.lora_a.shape[0], share * self.scale
        lora_a = self.lora_a.read().astype(np.float32).reshape(rank, -1)
        lora_b = self.lora_b.read().astype(np.float32).reshape(-1, rank)
        most = rank * float(np.abs(lora_a).max()) * float(np.abs(lora_b).max())
        if not max(most, most * abs(scale), abs(scale)) < _MOST:  # NaN is not, either
            raise KvcastError(f"{self.label} is damaged: it holds numbers that are not finite")
        product = ((np.float32(scale) * lora_b) @ lora_a).reshape(self._shape)
        weight += product.T if self._is_transposed(weight.shape) else product
        return weight

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.lora_b.shape[0], *self.lora_a.shape[1:])

    def _is_transposed(self, shape: tuple[int, ...]) -> bool:
        either = isinstance(self.transposed, str)
        return shape == self._shape[::-1] if either else bool(self.transposed)


@dataclass(frozen=True, kw_only=True)
class Replacement(Change):
    """A tensor that was trained whole; a share of it is that share of the difference."""

    tensor: StoredTensor
    label: str

    @override
    def fits(self, shape: tuple[int, ...]) -> bool:
        return shape == self.tensor.shape

    @override
    def apply(self, weight: NDArray[np.float32], share: float) -> NDArray[np.float32]:
        trained = self.tensor.read().astype(np.float32)
        if not np.isfinite(trained).all():
            raise KvcastError(f"{self.label} is damaged: it holds numbers that are not finite")
        return trained if share == 1 else weight + np.float32(share) * (trained - weight)


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


def merge(
    stored: Mapping[str, StoredTensor],
    adapters: Iterable[Adapter],
    label: str,
    heads: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, StoredTensor]:
    """Merge adapters; KvcastError, naming the adapter, for missing or misshapen tensors.

    `heads` maps the name of a head that files omit to the possible names of the tied embedding.
    Training changed only one of both: the other is unchanged.
    """
    changes: dict[str, list[tuple[Adapter, Change]]] = {}
    own = {**stored}
    names = _Names(stored, heads or {})
    for adapter in adapters:
        for name, of_one in adapter.changes.items():
            target = names.find(name)
            if target is None:
                raise KvcastError(f"{adapter.name} changes {name}, which {label} does not have")
            if original := names.original(target):
                own.setdefault(target, stored[original])
            changes.setdefault(target, []).extend((adapter, change) for change in of_one)
    for head, embedding in names.tied_names():
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
        own[name] = _apply_changes(own[name], of_tensor)
    return own


def _apply_changes(tensor: StoredTensor, changes: Sequence[tuple[Adapter, Change]]) -> StoredTensor:
    def read() -> NDArray[np.float32]:
        weight: NDArray[np.float32] = tensor.read().astype(np.float32)
        for adapter, change in changes:
            weight = change.apply(weight, adapter.weight)
        return weight

    def rows() -> FileRows:
        return FileRows.of_floats(read().reshape(-1, tensor.shape[-1]))

    has_rows = len(tensor.shape) >= _MATRIX
    return replace(tensor, read=read, blocks=None, rows=rows if has_rows else None)


class _Names:
    """Names of a model's tensors, found by an adapter's, which may have other prefixes."""

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

    def find(self, name: str) -> str | None:
        """Return the name in the files, or of a head that files omit."""
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
        return self._embeddings.get(head)

    def tied_names(self) -> Iterable[tuple[str, str]]:
        return self._embeddings.items()


CONFIG, STEM = "adapter_config.json", "adapter_model"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
# Parts of names that PEFT adds when it wraps a module.
_WRAPPED = re.compile(r"\.(?:base_layer|modules_to_save(?:\.default)?|original_module)(?=\.)")
# Patterns that may take exponentially long, or long: files are not trusted.
_SLOW = re.compile(r"\)[*+{]|(?:[*+?{].*){5}")
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "eva_config",
        "exclude_modules",
        "inference_mode",
        "layers_pattern",
        "layers_to_transform",
        "loftq_config",
        "lora_dropout",
        "lora_ga_config",
        "megatron_config",
        "megatron_core",
        "modules_to_save",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "target_modules",
        "task_type",
    }
)
"""Fields of training, and fields that tensors already show."""

_COMPUTED = frozenset(
    {
        "peft_type",
        "r",
        "lora_alpha",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "fan_in_fan_out",
        "init_lora_weights",
    }
)
# Others change the model's weights before training, so that the adapter fits only the changed ones.
_INITIAL = frozenset({True, False, "gaussian", "eva", "orthogonal"})
_ADVICE = "merge it with peft's merge_and_unload, and give the merged model"


def is_peft(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def read_peft(folder: Path, name: str) -> Adapter:
    """KvcastError with one line for an adapter that is no LoRA, unsupported or inconsistent."""
    path = require_file(folder / CONFIG, "it is no adapter in PEFT's layout")
    config = _Config(fields=Fields(values=read_json_object(path), label=str(path)))
    config.check()
    files = weight_files(folder, STEM)
    if not files:
        pickled = (folder / f"{STEM}.bin").is_file()
        raise InputMissingError(
            f"no {STEM}.safetensors in {folder}"
            + (": kvcast reads no pickled weights; save the adapter with peft again" * pickled)
        )
    stored: dict[str, StoredTensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            stored |= read_safetensors(file)
    return Adapter(
        name=name,
        layout="PEFT",
        files=[path, *files],
        changes=_changes(stored, config, str(folder)),
        base=config.base,
    )


@dataclass(frozen=True, kw_only=True)
class _Config:
    fields: Fields

    def check(self) -> None:
        values = self.fields.values
        if (kind := values.get("peft_type")) != "LORA":
            raise self.fields.error(f"peft_type {str(kind)[:40]!r} is not LORA: {_ADVICE}")
        initial = values.get("init_lora_weights")
        if initial is not None and (not isinstance(initial, bool | str) or initial not in _INITIAL):
            raise self.fields.error(
                f"init_lora_weights {str(initial)[:40]!r} changes the model's own weights: convert "
                f"the adapter to LoRA as peft's documentation says, or {_ADVICE}"
            )
        for name, value in values.items():
            # Scalars and strings only configure features that a flag or an object turns on.
            known = name in _WITHOUT_EFFECT or name in _COMPUTED
            if not known and value and isinstance(value, bool | dict | list):
                raise self.fields.error(f"{name[:40]!r} is not supported: {_ADVICE}")

    @property
    def base(self) -> str:
        base = self.fields.values.get("base_model_name_or_path")
        return base if isinstance(base, str) and base.isprintable() else ""

    @property
    def transposed(self) -> bool:
        return self.fields.flag("fan_in_fan_out", False)

    def rank(self, module: str) -> int:
        name, fields = self._of("rank_pattern", module, "r")
        return fields.whole(name, 8)

    def scale(self, module: str, rank: int) -> float:
        name, fields = self._of("alpha_pattern", module, "lora_alpha")
        root = self.fields.flag("use_rslora", False)
        return fields.positive(name, 8) / (math.sqrt(rank) if root else rank)

    def _of(self, patterns: str, module: str, usual: str) -> tuple[str, Fields]:
        group = self.fields.group(patterns) or Fields(values={}, label="")
        for pattern in group.values:
            expression = _expression(pattern)
            if expression is None:
                raise self.fields.error(f"{patterns} has {pattern[:40]!r}, which names no modules")
            if expression.match(module):
                return pattern, group
        return usual, self.fields


def _expression(pattern: str) -> re.Pattern[str] | None:
    """As PEFT matches module names; None if invalid, or if matching could take very long."""
    if _SLOW.search(pattern):
        return None
    try:
        return re.compile(rf"(.*\.)?({pattern})$")
    except re.error:
        return None


def _changes(
    stored: Mapping[str, StoredTensor], config: _Config, label: str
) -> dict[str, list[Change]]:
    changes: dict[str, list[Change]] = {}
    factors: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        if tensor.problem:
            raise KvcastError(tensor.problem)
        own = name.removeprefix(_PREFIX)
        if factor := _FACTOR.fullmatch(own):
            side = (factor["embedding"] or "") + factor["side"]
            factors.setdefault(_plain(factor["module"]), {})[side] = tensor
        elif ".lora_" in own or own == name or 0 in tensor.shape:
            raise KvcastError(f"{label}: tensor {name} is not one of a LoRA's: {_ADVICE}")
        else:
            changes[_plain(own)] = [Replacement(tensor=tensor, label=f"{label}: tensor {name}")]
    for module, sides in factors.items():
        low_rank = _low_rank(module, sides, config, label)
        changes.setdefault(f"{module}.weight", []).append(low_rank)
    if not changes:
        raise KvcastError(f"{label} has no tensors: it is no whole adapter")
    return changes


def _plain(name: str) -> str:
    return _WRAPPED.sub("", f"{name}.").removesuffix(".")


def _low_rank(
    module: str, sides: Mapping[str, StoredTensor], config: _Config, label: str
) -> LowRank:
    embedding = "embedding_A" in sides
    wanted = ("embedding_A", "embedding_B") if embedding else ("A", "B")
    if sides.keys() != set(wanted):
        raise KvcastError(f"{label}: {module} has one matrix of two: it is no whole adapter")
    lora_a, lora_b = (sides[side] for side in wanted)
    rank = config.rank(module)
    if len(lora_a.shape) < 2 or lora_a.shape[0] != rank or not _fit(lora_b.shape, rank):
        raise KvcastError(
            f"{label}: {module} has matrices of {list(lora_a.shape)} and {list(lora_b.shape)}, "
            f"but adapter_config.json asks for rank {rank}"
        )
    return LowRank(
        lora_a=lora_a,
        lora_b=lora_b,
        scale=config.scale(module, rank),
        transposed=True if embedding else ("either" if config.transposed else False),
        label=f"{label}: {module}",
    )


def _fit(shape: tuple[int, ...], rank: int) -> bool:
    return len(shape) > 1 and shape[1] == rank and set(shape[2:]) <= {1}
