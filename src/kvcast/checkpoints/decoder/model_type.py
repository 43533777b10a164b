"""The record of a decoder-only model type: defaults, tensor names, differences from Llama."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.tensor_names import NAMES
from kvcast.checkpoints.fields import Fields
from kvcast.families.decoder_dimensions import DecoderDimensions

IMAGES = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")


Factor: TypeAlias = float | NDArray[np.float32]


_Prepare: TypeAlias = Callable[
    [Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]
]


@dataclass(frozen=True, kw_only=True)
class DecoderType:
    """Properties of a model type beyond its configuration."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # transformers' defaults
    # whether a layer has a window if there is no layer_types
    windowed: Callable[[Fields, int], bool] = lambda _fields, _layer: False
    # dimensions that other types do not have
    particulars: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    spelling: Mapping[str, str] = field(default_factory=dict)  # usual names of fields by ours
    # what replaces patterns in the names of tensors
    spellings: Mapping[str, str] = field(default_factory=dict)
    # what patterns in the names of tensors are in the names of transformers' modules
    modules: Mapping[str, str] = field(default_factory=dict)
    inner_per_width: int = 0  # inner width over the hidden state's where there is no field of it
    transposed: bool = False  # whether matrices of layers are [inputs, outputs]
    # fields under the names that other types have, if they follow from several
    restated: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    mixers: Mapping[str, str] = field(default_factory=dict)  # by layer types
    # factors on tensors by ends of their names, of each value or row
    factors: Callable[[Fields], Mapping[str, Factor]] = lambda _fields: {}
    kernels: tuple[str, ...] = ()  # ends of the names of convolutions' kernels
    norms_less_one: bool = False  # whether norm weights are stored minus one
    rotary: tuple[str, ...] = ()  # settings of rotary embeddings that other types do not have
    neighbours: bool = False  # whether rotary pairs are adjacent rows, not halves
    neighbours_field: str = ""  # the field that says so; empty: none
    prepare: _Prepare = lambda own, _dimensions: dict(own)  # beyond a table of names
    whole_norms: tuple[str, ...] = ()  # of others, ends of their names
    foreign: tuple[str, ...] = ()  # name prefixes of parts that are not read
    # names that files may have in place of others
    names_instead: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def epsilon(self) -> str:
        """Field of the norms' epsilon: the last of `defaults`."""
        return [name for name in self.defaults if name.endswith(("_eps", "_epsilon"))][-1]


DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Of fields that most configurations have."""


GRANITE_DEFAULTS: Mapping[str, Any] = {
    **DEFAULTS,
    "attention_bias": False,
    "embedding_multiplier": 1.0,
    "attention_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
