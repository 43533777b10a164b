"""GGUF files of models that attend to latents, as llama.cpp converts them.

Newer files have sizes as of one head that all queries share, whose keys are latents and whose
values are latents alone; those of heads have names ending in _mla. The matrices that latents are
multiplied with are a stack for keys, transposed, and one for values. Older files have the sizes of
heads alone, and the matrices in one, as MiniCPM 3's all have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.latents import divided, stack, tails_in_halves
from kvcast.checkpoints.gguf.fields import (
    KV_HEADS,
    RANK,
    SIGMOID,
    SOFTMAX,
    Config,
    Values,
    routed_fields,
)
from kvcast.checkpoints.gguf.tensors import CHOICE_BIAS, LAYER, NAMES
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions

LATENT_NAMES: Mapping[str, Sequence[str]] = {
    **NAMES,
    **{
        f"{LAYER}.attention.{ours}": (f"blk.{{i}}.{theirs}.weight",)
        for ours, theirs in {
            "query_latent.weight": "attn_q_a",
            "query_latent_norm.weight": "attn_q_a_norm",
            "query.weight": "attn_q_b",
            "latent.weight": "attn_kv_a_mqa",
            "latent_norm.weight": "attn_kv_a_norm",
            "key_b": "attn_k_b",
            "value_b": "attn_v_b",
            "indexer.query.weight": "indexer.attn_q_b",
            "indexer.key.weight": "indexer.attn_k",
            "indexer.key_norm.weight": "indexer.k_norm",
            "indexer.weights.weight": "indexer.proj",
        }.items()
    },
    f"{LAYER}.attention.indexer.key_norm.bias": ("blk.{i}.indexer.k_norm.bias",),
}
LATENT_QUERY_NAMES = {f"{LAYER}.attention.query.weight": ("blk.{i}.attn_q.weight",)}
_KEY_VALUE, _KEY, _VALUE = ".attn_kv_b.weight", ".attn_k_b.weight", ".attn_v_b.weight"
STACKS = (_KEY, _VALUE)
_KEY_DIM, _VALUE_DIM = "attention.key_length", "attention.value_length"
_MLA = "_mla"
_INDEXER = "attention.indexer"
_CONTEXT_OF_GLM_52 = 1 << 20
_GATING, _NORMALISED = "expert_gating_func", "expert_weights_norm"
_QUERY_RANK = "attention.q_lora_rank"


def latent_type(values: Values) -> str:
    """Return the model type with a file's routing; llama.cpp has one architecture for all."""
    if not values.count("expert_count"):
        return "youtu"
    # Files of DeepSeek V2 may have no number of a function, and so may GLM 4.7 Flash's.
    usual = SIGMOID if values.has_tensor(CHOICE_BIAS) else SOFTMAX
    if (values.whole(_GATING, 0, least=0, most=SIGMOID) or usual) == SIGMOID:
        return "deepseek_v3"
    normalised = values.architecture == "mistral4" or values.flag(_NORMALISED, False)
    return "mistral4" if normalised else "deepseek_v2"


def latent_fields(values: Values, *, checks_values: bool = True) -> Config:
    rank, heads = values.whole(RANK), values.same_whole("attention.head_count")
    rotated = values.whole("rope.dimension_count")
    key, value = values.head_dim, values.whole("embedding_length") // heads
    value = values.whole(_VALUE_DIM, value)
    if values.has(_KEY_DIM + _MLA):
        shared = {_KEY_DIM: rank + rotated, KV_HEADS: 1}
        if checks_values:
            shared |= {_VALUE_DIM: rank}
        for name, expected in shared.items():
            if values.same_whole(name, absent=0) != expected:
                raise _contradiction(values, name, expected)
        key, value = values.whole(_KEY_DIM + _MLA), values.whole(_VALUE_DIM + _MLA)
    elif values.same_whole(KV_HEADS, heads, absent=0) != heads:
        raise _contradiction(values, KV_HEADS, heads)
    if key <= rotated:
        raise values.fields.error(
            f"heads have {key} channels, of which {rotated} are rotated and none are not"
        )
    return {
        "num_key_value_heads": heads,
        "kv_lora_rank": rank,
        "q_lora_rank": values.count(_QUERY_RANK) or None,
        "qk_nope_head_dim": key - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        **(_routing(values) if values.count("expert_count") else {}),
    }


def indexed_fields(values: Values) -> Config:
    """Of DeepSeek V3.2 and GLM 5, whose queries read the positions that an indexer chooses."""
    return latent_fields(values) | {
        "index_n_heads": values.whole(f"{_INDEXER}.head_count"),
        "index_head_dim": values.whole(f"{_INDEXER}.key_length"),
        "index_topk": values.whole(f"{_INDEXER}.top_k"),
    }


def glm5_fields(values: Values) -> Config:
    """Files made before GLM 5.2 do not say which layers choose; llama.cpp goes by the context."""
    own, types = indexed_fields(values), values.plain(f"{_INDEXER}.types")
    if isinstance(types, np.ndarray):
        return own | {"indexer_types": ["full" if full else "shared" for full in types.tolist()]}
    is_newer = values.whole("context_length") >= _CONTEXT_OF_GLM_52
    return own | {"index_topk_freq": 4 if is_newer else 1, "index_skip_topk_offset": 3}


def _routing(values: Values) -> Config:
    config = routed_fields(values, values.whole(_GATING, SIGMOID, least=0))
    method = "greedy" if config["n_group"] == 1 else "group_limited_greedy"
    return config | {"norm_topk_prob": values.flag(_NORMALISED, False), "topk_method": method}


def _contradiction(values: Values, name: str, expected: int) -> KvcastError:
    return values.fields.error(
        f"{values.architecture}.{name} must be {expected} with these latents"
    )


def latent_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions, *, neighbours: bool
) -> dict[str, StoredTensor]:
    """Return keys' and values' matrices as two stacks, and rotary pairs as halves."""
    heads, own = dimensions.heads, dict[str, StoredTensor]()
    for name, tensor in stored.items():
        if name.endswith(_KEY_VALUE):
            layer = name.removesuffix(_KEY_VALUE)
            parts = divided(tensor, dimensions)
            own |= dict(zip((layer + _KEY, layer + _VALUE), parts, strict=True))
        elif name.endswith(_KEY):
            own[name] = _upright(stack(tensor, heads))
        else:
            own[name] = stack(tensor, heads) if name.endswith(_VALUE) else tensor
    return tails_in_halves(own, dimensions) if neighbours else own


def _upright(matrices: StoredTensor) -> StoredTensor:
    """Transpose each of a stack, whose codes are along the other axis."""

    def read() -> NDArray[np.generic]:
        return np.ascontiguousarray(matrices.read().swapaxes(-2, -1))

    shape = *matrices.shape[:-2], matrices.shape[-1], matrices.shape[-2]
    return replace(matrices, shape=shape, read=read, blocks=None, rows=None)
