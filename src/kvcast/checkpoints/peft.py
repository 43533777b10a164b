"""Reads LoRA adapters in PEFT's layout.

Fields mean what they mean in PEFT's tuners/lora. Pickled weights are refused, and so are adapters
that cannot be merged into a model's weights.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvcast.checkpoints.base import StoredTensor, read_json_object, require_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.lora import Adapter
from kvcast.checkpoints.lora_changes import (
    Added,
    Change,
    LowRank,
    ReplacedRows,
    Replacement,
    StackedLowRank,
    WeightDecomposed,
)
from kvcast.checkpoints.safetensors import read_safetensors, weight_files
from kvcast.errors import InputMissingError, KvcastError

CONFIG, STEM = "adapter_config.json", "adapter_model"
_PREFIX = "base_model.model."
_TOKENS, _MAGNITUDE, _BIAS = "trainable_tokens_delta", "lora_magnitude_vector", "lora_B.bias"
_PART = re.compile(
    rf"(?P<module>.+)\.(?P<part>lora_(?:embedding_)?[AB]|{_MAGNITUDE}|lora_B\.bias|{_TOKENS})(?:\.weight)?"
)
_NESTED = re.compile(r"(?:\.base_layer)*$")
# Parts of names that PEFT adds when it wraps a module.
_WRAPPED = re.compile(
    r"\.(?:base_layer|modules_to_save(?:\.default)?|original_module|token_adapter)(?=\.)"
)
_EXPERTS = ".experts"
# Parameters of stacked experts in the order in which their modules have them.
_OF_EXPERTS = (
    *("gate_up_proj", "gate_up_proj_bias", "up_proj", "up_proj_bias"),
    *("down_proj", "down_proj_bias"),
)
# Patterns that may take exponentially long, or long: files are not trusted.
_SLOW = re.compile(r"\)[*+{]|(?:[*+?{].*){5}")
_WITHOUT_EFFECT = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "bias",
        "corda_config",
        "ensure_weight_tying",
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
        "lora_bias",
        "target_parameters",
        "trainable_token_indices",
        "use_dora",
    }
)
# Others change the model's weights before training, so that the adapter fits only the changed ones.
_INITIAL = frozenset({True, False, "gaussian", "eva", "orthogonal"})
_ADVICE = "if peft's merge_and_unload can merge it, give the merged model"
_NEVER_MERGED: Mapping[str, str] = {
    "alora_invocation_tokens": "the adapter changes only what follows these tokens, so that no "
    "weights hold it: train it without them",
    "layer_replication": "save the model with these layers as layers of their own, and remove the "
    "field (peft's merge_and_unload would add to one layer what belongs to several)",
}


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
        for name, advice in _NEVER_MERGED.items():
            if values.get(name):
                raise self.fields.error(f"{name} cannot be merged: {advice}")
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

    @property
    def decomposed(self) -> bool:
        return self.fields.flag("use_dora", False)

    @property
    def biased(self) -> bool:
        return self.fields.flag("lora_bias", False)

    def tokens(self, module: str) -> Sequence[int]:
        """Return the ids of the tokens whose embeddings were trained."""
        given = self.fields.values.get("trainable_token_indices")
        if isinstance(given, dict):
            given = next((ids for name, ids in given.items() if _ends(module, str(name))), None)
        if not isinstance(given, list) or not all(type(i) is int and i >= 0 for i in given):
            raise self.fields.error(f"trainable_token_indices lists no token ids for {module}")
        return given

    def parameters(self, module: str) -> Sequence[str]:
        """Return the names of a module's parameters that target_parameters names, in order."""
        given = self.fields.values.get("target_parameters") or []
        if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
            raise self.fields.error("target_parameters must list names")
        named = {name.rpartition(".")[2] for name in given}
        if not module.endswith(_EXPERTS):
            named -= {*_OF_EXPERTS}
        own = [x for x in named if any(_ends(f"{module}.{x}", name) for name in given)]
        if len(own) > 1 and not {*own} <= {*_OF_EXPERTS}:
            raise self.fields.error(f"target_parameters has several of {module}: {_ADVICE}")
        return own if len(own) < 2 else sorted(own, key=_OF_EXPERTS.index)

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


def _ends(name: str, end: str) -> bool:
    """As PEFT matches names of modules and parameters."""
    return f".{name}".endswith(f".{end}")


def _changes(
    stored: Mapping[str, StoredTensor], config: _Config, label: str
) -> dict[str, list[Change]]:
    changes: dict[str, list[Change]] = {}
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        if tensor.problem:
            raise KvcastError(tensor.problem)
        own = name.removeprefix(_PREFIX)
        if part := _PART.fullmatch(own):
            modules.setdefault(part["module"], {})[part["part"]] = tensor
        elif ".lora_" in own or own == name or 0 in tensor.shape:
            raise KvcastError(f"{label}: tensor {name} is not one of a LoRA's: {_ADVICE}")
        else:
            changes[_plain(own)] = [Replacement(tensor=tensor, label=f"{label}: tensor {name}")]
    depths = Counter(map(_plain, modules))
    for module, parts in modules.items():
        of_module = _Module(
            name=_plain(module),
            parts=parts,
            inside=_NESTED.findall(module)[0].count("."),
            wrappers=depths[_plain(module)],
            config=config,
            label=f"{label}: {_plain(module)}",
        )
        for name, change in of_module.changes():
            changes.setdefault(name, []).append(change)
    if not changes:
        raise KvcastError(f"{label} has no tensors: it is no whole adapter")
    return changes


