"""Model types with Kimi's delta nets beside attention to latents: Kimi Linear and Ling 3.

Their decays are of each channel of keys, and sigmoids are the gates of their results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.fields import LARGEST, require_silu
from kvcast.checkpoints.decoder.hybrid import LINEAR
from kvcast.checkpoints.decoder.latents import DEEPSEEK_3, deepseek3, matrices_of_heads
from kvcast.checkpoints.decoder.model_type import DecoderType
from kvcast.checkpoints.decoder.rotary import FULL
from kvcast.checkpoints.decoder.tensor_names import (
    KIMI_NAMES,
    LING_NAMES,
    QWEN_STACKED_NAMES,
)
from kvcast.checkpoints.decoder.tensors import side_by_side
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tensor_names import join_flat
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.mixers import DELTA, DeltaNet
from kvcast.spec.sizes import MOST_LAYERS

_SIZES = {
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}
_KINDS = {"full_attn_layers": FULL, "kda_layers": LINEAR}


class Leaves(NamedTuple):
    """Ends of the names of a layer's tensors."""

    query: str
    latent_query: str
    latent: str
    decay: str
    kernels: Sequence[str]  # of queries, keys and values
    kernel: str  # of all


_LEAVES = Leaves(
    query=".self_attn.q_proj.weight",
    latent_query=".self_attn.q_b_proj.weight",
    latent=".self_attn.kv_a_proj_with_mqa.weight",
    decay=".self_attn.A_log",
    kernels=[f".self_attn.{part}_conv1d.weight" for part in "qkv"],
    kernel=".self_attn.conv1d.weight",
)


def restate_kimi(fields: Fields) -> dict[str, Any]:
    own = fields.group("linear_attn_config") or replace(fields, values={})
    own.require({"gate_lower_bound": None, "use_full_rank_gate": False})
    restated = {ours: own.values[name] for name, ours in _SIZES.items() if name in own.values}
    if fields.values.get("layer_types") is None:
        restated["layer_types"] = _layer_types(fields, own)
    return restated


def _layer_types(fields: Fields, own: Fields) -> list[str]:
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    if not _KINDS.keys() <= own.values.keys():
        return [FULL if i and i % 4 == 0 else LINEAR for i in range(layers)]
    kinds: dict[object, str] = {}
    for name, kind in _KINDS.items():
        numbers = own.values[name]
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise own.error(f"{name} must list numbers of layers")
        kinds |= dict.fromkeys(numbers, kind)
    if kinds.keys() != {*range(1, layers + 1)}:
        raise own.error(f"{' and '.join(_KINDS)} must number the layers from 1 to {layers}")
    return [kinds[i] for i in range(1, layers + 1)]


def kimi(fields: Fields) -> dict[str, Any]:
    fields.require({"mla_use_nope": True, "moe_router_activation_func": "sigmoid"})
    fields.require({"mla_use_output_gate": False, "mlp_bias": False})
    # Of later models, whose configurations have the same fields.
    fields.require(dict.fromkeys(("attn_res_block_size", "routed_expert_hidden_size")))
    own = deepseek3(fields)
    plain = {"rotary": None, "attention_scale": own["latents"].head_dim ** -0.5}
    return own | plain | _delta(fields, rank=fields.whole("linear_head_dim"))


def restate_ling(fields: Fields) -> dict[str, Any]:
    usual = {
        "linear_head_dim": fields.values.get("head_dim"),
        "linear_num_heads": fields.values.get("num_attention_heads"),
        "linear_conv_kernel_dim": fields.values.get("short_conv_kernel_size"),
    }
    restated = {name: fields.values.get(name) or size for name, size in usual.items()}
    if fields.values.get("layer_types") is None:
        every = fields.whole("layer_group_size")
        layers = range(1, fields.whole("num_hidden_layers", most=MOST_LAYERS) + 1)
        restated["layer_types"] = [LINEAR if i % every else FULL for i in layers]
    return restated


def ling(fields: Fields) -> dict[str, Any]:
    fields.require({"q_lora_rank": None, "rope_interleave": True, "mlp_bias": False})
    own = deepseek3(fields)
    gated = {"latents": replace(own["latents"], head_gate=True)}
    return own | gated | _delta(fields, least=_bound(fields))


