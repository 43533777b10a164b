"""Model types whose attention is to latents: MiniCPM 3, Youtu-LLM and DeepSeek's kin.

Files have one matrix, `kv_b_proj`, whose rows are each head's keys, then its values. It is read as
two stacks of matrices.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.fields import (
    deepseek3_experts,
    deepseek_experts,
    llama,
    unrotated,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, IMAGES, DecoderType
from kvcast.checkpoints.decoder.rotary import (
    FULL,
    QUERY_BETA,
    SHARE,
    read_rotary,
    rotary_parameters,
)
from kvcast.checkpoints.decoder.tensor_names import (
    AXK1_NAMES,
    AXK1_NAMES_IN_MEMORY,
    LATENT_NAMES,
    LATENT_QUERY_NAMES,
    MISTRAL_LARGE_4_NAMES,
    MISTRAL_LARGE_4_NAMES_IN_MEMORY,
    MISTRAL_SIGHTS,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tensor_names import apply_change, by_part, head_order, reorder
from kvcast.families.decoder_dimensions import DecoderDimensions, scaled_residuals
from kvcast.families.feed_forwards import Routing
from kvcast.families.latents import Indexer, Latents
from kvcast.families.mixers import ATTENTION
from kvcast.spec.sizes import MOST_LAYERS

_NORM_EPSILON = 1e-6  # of latents' norms, whatever rms_norm_eps is
# In folders and in GGUF files.
_QUERY = re.compile(
    r"\.(?:self_attn\.q(?:_b)?_proj|attention\.wq|(?<!indexer\.)attn_q(?:_b)?)\.weight$"
)
_LATENT = re.compile(
    r"\.(?:self_attn\.kv_a_proj_with|attention\.wkv_a_with|attn_kv_a)_mqa\.(?:weight|bias)$"
)
_KEY_VALUE = re.compile(r"(\.self_attn\.kv_b_proj|\.attention\.wkv_b)\.weight$")
_MLX_KEYS, _MLX_VALUES = ".embed_q.weight", ".unembed_out.weight"
"""Of mlx-lm 0.32.2: keys' by head, [rank, size], and values' in the same order as here."""
_INDEX_QUERIES = "wq_b.weight", "attn_q_b.weight"  # of folders, of GGUF files
_INDEX_KEYS = "wk.weight", "attn_k.weight", "k_norm.weight", "k_norm.bias"
_LAYER = re.compile(r"\b(?:layers|blk)\.(\d{1,9})\.")


def latents(fields: Fields) -> dict[str, Any]:
    heads, biased = fields.whole("num_attention_heads"), fields.flag("attention_bias")
    if fields.whole("num_key_value_heads", heads) != heads:
        raise fields.error(f"num_key_value_heads must be {heads}: latents are of all heads")
    has_rank = fields.values.get("q_lora_rank") is not None
    sizes = Latents(
        rank=fields.whole("kv_lora_rank"),
        query_rank=fields.whole("q_lora_rank") if has_rank else 0,
        plain_dim=fields.whole("qk_nope_head_dim"),
        rotated_dim=fields.whole("qk_rope_head_dim"),
        value_dim=fields.whole("v_head_dim", fields.whole("hidden_size") // heads),
        norm_eps=_NORM_EPSILON,
        bias=biased,
    )
    return {
        "latents": sizes,
        "head_dim": sizes.head_dim,
        "kv_heads": heads,
        "attention_scale": sizes.head_dim**-0.5 * _sharpness(fields),
        "out_bias": biased,
    }


def _sharpness(fields: Fields) -> float:
    """Return DeepSeek's factor on scores of models with longer contexts than trained."""
    parameters = rotary_parameters(fields, FULL)
    kind = parameters.values.get("rope_type") or parameters.values.get("type") or "default"
    if kind == "default" or not parameters.values.get("mscale_all_dim"):
        return 1.0
    factor, scale = parameters.positive("factor"), parameters.positive("mscale_all_dim")
    once = 0.1 * scale * math.log(max(factor, 1.0)) + 1.0
    return once * once


def _mixture(fields: Fields, experts: Mapping[str, Any]) -> dict[str, Any]:
    """Return experts in all layers but some, which may be all of them."""
    fields.require({"moe_layer_freq": 1})  # of files alone
    inner, dense = fields.whole("intermediate_size"), _dense_layers(fields)
    if len(dense) == fields.whole("num_hidden_layers", most=MOST_LAYERS):
        return {"inner": inner}
    return {**experts, "dense_layers": tuple(dense), "dense_inner": inner if dense else 0}