def _plain(name: str) -> str:
    return _WRAPPED.sub("", f"{name}.").removesuffix(".")


@dataclass(frozen=True, kw_only=True)
class _Module:
    """What PEFT saves of one wrapper of a module, of which each parameter may have one."""

    name: str
    parts: Mapping[str, StoredTensor]
    inside: int  # how many wrappers are around this one
    wrappers: int
    config: _Config
    label: str

    def changes(self) -> Iterator[tuple[str, Change]]:
        if _TOKENS in self.parts:
            yield f"{self.name}.weight", self._tokens(self.parts[_TOKENS])
            return
        parameter = self._parameter()
        weight = f"{self.name}.{parameter or 'weight'}"
        whose = weight if parameter else self.name
        rank = self.config.rank(whose)
        scale = self.config.scale(whose, rank)
        if parameter and (stack := self._stack(rank, scale)):
            yield weight, stack
            return
        low_rank = self._low_rank(rank, scale)
        if self.config.decomposed:
            yield weight, self._decomposed(low_rank)
        else:
            yield weight, low_rank
        if bias := self.parts.get(_BIAS):
            yield f"{self.name}.bias", Added(tensor=bias, scale=scale, label=self.label)

    def _parameter(self) -> str:
        """Return the parameter that this wrapper is of, the last one if it is the outermost."""
        parameters = self.config.parameters(self.name)
        if self.wrappers != max(1, len(parameters)) or self.inside >= self.wrappers:
            raise self._error(
                f"target_parameters names {len(parameters)} of its parameters, and the adapter "
                f"has {self.wrappers}: {_ADVICE}"
            )
        return parameters[-1 - self.inside] if parameters else ""

    def _tokens(self, rows: StoredTensor) -> ReplacedRows:
        ids = self.config.tokens(self.name)
        if len(rows.shape) != 2 or rows.shape[0] != len(ids) or not ids:
            raise self._error(
                f"embeddings of {list(rows.shape)} are not of the {len(ids)} tokens that "
                "trainable_token_indices lists"
            )
        return ReplacedRows(tensor=rows, rows=ids, label=self.label)

    def _pair(self) -> tuple[StoredTensor, StoredTensor, bool]:
        """Return both matrices, and whether they are of an embedding."""
        embedding = "lora_embedding_A" in self.parts
        pair = [f"lora_{'embedding_' * embedding}{side}" for side in "AB"]
        biased = self.config.biased and not embedding
        wanted = {*pair, *[_MAGNITUDE] * self.config.decomposed, *[_BIAS] * biased}
        if foreign := self.parts.keys() - wanted:
            raise self._error(f"{min(foreign)} is not one of a LoRA's: {_ADVICE}")
        if missing := wanted - self.parts.keys():
            raise self._error(f"it has no {min(missing)}: it is no whole adapter")
        lora_a, lora_b = (self.parts[name] for name in pair)
        return lora_a, lora_b, embedding

    def _stack(self, rank: int, scale: float) -> StackedLowRank | None:
        """Return the change of several experts; None if the parameter is one matrix."""
        lora_a, lora_b, _ = self._pair()
        if len(lora_a.shape) != 2 or lora_a.shape[0] == rank:
            return None
        if not lora_a.shape[0] or lora_a.shape[0] % rank or lora_b.shape[1:] != lora_a.shape[:1]:
            raise self._unfit(lora_a, lora_b, rank)
        return StackedLowRank(
            lora_a=lora_a, lora_b=lora_b, rank=rank, scale=scale, label=self.label
        )

    def _low_rank(self, rank: int, scale: float) -> LowRank:
        lora_a, lora_b, embedding = self._pair()
        if len(lora_a.shape) < 2 or lora_a.shape[0] != rank or not _fit(lora_b.shape, rank):
            raise self._unfit(lora_a, lora_b, rank)
        return LowRank(
            lora_a=lora_a,
            lora_b=lora_b,
            scale=scale,
            transposed=True if embedding else ("either" if self.config.transposed else False),
            label=self.label,
        )

    def _decomposed(self, low_rank: LowRank) -> WeightDecomposed:
        magnitude, outputs = self.parts[_MAGNITUDE], low_rank.lora_b.shape[0]
        if math.prod(magnitude.shape) != outputs:
            raise self._error(
                f"{_MAGNITUDE} has shape {list(magnitude.shape)} for {outputs} outputs"
            )
        return WeightDecomposed(low_rank=low_rank, magnitude=magnitude)

    def _unfit(self, lora_a: StoredTensor, lora_b: StoredTensor, rank: int) -> KvcastError:
        return self._error(
            f"it has matrices of {list(lora_a.shape)} and {list(lora_b.shape)}, but "
            f"adapter_config.json asks for rank {rank}"
        )

    def _error(self, what: str) -> KvcastError:
        return KvcastError(f"{self.label}: {what}")


def _fit(shape: tuple[int, ...], rank: int) -> bool:
    return len(shape) > 1 and shape[1] == rank and set(shape[2:]) <= {1}
