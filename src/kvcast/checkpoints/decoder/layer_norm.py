"""Model types with LayerNorm, biases or parallel residuals, such as GPT-2, Phi and Cohere."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcast.checkpoints.decoder.fields import (
    always_windowed,
    configured_biases,
    limited,
    llama,
    windowed_but_every_nth,
)
from kvcast.checkpoints.decoder.model_type import DEFAULTS, DecoderType
from kvcast.checkpoints.decoder.rotary import FULL, SHARE, SLIDING, read_rotary
from kvcast.checkpoints.decoder.tensor_names import (
    FALCON_NAMES,
    FALCON_NORM_NAMES,
    GPT2_NAMES,
    GPT_NEO_NAMES,
    GPTJ_NAMES,
    LAYER_NORM_NAMES,
    NEOX_NAMES,
    OPT_NAMES,
    PHI_NAMES,
    STARCODER_NAMES,
)
from kvcast.checkpoints.decoder.tensors import (
    heads_apart,
    join_head_norms,
    norms_of_ones,
    positions_from_the_third,
)
from kvcast.checkpoints.fields import Fields
from kvcast.spec.sizes import MOST_LAYERS

_LAYER_NORMS = {"norm": "layer", "norm_bias": True}
_PARALLEL = {"parallel": True, "shared_norm": True}
_LEARNED_POSITIONS = {"rotary": None, "learned_positions": True}
_UNGATED = {"gated": False}
_BIASES = ("qkv_bias", "out_bias", "feed_forward_bias")


def starcoder2(fields: Fields) -> dict[str, Any]:
    return _LAYER_NORMS | _UNGATED | dict.fromkeys(_BIASES, fields.flag("use_bias"))


def stablelm(fields: Fields) -> dict[str, Any]:
    shared = fields.flag("use_parallel_residual")
    blocks = {"parallel": shared, "shared_norm": shared} | _own_norms(fields, "qk_layernorm")
    return _LAYER_NORMS | blocks | {"qkv_bias": fields.flag("use_qkv_bias")}


def _own_norms(fields: Fields, name: str) -> dict[str, Any]:
    used = fields.flag(name, False)
    return {"query_key_norm": used, "own_query_key_norms": used}


def cohere(fields: Fields) -> dict[str, Any]:
    scale = {"norm": "layer", "logit_scale": fields.positive("logit_scale")}
    norms = _own_norms(fields, "use_qk_norm")
    return configured_biases(fields) | _PARALLEL | scale | norms


def cohere2(fields: Fields) -> dict[str, Any]:
    """Layers of Command R7B without a window do not rotate."""
    windowed = {"rotary": None, "window_rotary": read_rotary(fields, FULL, "rope_theta")}
    return cohere(fields) | windowed


def neox(fields: Fields) -> dict[str, Any]:
    biases = configured_biases(fields) | {"feed_forward_bias": True}
    blocks = {"parallel": fields.flag("use_parallel_residual"), "gated": False}
    return _LAYER_NORMS | biases | blocks


def phi(fields: Fields) -> dict[str, Any]:
    biases = dict.fromkeys((*_BIASES, "head_bias"), True)
    norms = {"query_key_norm": fields.flag("qk_layernorm")}
    return _LAYER_NORMS | _PARALLEL | _UNGATED | biases | norms


def gpt2(fields: Fields) -> dict[str, Any]:
    if fields.flag("add_cross_attention", False):
        raise fields.error("add_cross_attention is not supported")
    scale: dict[str, Any] = {
        "scaled_by_depth": fields.flag("scale_attn_by_inverse_layer_idx", False)
    }
    if not fields.flag("scale_attn_weights"):
        scale["attention_scale"] = 1.0
    return _LAYER_NORMS | _LEARNED_POSITIONS | _UNGATED | dict.fromkeys(_BIASES, True) | scale


def restate_gpt_bigcode(fields: Fields) -> dict[str, Any]:
    if not fields.flag("multi_query"):
        raise fields.error("multi_query must be true: other models are not supported")
    return {"num_key_value_heads": 1}


def restate_gpt_neo(fields: Fields) -> dict[str, Any]:
    layers, kinds = fields.whole("num_hidden_layers", most=MOST_LAYERS), list[str]()
    groups = fields.values["attention_types"]
    usual = {"global": FULL, "local": SLIDING}
    for group in groups if isinstance(groups, list) else [groups]:
        match group:
            case [list(names), int(times)] if times <= layers and len(names) <= layers:
                kinds += [usual.get(str(name), str(name)) for name in names] * times
            case _:
                raise fields.error("attention_types must list groups of layers and numbers of them")
    return {"layer_types": kinds}


def gpt_neo(_: Fields) -> dict[str, Any]:
    """GPT-Neo's products of queries and keys are not scaled."""
    biases = {"out_bias": True, "feed_forward_bias": True}
    return _LAYER_NORMS | _LEARNED_POSITIONS | _UNGATED | biases | {"attention_scale": 1.0}