def _dense_layers(fields: Fields) -> Sequence[int]:
    """Return the layers without experts, which are listed or come first."""
    layers, name = fields.whole("num_hidden_layers", most=MOST_LAYERS), "mlp_layer_types"
    listed = fields.values.get(name)
    if listed is None:
        return range(min(fields.whole("first_k_dense_replace", least=0), layers))
    kinds = _either(fields, name, listed, ("dense", "sparse"))
    return [i for i, kind in enumerate(kinds) if kind == "dense"]


def _either(fields: Fields, name: str, listed: Any, either: tuple[str, str]) -> list[str]:
    """Return a list that has one of two kinds for each layer, else raise its error."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    known = isinstance(listed, list) and all(kind in either for kind in listed)
    if not known or len(listed) != layers:
        raise fields.error(f"{name} must list {' or '.join(either)} for {layers} layers")
    return list(listed)


def deepseek2(fields: Fields) -> dict[str, Any]:
    # transformers ignores the first, and files alone have the last.
    fields.require({"norm_topk_prob": False, "mlp_bias": False, "scoring_func": "softmax"})
    method, groups = str(fields.values["topk_method"]), (1, 1)
    if method == "group_limited_greedy":
        groups = fields.whole("n_group"), fields.whole("topk_group")
    elif method != "greedy":
        raise fields.error(f"topk_method {method!r} is not supported")
    routing = Routing(
        groups=groups[0],
        groups_per_token=groups[1],
        best=1,
        scale=fields.positive("routed_scaling_factor"),
    )
    return latents(fields) | _mixture(fields, deepseek_experts(fields, routing))


def deepseek3(fields: Fields) -> dict[str, Any]:
    fields.require({"scoring_func": "sigmoid"})  # of files alone
    return latents(fields) | _mixture(fields, deepseek3_experts(fields))


def axk1(fields: Fields) -> dict[str, Any]:
    fields.whole("q_lora_rank")  # without, transformers has no model
    own = deepseek3(fields)
    return own | {"experts_post_norm": "experts" in own}


def mistral4(fields: Fields) -> dict[str, Any]:
    own = _mistral_experts(fields)
    return own | _whole_rotary(fields, own)


def _mistral_experts(fields: Fields) -> dict[str, Any]:
    routing = Routing(
        groups=fields.whole("n_group"),
        groups_per_token=fields.whole("topk_group"),
        scale=fields.positive("routed_scaling_factor"),
    )
    return latents(fields) | _mixture(fields, deepseek_experts(fields, routing))


def _whole_rotary(fields: Fields, own: Mapping[str, Any]) -> dict[str, Any]:
    """Mistral 4 has its rotated channels as a share of a head."""
    sizes: Latents = own["latents"]
    rotary = read_rotary(fields, FULL, "rope_theta", (SHARE, QUERY_BETA))
    if rotary.scaling != "yarn":
        raise fields.error("rope types other than yarn are not supported in models of this type")
    if int(sizes.head_dim * rotary.partial) not in (sizes.rotated_dim, sizes.head_dim):
        raise fields.error(f"{SHARE} must be {sizes.rotated_dim / sizes.head_dim}")
    return {"rotary": replace(rotary, partial=1.0)}


def indexed(fields: Fields, followers: Sequence[int] = ()) -> dict[str, Any]:
    """DeepSeek V3.2, whose queries read the positions that an indexer chooses."""
    fields.require({"mlp_bias": False})
    fields.whole("q_lora_rank")  # an index has queries of latents
    own = deepseek3(fields)
    return own | {"latents": replace(own["latents"], indexer=_indexer(fields, followers))}


def _indexer(fields: Fields, followers: Sequence[int]) -> Indexer:
    return fields.make(
        Indexer,
        heads=fields.whole("index_n_heads"),
        dim=fields.whole("index_head_dim"),
        count=fields.whole("index_topk"),
        followers=tuple(followers),
    )


def glm5(fields: Fields) -> dict[str, Any]:
    """GLM 5: some layers read what an earlier one chose."""
    return indexed(fields, _followers(fields))


def _followers(fields: Fields) -> list[int]:
    layers, name = fields.whole("num_hidden_layers", most=MOST_LAYERS), "indexer_types"
    listed, pattern = fields.values.get(name), fields.values.get("index_topk_pattern")
    if listed is None and isinstance(pattern, str):
        listed = [{"F": "full", "S": "shared"}.get(letter) for letter in pattern]
    if listed is None and pattern is not None:
        listed = pattern
    if listed is None:
        every, first = fields.whole("index_topk_freq", 1), fields.whole("index_skip_topk_offset", 2)
        steps = [max(i - first + 1, 0) for i in range(layers)]
        listed = ["shared" if step % every else "full" for step in steps]
    kinds = _either(fields, name, listed, ("full", "shared"))
    return [i for i, kind in enumerate(kinds) if kind == "shared"]


def mistral_large4(fields: Fields) -> dict[str, Any]:
    """Mistral Large 4: layers without rotation, and layers that read another's latents."""
    fields.require({"q_lora_rank": None, "norm_topk_prob": True, "mlp_bias": False})
    own, plain = _mistral_experts(fields), unrotated(fields)
    sizes = replace(
        own["latents"],
        norm_eps=fields.positive("rms_norm_eps"),
        indexer=_indexer(fields, _followers(fields)),
        sources=_sources(fields, plain),
        scaled_queries=True,
    )
    return {
        **own,
        "latents": sizes,
        "unrotated": plain,
        "rotary": replace(read_rotary(fields, FULL, "rope_theta"), learned=True),
        "logit_softcap": fields.positive("final_logit_softcapping"),
    }


