"""GGUF files of Kimi Linear, as llama.cpp converts them.

Layers with delta nets are those without heads of keys. Their queries, keys and values have kernels
of their own, with axes of 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.hybrid import LINEAR
from kvcast.checkpoints.decoder.kimi import Leaves, join_parts
from kvcast.checkpoints.gguf.fields import Config, Values, routed_fields, without_keys
from kvcast.checkpoints.gguf.latents import LATENT_NAMES, latent_fields
from kvcast.checkpoints.gguf.tensors import DECAY, LAYER, logarithms
from kvcast.checkpoints.tensor_names import apply_change
from kvcast.families.decoder_dimensions import DecoderDimensions

KIMI_NAMES: Mapping[str, Sequence[str]] = {
    **LATENT_NAMES,
    f"{LAYER}.delta.input.weight": tuple(
        f"blk.{{i}}.{name}.weight"
        for name in ("attn_q", "attn_k", "attn_v", "ssm_g_a", "ssm_beta", "ssm_f_a")
    ),
    **{
        f"{LAYER}.delta.{ours}": (f"blk.{{i}}.{theirs}",)
        for ours, theirs in {
            "gate.weight": "ssm_g_b.weight",
            "step.weight": "ssm_f_b.weight",
            "kernel": "ssm_conv1d.weight",
            "decay": "ssm_a",
            "step_bias": "ssm_dt.bias",
            "norm.weight": "ssm_norm.weight",
            "out.weight": "attn_output.weight",
        }.items()
    },
}
_LEAVES = Leaves(
    query=".attn_q.weight",
    latent_query=".attn_q_b.weight",
    latent=".attn_kv_a_mqa.weight",
    decay=DECAY,
    kernels=[f".ssm_conv1d_{part}.weight" for part in "qkv"],
    kernel=".ssm_conv1d.weight",
)


def kimi_fields(values: Values) -> Config:
    # Of values, files have a size that means nothing.
    sizes = latent_fields(values, checks_values=False) | routed_fields(values)
    return sizes | {
        "layer_types": without_keys(values, LINEAR),
        "linear_head_dim": values.whole("kda.head_dim"),
        "linear_num_heads": values.same_whole("attention.head_count"),
        "linear_conv_kernel_dim": values.whole("ssm.conv_kernel"),
    }


def kimi_tensors(
    stored: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return joined kernels, logarithms of decays, and queries that attend by one name."""
    return join_parts({name: _usual(name, tensor) for name, tensor in stored.items()}, _LEAVES)


def _usual(name: str, tensor: StoredTensor) -> StoredTensor:
    if name.endswith(DECAY):
        return apply_change(tensor, partial(logarithms, name))
    return _by_position(tensor) if name.endswith(tuple(_LEAVES.kernels)) else tensor


def _by_position(kernel: StoredTensor) -> StoredTensor:
    """[width, length], perhaps with axes of 1, to [length, width]."""
    length = kernel.shape[-1]
    width = prod(kernel.shape[:-1])

    def change(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(width, length).T

    return replace(apply_change(kernel, change), shape=(length, width))
