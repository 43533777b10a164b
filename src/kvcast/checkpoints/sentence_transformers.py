"""Reads sentence-transformers' configuration of a text encoder: pooling, dense layers, prompts.

modules.json lists the modules in order, each with its folder: Transformer, Pooling, and optional
Dense and Normalize. Without modules.json, hidden states are mean-pooled, as in
sentence-transformers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kvcast.checkpoints.base import StoredTensor, read_json, read_json_object, require_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.safetensors import read_safetensors
from kvcast.errors import InputOutputError, KvcastError
from kvcast.families.text_encoder import Projection

MODULES = "modules.json"
_TEXTS, _PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"
PATTERNS = (
    *(MODULES, _TEXTS, _PROMPTS),
    *(f"*_Pooling/{_CONFIG}", f"*_Dense/{_CONFIG}", f"*_Dense/{_WEIGHTS}"),
)
"""Its files in a repository."""

_POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_NAMES = {**{name: name for name in _POOLINGS.values()}, "lasttoken": "last"}
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}


@dataclass(frozen=True, kw_only=True)
class SentenceModel:
    pooling: str = "mean"
    head: Sequence[Projection] = ()
    normalized: bool = False
    longest: int | None = None  # tokens of the longest text; None: as many as the model takes
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    tensors: Mapping[str, StoredTensor] = field(default_factory=dict)  # of the head


def is_sentence_model(folder: Path) -> bool:
    return (folder / MODULES).is_file()


def sentence_files(folder: Path) -> list[Path]:
    """Return the files that `read_sentence_model` reads."""
    names = (MODULES, _TEXTS, _PROMPTS)
    files = [folder / name for name in names if (folder / name).is_file()]
    for kind, place in _modules(folder):
        named = {"Pooling": (_CONFIG,), "Dense": (_CONFIG, _WEIGHTS)}.get(kind, ())
        files += [require_file(place / name, f"{MODULES} names it: fetch it too") for name in named]
    return files


def read_sentence_model(folder: Path) -> SentenceModel:
    """Raise KvcastError for parts that are not supported, or damaged files."""
    pooling, head, normalized = "mean", list[Projection](), False
    tensors: dict[str, StoredTensor] = {}
    for kind, place in _modules(folder):
        if normalized:
            raise KvcastError(f"{folder / MODULES}: {kind} after Normalize is not supported")
        if kind == "Pooling":
            pooling = _pooling(_fields(place / _CONFIG))
        elif kind == "Dense":
            for name, tensor in read_safetensors(place / _WEIGHTS).items():
                tensors[f"head.{len(head)}.{name.removeprefix('linear.')}"] = tensor
            head.append(_dense(_fields(place / _CONFIG)))
        else:
            normalized = True
    texts, about = _optional(folder / _TEXTS), _optional(folder / _PROMPTS)
    longest = texts.values.get("max_seq_length")
    prompts = about.group_over("prompts", {}).values
    if not all(type(prompt) is str for prompt in prompts.values()):
        raise about.error("prompts must be texts by name")
    default = about.values.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise about.error(f"default_prompt_name {default!r} is none of its prompts")
    return SentenceModel(
        pooling=pooling,
        head=head,
        normalized=normalized,
        longest=None if longest is None else texts.whole("max_seq_length"),
        lowercase=texts.flag("do_lower_case", False),
        prompts=prompts,
        default_prompt=default,
        tensors=tensors,
    )


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind and the folder of each part after the transformer."""
    path = folder / MODULES
    if not path.is_file():
        return
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(part, dict) for part in listed):
        raise InputOutputError(f"{path} is damaged: it lists no modules; fetch it again")
    for i, part in enumerate(listed):
        kind = str(part.get("type")).rpartition(".")[2]
        place = PurePosixPath(str(part.get("path", "")))
        if place.is_absolute() or ".." in place.parts or not str(place).isprintable():
            raise KvcastError(f"{path} names {str(place)[:80]!r}, which is not inside its folder")
        if i == 0:
            if kind != "Transformer" or place.parts:
                raise KvcastError(f"{path}: the first module must be a Transformer in its folder")
            continue
        if kind not in ("Pooling", "Dense", "Normalize"):
            raise KvcastError(
                f"{path}: module {kind[:40]!r} is not supported (supported: Transformer, Pooling, "
                "Dense, Normalize)"
            )
        yield kind, folder / place


def _pooling(fields: Fields) -> str:
    if not fields.flag("include_prompt", True):
        raise fields.error("include_prompt must be true")
    if (named := fields.values.get("pooling_mode")) is not None:
        chosen = [str(named)]
    else:
        marked = [name for name in fields.values if name.startswith("pooling_mode_")]
        chosen = [_POOLINGS.get(name, name) for name in marked if fields.flag(name)]
    if len(chosen) != 1 or chosen[0] not in _NAMES:
        raise fields.error(
            f"pooling by {', '.join(chosen) or 'nothing'} is not supported (supported: "
            f"one of {', '.join(_POOLINGS.values())})"
        )
    return _NAMES[chosen[0]]


def _dense(fields: Fields) -> Projection:
    activation = str(fields.values.get("activation_function", "Tanh")).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise fields.error(
            f"activation_function {activation!r} is not supported (supported: "
            f"{', '.join(_ACTIVATIONS)})"
        )
    return fields.make(
        Projection,
        outputs=fields.whole("out_features"),
        bias=fields.flag("bias", True),
        activation=_ACTIVATIONS[activation],
    )


def _fields(path: Path) -> Fields:
    return Fields(values=read_json_object(path), label=str(path))


def _optional(path: Path) -> Fields:
    return _fields(path) if path.is_file() else Fields(values={}, label=str(path))