def _bound(fields: Fields) -> float:
    if not fields.flag("kda_safe_gate"):
        return 0.0
    bound = fields.values["kda_lower_bound"]
    if type(bound) not in (int, float) or not -LARGEST < bound < 0:
        raise fields.error("kda_lower_bound must be a number below 0")
    return float(bound)


def _delta(fields: Fields, **own: Any) -> dict[str, Any]:
    if LINEAR not in fields.values["layer_types"]:
        return {}
    require_silu(fields)
    heads, size = fields.whole("linear_num_heads"), fields.whole("linear_head_dim")
    net = fields.make(
        DeltaNet,
        key_heads=heads,
        value_heads=heads,
        key_dim=size,
        value_dim=size,
        convolution=fields.whole("linear_conv_kernel_dim"),
        by_channel=True,
        gate="sigmoid",
        **own,
    )
    return {"delta": net}


def parts_joined(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    return matrices_of_heads(join_parts(own, _LEAVES), dimensions)


def join_parts(own: Mapping[str, StoredTensor], leaves: Leaves) -> dict[str, StoredTensor]:
    """Join the kernels of queries, keys and values; flatten the logarithms of decays.

    Queries that attend have one name, whether they are of latents or not.
    """
    joined = dict(own)
    for name, tensor in own.items():
        if name.endswith(leaves.decay):
            joined[name] = join_flat([tensor])
        elif name.endswith(leaves.latent):
            layer = name.removesuffix(leaves.latent)
            if layer + leaves.query in own:
                joined[layer + leaves.latent_query] = joined.pop(layer + leaves.query)
        elif name.endswith(leaves.kernels[0]):
            layer = name.removesuffix(leaves.kernels[0])
            names = [layer + kernel for kernel in leaves.kernels]
            if own.keys() >= {*names}:
                joined[layer + leaves.kernel] = side_by_side([joined.pop(each) for each in names])
    return joined


_PLAIN = DecoderType(
    spelling={
        "model_max_length": "max_position_embeddings",
        "moe_renormalize": "norm_topk_prob",
        "num_expert_group": "n_group",
        "num_experts": "n_routed_experts",
        "num_local_experts": "n_routed_experts",
        "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
    },
    names=KIMI_NAMES,
    names_instead=QWEN_STACKED_NAMES,
    mixers={LINEAR: DELTA},
    kernels=("conv1d.weight",),
    prepare=parts_joined,
)
_KIMI = {
    **DEEPSEEK_3,
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 32,
    "q_lora_rank": None,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.446,
    "linear_head_dim": 128,
    "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
}
_LING = {
    **DEEPSEEK_3,
    "rope_theta": 6_000_000.0,
    "num_attention_heads": 32,
    "head_dim": 128,
    "q_lora_rank": None,
    "first_k_dense_replace": 2,
    "moe_intermediate_size": 768,
    "n_routed_experts": 512,
    "short_conv_kernel_size": 4,
    "layer_group_size": 6,
    "kda_safe_gate": True,
    "kda_lower_bound": -5.0,
}


KIMI_TYPES: Mapping[str, DecoderType] = {
    "kimi_linear": replace(
        _PLAIN,
        defaults=_KIMI,
        particulars=kimi,
        restated=restate_kimi,
        spellings={
            r"\.block_sparse_moe\.": ".mlp.",
            # As mlx-lm 0.32.2 has them.
            r"\.([qkv])_conv\.conv\.": r".\1_conv1d.",
            r"\.mlp\.e_score_correction_bias$": ".mlp.gate.e_score_correction_bias",
            r"\.forget_gate\.": ".",
            r"(\.experts\.\d+)\.w1\.": r"\1.gate_proj.",
            r"(\.experts\.\d+)\.w2\.": r"\1.down_proj.",
            r"(\.experts\.\d+)\.w3\.": r"\1.up_proj.",
        },
    ),
    "bailing_hybrid": replace(
        _PLAIN,
        defaults=_LING,
        particulars=ling,
        restated=restate_ling,
        names=LING_NAMES,
        neighbours=True,
        spellings={
            r"^word_embeddings\.": "embed_tokens.",
            r"\.attention\.": ".self_attn.",
            r"\.self_attn\.dense\.": ".self_attn.o_proj.",
            r"\.forget_gate\.": ".",
            r"\.gate\.gate_proj\.": ".gate.",  # as mlx-lm 0.32.2 has it
            r"\.gate\.expert_bias$": ".gate.e_score_correction_bias",
        },
    ),
}
