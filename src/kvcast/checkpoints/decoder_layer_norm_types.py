"""Model types with layer norms, GPT-2's and Cohere's kin: a row for each. Knows no files."""

from collections.abc import Mapping
from dataclasses import replace

from kvcast.checkpoints.decoder_layer_norms import (
    cohere,
    cohere2,
    falcon,
    falcon_restated,
    gpt2,
    gpt_bigcode_restated,
    gpt_neo,
    gpt_neo_restated,
    gptj,
    gptj_restated,
    nemotron,
    neox,
    olmo,
    opt,
    phi,
    stablelm,
    starcoder2,
)
from kvcast.checkpoints.decoder_names import (
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
from kvcast.checkpoints.decoder_particulars import always_windowed, windowed_but_every_nth
from kvcast.checkpoints.decoder_tensors import (
    heads_apart,
    norms_of_heads_joined,
    norms_of_ones,
    positions_from_the_third,
)
from kvcast.checkpoints.decoder_type import DEFAULTS, DecoderType
from kvcast.checkpoints.rotary_huggingface import SHARE

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
    prepare=norms_of_heads_joined,
    epsilon="layer_norm_eps",
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
    epsilon="layer_norm_epsilon",
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
    epsilon="norm_eps",
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
        epsilon="norm_epsilon",
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
        prepare=norms_of_heads_joined,
        names=LAYER_NORM_NAMES,
        epsilon="layer_norm_eps",
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
        particulars=neox,
        names=NEOX_NAMES,
        epsilon="layer_norm_eps",
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
        epsilon="layer_norm_eps",
        rotary=(SHARE,),
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(
        _GPT2,
        defaults={**_GPT2.defaults, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        restated=gpt_bigcode_restated,
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
        restated=gpt_neo_restated,
        particulars=gpt_neo,
        names=GPT_NEO_NAMES,
        epsilon="layer_norm_epsilon",
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
        restated=gptj_restated,
        particulars=gptj,
        names=GPTJ_NAMES,
        epsilon="layer_norm_epsilon",
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
            "tie_word_embeddings": True,
        },
        spelling={"ffn_dim": "intermediate_size", "activation_function": "hidden_act"},
        restated=lambda _fields: {"layer_norm_eps": 1e-5},
        particulars=opt,
        names=OPT_NAMES,
        epsilon="layer_norm_eps",
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
        restated=falcon_restated,
        particulars=falcon,
        names=FALCON_NAMES,
        names_instead=FALCON_NORM_NAMES,
        epsilon="layer_norm_epsilon",
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
        epsilon="layer_norm_eps",
        norms_less_one=False,
        rotary=(),
    ),
    "olmo": DecoderType(
        defaults={**DEFAULTS, "attention_bias": False},
        restated=lambda _fields: {"layer_norm_eps": 1e-5},
        particulars=olmo,
        epsilon="layer_norm_eps",
        prepare=norms_of_ones,
    ),
}