def _sources(fields: Fields, plain: Collection[int]) -> tuple[int, ...]:
    """Return whose latents each layer reads, if not all their own.

    `kv_source_layers` gives for each layer the one whose KV cache it reads. transformers ignores
    which: a layer reads the last source before it that has, or lacks, RoPE as it does.
    """
    layers, name = fields.whole("num_hidden_layers", most=MOST_LAYERS), "kv_source_layers"
    listed = fields.values.get(name)
    if listed is None or listed == [*range(layers)]:
        return ()
    known = isinstance(listed, list) and all(type(i) is int for i in listed)
    if not known or len(listed) != layers:
        raise fields.error(f"{name} must list {layers} layers")
    last: dict[bool, int] = {}
    sources = []
    for i, named in enumerate(listed):
        if not 0 <= named <= i or listed[named] != named:
            raise fields.error(f"{name}: layer {i} cannot read layer {named}")
        if named == i and i in listed[i + 1 :]:
            last[i in plain] = i
        elif named != i and (i in plain) not in last:
            raise fields.error(f"{name}: no layer before layer {i} rotates as it does and is read")
        sources.append(i if named == i else last[i in plain])
    return tuple(sources)


def minicpm3(fields: Fields) -> dict[str, Any]:
    width, layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    depth = fields.positive("scale_depth", math.sqrt(layers))
    scaled = scaled_residuals(
        residual=depth / math.sqrt(layers),
        embedding=fields.positive("scale_emb"),
        epsilon=fields.positive("rms_norm_eps"),
    )
    logits = {"qkv_bias": False, "logit_scale": fields.whole("dim_model_base", width) / width}
    return llama(fields) | latents(fields) | scaled | logits


