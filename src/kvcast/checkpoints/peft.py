"""Reads LoRA adapters in PEFT's layout: adapter_config.json, adapter_model.safetensors.

PEFT's tuners/lora decides what fields mean. Pickled weights are refused, and so is everything that
cannot be added to a model's weights or is no LoRA. Knows no model: names are those of its modules.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvcast.checkpoints.base import StoredTensor, read_json_object, require_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.merging import Adapter, Change, LowRank, Replacement
from kvcast.checkpoints.safetensors_files import read_safetensors, weight_files
from kvcast.errors import InputMissingError, KvcastError

CONFIG, STEM = "adapter_config.json", "adapter_model"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<side>[AB])(?:\.weight)?")
# Parts of names that tell how PEFT wrapped a module.
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
"""Fields of training, and those whose tensors tell the same."""

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
# Others change the model's own weights before training, so that the adapter fits those alone.
_INITIAL = frozenset({True, False, "gaussian", "eva", "orthogonal"})
_ADVICE = "merge it with peft's merge_and_unload, and give the merged model"


def is_peft(folder: Path) -> bool:
    """Tell whether a folder has an adapter in this layout."""
    return (folder / CONFIG).is_file()


def read_peft(folder: Path, name: str) -> Adapter:
    """Read an adapter, which users call `name`.

    Raises KvcastError with one line for what is no LoRA, or is not read, or contradicts itself.
    """
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
    """The fields of adapter_config.json."""

    fields: Fields

    def check(self) -> None:
        """Raise KvcastError for fields that change a result and are not computed."""
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
            # Numbers and texts alone configure what a flag or an object turns on.
            known = name in _WITHOUT_EFFECT or name in _COMPUTED
            if not known and value and isinstance(value, bool | dict | list):
                raise self.fields.error(f"{name[:40]!r} is not supported: {_ADVICE}")

    @property
    def base(self) -> str:
        """Return the model that it was trained for."""
        base = self.fields.values.get("base_model_name_or_path")
        return base if isinstance(base, str) and base.isprintable() else ""

    @property
    def transposed(self) -> bool:
        """Whether weights have their inputs first, where their shapes allow it."""
        return self.fields.flag("fan_in_fan_out", False)

    def rank(self, module: str) -> int:
        """Return the rank of a module's matrices."""
        name, fields = self._of("rank_pattern", module, "r")
        return fields.whole(name, 8)

    def scale(self, module: str, rank: int) -> float:
        """Return the factor of a module's product."""
        name, fields = self._of("alpha_pattern", module, "lora_alpha")
        root = self.fields.flag("use_rslora", False)
        return fields.positive(name, 8) / (math.sqrt(rank) if root else rank)

    def _of(self, patterns: str, module: str, usual: str) -> tuple[str, Fields]:
        """Return the name of a module's value, and the fields that have it."""
        group = self.fields.group(patterns) or Fields(values={}, label="")
        for pattern in group.values:
            expression = _expression(pattern)
            if expression is None:
                raise self.fields.error(f"{patterns} has {pattern[:40]!r}, which names no modules")
            if expression.match(module):
                return pattern, group
        return usual, self.fields


def _expression(pattern: str) -> re.Pattern[str] | None:
    """Return a pattern of modules' names as peft matches it; None if it is none."""
    if _SLOW.search(pattern):
        return None
    try:
        return re.compile(rf"(.*\.)?({pattern})$")
    except re.error:
        return None


def _changes(
    stored: Mapping[str, StoredTensor], config: _Config, label: str
) -> dict[str, list[Change]]:
    """Return an adapter's changes by the name of a tensor, those that replace it first."""
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
    """Tell whether a second matrix's shape [outputs, rank], or a convolution's, has this rank."""
    return len(shape) > 1 and shape[1] == rank and set(shape[2:]) <= {1}
