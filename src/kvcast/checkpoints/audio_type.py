"""What differs between the types of decoders that hear, in Hugging Face layout. Knows no type."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.families.sound_encoder import SoundEncoder

_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}


@dataclass(frozen=True, kw_only=True)
class AudioType:
    """Properties of a model type.

    Attributes:
        decoder: the usual model type of its `text_config`.
        text: values of fields that its `text_config` may leave out, over the decoder's own.
        encoder: reads the encoder's dimensions from the outer fields.
        check: raises KvcastError for a folder that declares other features.
        prefixes: how names of the encoder's tensors begin, without what the whole is called.
        names: names of the encoder's tensors in files, by canonical name.
        renamed: names in other files of the type, as regular expressions with replacements.
        prepare: changes the encoder's tensors as they are read; takes a name for messages.
        prepare_text: changes the decoder's, by the encoder's dimensions.
        fixed: values that fields of its `text_config` count as, whatever they are.
        adapted: whether a folder may have an adapter that is a part of the model.
        lenient: whether files have tensors of the encoder that are no part of the model.

    """

    decoder: str
    text: Mapping[str, Any]
    encoder: Callable[[Fields], SoundEncoder]
    check: Callable[[Path, Any], None]
    prefixes: tuple[str, ...]
    names: Mapping[str, Sequence[str]]
    prepare: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]]
    prepare_text: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]] = (
        lambda tensors, _, __: tensors
    )
    renamed: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    adapted: bool = False
    lenient: bool = False


def group_of_audio(outer: Fields, usual: Mapping[str, Any]) -> Fields:
    """Return the fields of `audio_config` over their usual values."""
    given = outer.group("audio_config")
    values = {**usual, **({} if given is None else given.values)}
    return Fields(values=values, label=outer.label if given is None else given.label)


def of_modules(modules: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the names of matrices and biases of modules by canonical name."""
    return {
        f"{ours}.{leaf}": tuple(f"{module}.{leaf}" for module in theirs)
        for ours, theirs in modules.items()
        for leaf in ("weight", "bias")
    }


def activation_of(fields: Fields, name: str, usual: str = "gelu") -> str:
    """Return kvcast's name of an activation."""
    activation = str(fields.values.get(name) or usual)
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise fields.error(f"{name} {activation!r} is not supported (supported: {supported})")
    return _ACTIVATIONS[activation]


def with_key_biases(tensors: dict[str, StoredTensor], _: Any, __: str) -> dict[str, StoredTensor]:
    """Return tensors with biases of keys, which Whisper's encoder and those like it lack."""
    own = dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(".k_proj.weight"):
            own.setdefault(name.replace("weight", "bias"), _zeros(weight.shape[:1]))
    return own


def _zeros(shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(shape=shape, read=lambda: np.zeros(shape, np.float16))