def matrices_of_heads(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide the matrices that latents are multiplied with."""
    apart: dict[str, StoredTensor] = {}
    for name, tensor in own.items():
        if name.endswith(_MLX_KEYS) and len(tensor.shape) == 3:
            heads, rank, size = tensor.shape
            turned = apply_change(tensor, lambda keys: keys.swapaxes(1, 2))
            apart[f"{name.removesuffix(_MLX_KEYS)}.key_b"] = replace(
                turned, shape=(heads, size, rank)
            )
            continue
        if name.endswith(_MLX_VALUES):
            apart[f"{name.removesuffix(_MLX_VALUES)}.value_b"] = tensor
            continue
        if not (matrix := _KEY_VALUE.search(name)):
            apart[name] = tensor
            continue
        block = name[: matrix.end(1)].rpartition(".")[0]
        parts = divided(tensor, dimensions, rotated=_rotates(name, dimensions))
        apart |= dict(zip((f"{block}.key_b", f"{block}.value_b"), parts, strict=True))
    return apart


def with_biases_of_choice(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Add zeros where files lack them; drop norms after layers without experts (A.X K1)."""
    whole = matrices_of_heads(own, dimensions)
    zeros = np.zeros(dimensions.experts, np.float32)
    for i in range(dimensions.layers):
        if dimensions.experts and i not in dimensions.dense_layers:
            name = f"layers.{i}.mlp.gate.e_score_correction_bias"
            whole.setdefault(name, StoredTensor(shape=zeros.shape, read=lambda: zeros))
        else:
            whole.pop(f"layers.{i}.post_mlp_layernorm.weight", None)
    return whole


def _rotates(name: str, dimensions: DecoderDimensions) -> bool:
    """Return whether the layer that a tensor is of attends with rotated channels."""
    layer = _LAYER.search(name)
    if layer is None or (number := int(layer[1])) >= dimensions.layers:
        return False
    return number not in dimensions.unrotated and dimensions.mixer(number) == ATTENTION


def divided(
    matrix: StoredTensor, dimensions: DecoderDimensions, *, rotated: bool = True
) -> tuple[StoredTensor, StoredTensor]:
    """Return the stacks of keys' and of values' matrices whose rows are in one, by head."""
    sizes, heads = dimensions.latents, dimensions.heads
    if sizes is None or len(matrix.shape) != 2:
        return matrix, matrix
    plain = sizes.plain_dim if rotated else sizes.head_dim
    parts = by_part(matrix, heads, {"key": (plain,), "value": (sizes.value_dim,)})
    return stack(parts["key"], heads), stack(parts["value"], heads)


def stack(matrix: StoredTensor, heads: int) -> StoredTensor:
    """Return a matrix for each head, whose rows follow one another."""
    if len(matrix.shape) != 2 or matrix.shape[0] % heads:
        return matrix  # of a shape that no configuration asks for
    shape = heads, matrix.shape[0] // heads, matrix.shape[1]
    return replace(matrix, shape=shape, read=lambda: matrix.read().reshape(shape))


def tails_in_halves(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return rotary pairs as halves where files have them next to each other."""
    sizes = dimensions.latents
    if sizes is None:
        return dict(own)
    order = head_order(sizes.rotated_dim, sizes.rotated_dim, neighbours=True)

    kinds = {
        _QUERY: (sizes.head_dim, dimensions.heads * sizes.head_dim),
        _LATENT: (sizes.rank + sizes.rotated_dim,) * 2,
    }
    moved = dict(own)
    for name, tensor in own.items():
        if not _rotates(name, dimensions):
            continue
        for pattern, (each, count) in kinds.items():
            if pattern.search(name) and tensor.shape[0] == count:
                whole = np.concatenate([np.arange(each - len(order)), each - len(order) + order])
                moved[name] = reorder(tensor, partial(_reorder_heads, whole))
    return moved


def _reorder_heads(order: NDArray[np.intp], rows: NDArray[Any]) -> NDArray[Any]:
    heads = rows.reshape(-1, len(order), *rows.shape[1:])
    return heads[:, order].reshape(rows.shape)


def index_in_halves(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Do so for an indexer's queries and keys, whose rotated channels come first (GLM 5)."""
    sizes = dimensions.latents
    moved = matrices_of_heads(own, dimensions)
    if sizes is None or sizes.indexer is None:
        return moved
    dim, heads = sizes.indexer.dim, sizes.indexer.heads
    first = head_order(sizes.rotated_dim, sizes.rotated_dim, neighbours=True)
    order = np.concatenate([first, np.arange(len(first), dim)])
    counts = dict.fromkeys(_INDEX_QUERIES, heads * dim) | dict.fromkeys(_INDEX_KEYS, dim)
    for name, tensor in moved.items():
        layer, _, leaf = name.rpartition(".indexer.")
        if layer and counts.get(leaf) == tensor.shape[0] and _rotates(name, dimensions):
            moved[name] = reorder(tensor, partial(_reorder_heads, order))
    return moved


_LATENTS = DecoderType(
    particulars=latents,
    names=LATENT_NAMES,
    names_instead={**QWEN_STACKED_NAMES, **LATENT_QUERY_NAMES},
    prepare=matrices_of_heads,
    neighbours_field="rope_interleave",
)
_YOUTU = {
    **DEFAULTS,
    "num_attention_heads": 16,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rope_interleave": True,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_MINICPM_3 = {
    **DEFAULTS,
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 256,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "attention_bias": False,
    "mlp_bias": False,
    "scale_emb": 12,
    "scale_depth": 1.4,
    "dim_model_base": 256,
    "tie_word_embeddings": True,
}
_DEEPSEEK_2 = {
    **DEFAULTS,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "first_k_dense_replace": 0,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "topk_method": "greedy",
}
DEEPSEEK_3 = {
    **_DEEPSEEK_2,
    "num_attention_heads": 128,
    "rope_interleave": True,
    "first_k_dense_replace": 3,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 8,
    "topk_group": 4,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
}
_GLM_4_LITE = {
    **DEEPSEEK_3,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 20,
    "q_lora_rank": 768,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1536,
    "n_routed_experts": 64,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.8,
}
_AXK1 = {
    **DEEPSEEK_3,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "max_position_embeddings": 32_768,
    "first_k_dense_replace": 1,
    "n_routed_experts": 192,
}
_MISTRAL_4 = {
    **DEEPSEEK_3,
    "num_attention_heads": 32,
    "kv_lora_rank": 256,
    "q_lora_rank": 1024,
    "qk_nope_head_dim": 64,
    "first_k_dense_replace": 0,
    "n_routed_experts": 128,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 128.0,
        "original_max_position_embeddings": 8192,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        QUERY_BETA: 0.1,
    },
}
_DEEPSEEK_32 = {
    **DEEPSEEK_3,
    "max_position_embeddings": 163_840,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 64,
}
_GLM_5 = {
    **_DEEPSEEK_32,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 64,
    "max_position_embeddings": 202_752,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "v_head_dim": 256,
    "n_group": 1,
    "topk_group": 1,
    "index_n_heads": 32,
}
_MISTRAL_LARGE_4 = {
    **DEFAULTS,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "max_position_embeddings": 1_048_576,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 6144,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "final_logit_softcapping": 30.0,
    "no_rope_layer_interval": 4,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 32,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 2048.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.0,
    },
}
_INDEXED = replace(
    _LATENTS,
    defaults=_DEEPSEEK_32,
    particulars=indexed,
    mixers={"indexed_attention": ATTENTION},
    neighbours=True,
    neighbours_field="",
)