def restate_gptj(fields: Fields) -> dict[str, Any]:
    head_dim = max(fields.whole("hidden_size") // fields.whole("num_attention_heads"), 1)
    return {SHARE: fields.whole("rotary_dim", most=head_dim) / head_dim}


def gptj(_: Fields) -> dict[str, Any]:
    biases = {"feed_forward_bias": True, "head_bias": True}
    return _LAYER_NORMS | _PARALLEL | _UNGATED | biases


def opt(fields: Fields) -> dict[str, Any]:
    for name, usual in (
        ("do_layer_norm_before", True),
        ("layer_norm_elementwise_affine", True),
        ("_remove_final_layer_norm", False),
    ):
        if fields.flag(name, usual) != usual:
            needed = str(usual).lower()
            raise fields.error(f"{name} must be {needed}: other models are not supported")
    width = fields.whole("hidden_size")
    if fields.whole("word_embed_proj_dim", width) != width:
        raise fields.error("word_embed_proj_dim must be hidden_size: embeddings of another width")
    biases = dict.fromkeys(_BIASES, fields.flag("enable_bias"))
    return _LAYER_NORMS | _LEARNED_POSITIONS | _UNGATED | biases


def restate_falcon(fields: Fields) -> dict[str, Any]:
    heads = fields.whole("num_attention_heads")
    if fields.flag("new_decoder_architecture"):
        return {"num_key_value_heads": fields.whole("num_kv_heads", heads)}
    return {"num_key_value_heads": 1 if fields.flag("multi_query") else heads}


def falcon(fields: Fields) -> dict[str, Any]:
    """Falcon's new decoder architecture may normalize attention and MLP separately."""
    if fields.flag("alibi"):
        raise fields.error("alibi must be false: such positions are not supported")
    newer, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    if newer and not parallel:
        raise fields.error("parallel_attn must be true with new_decoder_architecture")
    norms = fields.whole("num_ln_in_parallel_attn", 2) if newer else 1
    blocks = {"parallel": parallel, "shared_norm": parallel and norms == 1}
    return _LAYER_NORMS | _UNGATED | blocks | dict.fromkeys(_BIASES, fields.flag("bias"))


def nemotron(fields: Fields) -> dict[str, Any]:
    return llama(fields) | _LAYER_NORMS | _UNGATED


def olmo(fields: Fields) -> dict[str, Any]:
    return configured_biases(fields) | limited(fields) | {"norm": "layer"}


_COHERE = DecoderType(
    defaults={
        **DEFAULTS,
        "rope_theta": 500_000.0,
        "layer_norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    particulars=cohere,
    prepare=join_head_norms,
    neighbours=True,
)


_GPT2 = DecoderType(
    defaults={
        **DEFAULTS,
        "hidden_act": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    spelling={
        "n_embd": "hidden_size",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "activation_function": "hidden_act",
    },
    particulars=gpt2,
    names=GPT2_NAMES,
    inner_per_width=4,
    transposed=True,
)


_NEMOTRON = DecoderType(
    defaults={
        **DEFAULTS,
        "hidden_act": "relu2",
        "norm_eps": 1e-5,
        SHARE: 0.5,
        "attention_bias": False,
    },
    particulars=nemotron,
    names=LAYER_NORM_NAMES,
    norms_less_one=True,
    rotary=(SHARE,),
)


LAYER_NORM_TYPES: Mapping[str, DecoderType] = {
    "starcoder2": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu_pytorch_tanh",
            "num_key_value_heads": 2,
            "norm_epsilon": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        windowed=always_windowed,
        particulars=starcoder2,
        names=STARCODER_NAMES,
    ),
    "stablelm": DecoderType(
        defaults={
            **DEFAULTS,
            "layer_norm_eps": 1e-5,
            "num_key_value_heads": 32,
            SHARE: 0.25,
            "use_qkv_bias": False,
            "use_parallel_residual": False,
        },
        particulars=stablelm,
        prepare=join_head_norms,
        names=LAYER_NORM_NAMES,
        rotary=(SHARE,),
    ),
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        defaults={
            **_COHERE.defaults,
            "rope_theta": 10_000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 4,
        },
        windowed=windowed_but_every_nth,
        particulars=cohere2,
    ),
    "gpt_neox": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
            SHARE: 0.25,
            "attention_bias": True,
            "use_parallel_residual": True,
        },
        spelling={"rotary_emb_base": "rope_theta", "rotary_pct": SHARE},
        spellings={r"^h\.": "layers."},  # as mlx-lm 0.32.2 has it
        particulars=neox,
        names=NEOX_NAMES,
        rotary=(SHARE,),
        prepare=heads_apart,
    ),
    "phi": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-5,
            SHARE: 0.5,
            "qk_layernorm": False,
        },
        particulars=phi,
        names=PHI_NAMES,
        rotary=(SHARE,),
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2,
        defaults={**_GPT2.defaults, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        restated=restate_gpt_bigcode,
        transposed=False,
    ),
    "gpt_neo": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "sliding_window": 256,
            "attention_types": [[["global", "local"], 12]],
            "tie_word_embeddings": True,
        },
        spelling={
            "num_layers": "num_hidden_layers",
            "num_heads": "num_attention_heads",
            "window_size": "sliding_window",
            "activation_function": "hidden_act",
        },
        restated=restate_gpt_neo,
        particulars=gpt_neo,
        names=GPT_NEO_NAMES,
        inner_per_width=4,
    ),
    "gptj": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "rotary_dim": 64,
        },
        spelling=_GPT2.spelling,
        restated=restate_gptj,
        particulars=gptj,
        names=GPTJ_NAMES,
        inner_per_width=4,
        rotary=(SHARE,),
        neighbours=True,
    ),
    "opt": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "relu",
            "do_layer_norm_before": True,
            "enable_bias": True,
            "layer_norm_eps": 1e-5,
            "tie_word_embeddings": True,
        },
        spelling={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
        restated=lambda _fields: {"layer_norm_eps": 1e-5},
        particulars=opt,
        names=OPT_NAMES,
        prepare=positions_from_the_third,
    ),
    "falcon": DecoderType(
        defaults={
            **DEFAULTS,
            "hidden_act": "gelu",
            "layer_norm_epsilon": 1e-5,
            "max_position_embeddings": 2048,
            "alibi": False,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "tie_word_embeddings": True,
        },
        spelling={
            "n_embed": "hidden_size",
            "ffn_hidden_size": "intermediate_size",
            "activation": "hidden_act",
        },
        restated=restate_falcon,
        particulars=falcon,
        names=FALCON_NAMES,
        names_instead=FALCON_NORM_NAMES,
        inner_per_width=4,
        prepare=heads_apart,
    ),
    "nemotron": _NEMOTRON,
    "jais2": replace(
        _NEMOTRON,
        defaults={
            **DEFAULTS,
            "hidden_act": "relu2",
            "layer_norm_eps": 1e-5,
            "attention_bias": True,
            "mlp_bias": True,
        },
        norms_less_one=False,
        rotary=(),
    ),
    "olmo": DecoderType(
        defaults={**DEFAULTS, "attention_bias": False, "layer_norm_eps": 1e-5},
        particulars=olmo,
        prepare=norms_of_ones,
    ),
}
