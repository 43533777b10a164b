"""Tensors of GGUF files that a table of names cannot describe, as other formats have them.

Each function changes tensors by their names in a file. Knows no files.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.gguf_delta_nets import DECAY, logarithms
from kvcast.checkpoints.tables import changed, joined_flat, picked, transposed
from kvcast.families.decoder_dimensions import DecoderDimensions

_SHORT_KERNEL = ".shortconv.conv.weight"
_STEPS = (DECAY, ".ssm_d", ".ssm_norm.weight")


def gemma4_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Leave out keys and values of layers that read those of others; divide norms of routers."""
    layers = range(dimensions.reading, dimensions.layers)
    unread = {
        f"blk.{i}.attn_{name}.weight" for i in layers for name in ("k", "v", "k_norm", "v_norm")
    }

    def scaled(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: changed(tensor, scaled) if name.endswith(".ffn_gate_inp.scale") else tensor
        for name, tensor in stored.items()
        if name not in unread
    }


def kernels_turned(
    stored: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return kernels of convolutions, [width, length], as [length, width]."""
    return {
        name: transposed(tensor) if name.endswith(_SHORT_KERNEL) else tensor
        for name, tensor in stored.items()
    }


def state_space_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return state spaces as Mamba's files have them, keys before values in what is convolved."""
    space = dimensions.state_space
    if space is None:
        return dict(stored)
    channels, inputs = (np.array(order) for order in space.mamba_order())

    def own(name: str, tensor: StoredTensor) -> StoredTensor:
        if name.endswith(".ssm_in.weight") and tensor.shape[0] == len(inputs):
            return picked(tensor, inputs)
        if name.endswith(".ssm_conv1d.bias") and tensor.shape == channels.shape:
            return picked(tensor, channels)
        if name.endswith(".ssm_conv1d.weight") and tensor.shape[0] == len(channels):
            return transposed(picked(tensor, channels))
        if name.endswith(_STEPS):
            tensor = joined_flat([tensor])
        return changed(tensor, partial(logarithms, name)) if name.endswith(DECAY) else tensor

    return {name: own(name, tensor) for name, tensor in stored.items()}


def norms_of_ones(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Add weights of norms, which OLMo has none of."""
    ones = StoredTensor(
        shape=(dimensions.width,), read=lambda: np.ones(dimensions.width, np.float32)
    )
    layers = [
        f"blk.{i}.{name}_norm.weight" for i in range(dimensions.layers) for name in ("attn", "ffn")
    ]
    return {**dict.fromkeys(("output_norm.weight", *layers), ones), **stored}


def second_norm_first(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Name the norms of blocks that do not share one: the second in files is attention's."""
    if dimensions.shared_norm:
        return dict(stored)
    usual = {".attn_norm_2.": ".attn_norm.", ".attn_norm.": ".ffn_norm."}
    renamed = {}
    for name, tensor in stored.items():
        file_name = next((part for part in usual if part in name), None)
        renamed[name.replace(file_name, usual[file_name]) if file_name else name] = tensor
    return renamed
