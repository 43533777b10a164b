"""Fields of decoder-only models with layer norms, GPT-2's and Cohere's kin, as dimensions.

Functions of a type take its fields. Knows no files and no tensors.
"""

from typing import Any

from kvcast.checkpoints.decoder_particulars import configured_biases, limited, llama
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.rotary_huggingface import FULL, SHARE, SLIDING, read_rotary
from kvcast.spec.sizes import MOST_LAYERS

_LAYER_NORMS = {"norm": "layer", "norm_bias": True}


_PARALLEL = {"parallel": True, "shared_norm": True}


_LEARNED_POSITIONS = {"rotary": None, "learned_positions": True}


_UNGATED = {"gated": False}


_BIASES = ("qkv_bias", "out_bias", "feed_forward_bias")


def starcoder2(fields: Fields) -> dict[str, Any]:
    """Return StarCoder 2's."""
    return _LAYER_NORMS | _UNGATED | dict.fromkeys(_BIASES, fields.flag("use_bias"))


def stablelm(fields: Fields) -> dict[str, Any]:
    """Return StableLM's."""
    shared = fields.flag("use_parallel_residual")
    blocks = {"parallel": shared, "shared_norm": shared} | _own_norms(fields, "qk_layernorm")
    return _LAYER_NORMS | blocks | {"qkv_bias": fields.flag("use_qkv_bias")}


def _own_norms(fields: Fields, name: str) -> dict[str, Any]:
    used = fields.flag(name, False)
    return {"query_key_norm": used, "own_query_key_norms": used}


def cohere(fields: Fields) -> dict[str, Any]:
    """Return Command R's."""
    scale = {"norm": "layer", "logit_scale": fields.positive("logit_scale")}
    norms = _own_norms(fields, "use_qk_norm")
    return configured_biases(fields) | _PARALLEL | scale | norms


def cohere2(fields: Fields) -> dict[str, Any]:
    """Return Command R7B's: layers without a window do not rotate."""
    windowed = {"rotary": None, "window_rotary": read_rotary(fields, FULL, "rope_theta")}
    return cohere(fields) | windowed


def neox(fields: Fields) -> dict[str, Any]:
    """Return GPT-NeoX's."""
    biases = configured_biases(fields) | {"feed_forward_bias": True}
    blocks = {"parallel": fields.flag("use_parallel_residual"), "gated": False}
    return _LAYER_NORMS | biases | blocks


def phi(fields: Fields) -> dict[str, Any]:
    """Return Phi 1's and 2's."""
    biases = dict.fromkeys((*_BIASES, "head_bias"), True)
    norms = {"query_key_norm": fields.flag("qk_layernorm")}
    return _LAYER_NORMS | _PARALLEL | _UNGATED | biases | norms


def gpt2(fields: Fields) -> dict[str, Any]:
    """Return GPT-2's, and GPT-BigCode's."""
    if fields.flag("add_cross_attention", False):
        raise fields.error("add_cross_attention is not supported")
    scale: dict[str, Any] = {
        "scaled_by_depth": fields.flag("scale_attn_by_inverse_layer_idx", False)
    }
    if not fields.flag("scale_attn_weights"):
        scale["attention_scale"] = 1.0
    return _LAYER_NORMS | _LEARNED_POSITIONS | _UNGATED | dict.fromkeys(_BIASES, True) | scale


def gpt_bigcode_restated(fields: Fields) -> dict[str, Any]:
    """Return the number of heads of keys, which all heads of queries share."""
    if not fields.flag("multi_query"):
        raise fields.error("multi_query must be true: other models are not supported")
    return {"num_key_value_heads": 1}


def gpt_neo_restated(fields: Fields) -> dict[str, Any]:
    """Return layer types, of which files have groups and how often each is repeated."""
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
    """Return GPT-Neo's, whose products of queries and keys are not scaled."""
    biases = {"out_bias": True, "feed_forward_bias": True}
    return _LAYER_NORMS | _LEARNED_POSITIONS | _UNGATED | biases | {"attention_scale": 1.0}


def gptj_restated(fields: Fields) -> dict[str, Any]:
    """Return the share of a head's channels that turn, of which GPT-J has the number."""
    head_dim = max(fields.whole("hidden_size") // fields.whole("num_attention_heads"), 1)
    return {SHARE: fields.whole("rotary_dim", most=head_dim) / head_dim}


def gptj(_: Fields) -> dict[str, Any]:
    """Return GPT-J's."""
    biases = {"feed_forward_bias": True, "head_bias": True}
    return _LAYER_NORMS | _PARALLEL | _UNGATED | biases


def opt(fields: Fields) -> dict[str, Any]:
    """Return OPT's."""
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


def falcon_restated(fields: Fields) -> dict[str, Any]:
    """Return the number of heads of keys, on which three fields decide."""
    heads = fields.whole("num_attention_heads")
    if fields.flag("new_decoder_architecture"):
        return {"num_key_value_heads": fields.whole("num_kv_heads", heads)}
    return {"num_key_value_heads": 1 if fields.flag("multi_query") else heads}


def falcon(fields: Fields) -> dict[str, Any]:
    """Return Falcon's, whose newer architecture may have a norm before each of two blocks."""
    if fields.flag("alibi"):
        raise fields.error("alibi must be false: such positions are not supported")
    newer, parallel = fields.flag("new_decoder_architecture"), fields.flag("parallel_attn")
    if newer and not parallel:
        raise fields.error("parallel_attn must be true with new_decoder_architecture")
    norms = fields.whole("num_ln_in_parallel_attn", 2) if newer else 1
    blocks = {"parallel": parallel, "shared_norm": parallel and norms == 1}
    return _LAYER_NORMS | _UNGATED | blocks | dict.fromkeys(_BIASES, fields.flag("bias"))


def nemotron(fields: Fields) -> dict[str, Any]:
    """Return Nemotron's and Jais 2's."""
    return llama(fields) | _LAYER_NORMS | _UNGATED


def olmo(fields: Fields) -> dict[str, Any]:
    """Return OLMo's, whose norms have no biases."""
    return configured_biases(fields) | limited(fields) | {"norm": "layer"}