_MISTRAL_LARGE_4_MODULES = {
    r"^tok_embeddings\.": "embed_tokens.",
    r"^lerope\.": "rotary_emb.",
    r"\.attention\.": ".self_attn.",
    r"\.wq\.": ".q_proj.",
    r"\.wkv_a_with_mqa\.": ".kv_a_proj_with_mqa.",
    r"\.wkv_b\.": ".kv_b_proj.",
    r"\.wo\.": ".o_proj.",
    r"\.attention_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.kv_a_norm\.": ".kv_a_layernorm.",
    r"\.(feed_forward|shared_experts)\.w1\.": r".\1.gate_proj.",
    r"\.(feed_forward|shared_experts)\.w2\.": r".\1.down_proj.",
    r"\.(feed_forward|shared_experts)\.w3\.": r".\1.up_proj.",
    r"\.feed_forward\.": ".mlp.",
    r"^(layers\.\d+)\.(gate|experts|shared_experts)\.": r"\1.mlp.\2.",
    r"\.ssmax_scaling\.s$": ".softmax_scaling.scale",
    r"\.ssmax_scaling\.b$": ".softmax_scaling.bias",
}


LATENT_TYPES: Mapping[str, DecoderType] = {
    "youtu": replace(_LATENTS, defaults=_YOUTU),
    "minicpm3": replace(_LATENTS, defaults=_MINICPM_3, particulars=minicpm3, neighbours_field=""),
    "deepseek_v2": replace(
        _LATENTS, defaults=_DEEPSEEK_2, particulars=deepseek2, neighbours=True, neighbours_field=""
    ),
    "deepseek_v3": replace(_LATENTS, defaults=DEEPSEEK_3, particulars=deepseek3),
    "axk1": replace(
        _LATENTS,
        defaults=_AXK1,
        particulars=axk1,
        prepare=with_biases_of_choice,
        names=AXK1_NAMES,
        names_instead={**_LATENTS.names_instead, **AXK1_NAMES_IN_MEMORY},
        modules={r"(?<!\.mlp)\.post_mlp_layernorm\.": ".mlp.post_mlp_layernorm."},
    ),
    "glm4_moe_lite": replace(_LATENTS, defaults=_GLM_4_LITE, particulars=deepseek3),
    "mistral4": replace(
        _LATENTS, defaults=_MISTRAL_4, particulars=mistral4, rotary=(SHARE, QUERY_BETA)
    ),
    "deepseek_v32": _INDEXED,
    "glm_moe_dsa": replace(_INDEXED, defaults=_GLM_5, particulars=glm5, prepare=index_in_halves),
    "mistral_large4": replace(
        _INDEXED,
        defaults=_MISTRAL_LARGE_4,
        particulars=mistral_large4,
        prepare=index_in_halves,
        names=MISTRAL_LARGE_4_NAMES,
        names_instead=MISTRAL_LARGE_4_NAMES_IN_MEMORY,
        modules=_MISTRAL_LARGE_4_MODULES,
        foreign=(*IMAGES, *MISTRAL_SIGHTS, "mtp_dspark."),
    ),
}
