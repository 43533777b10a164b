"""The record of a decoder-only model type: defaults, tensor names, differences from Llama."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.tensor_names import NAMES
from kvcast.checkpoints.fields import Fields
from kvcast.families.decoder_dimensions import DecoderDimensions

IMAGES = ("vision_tower.", "vision_model.", "multi_modal_projector.", "connector.")


_Prepare: TypeAlias = Callable[
    [Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]
]


@dataclass(frozen=True, kw_only=True)
class DecoderType:
    """Properties of a model type beyond its configuration.

    `defaults`: transformers' defaults for fields that published configurations leave out.
    `windowed`: whether a layer has a window if there is no layer_types.
    `particulars`: dimensions that other types do not have.
    `spelling`: usual names of fields that the type has under others.
    `inner_per_width`: inner width over the hidden state's where there is no field of it.
    `transposed`: whether matrices of layers are [inputs, outputs].
    `restated`: fields under the names that other types have, if they follow from several.
    `mixers`: of dimensions, by layer types without attention.
    `kernels`: ends of the names of convolutions' kernels.
    `norms_less_one`: whether norm weights are stored minus one; `whole_norms`: ends of the names
        of others.
    `rotary`: settings of rotary embeddings that other types do not have.
    `neighbours`: whether rotary pairs are adjacent rows, not halves of the rotated channels.
    `prepare`: changes tensors that a table of names cannot describe.
    `names_instead`: names that files may have in place of others.
    `foreign`: name prefixes of parts that are not read.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    windowed: Callable[[Fields, int], bool] = lambda _fields, _layer: False
    particulars: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    spelling: Mapping[str, str] = field(default_factory=dict)
    inner_per_width: int = 0
    transposed: bool = False
    restated: Callable[[Fields], Mapping[str, Any]] = lambda _fields: {}
    mixers: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[str, ...] = ()
    norms_less_one: bool = False
    rotary: tuple[str, ...] = ()
    neighbours: bool = False
    prepare: _Prepare = lambda own, _dimensions: dict(own)
    whole_norms: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    names_instead: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def epsilon(self) -> str:
        """Name of the field of the norms' epsilon: the last of `defaults`."""
        return [name for name in self.defaults if name.endswith(("_eps", "_epsilon"))][-1]


DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
"""Of fields that most configurations have."""
