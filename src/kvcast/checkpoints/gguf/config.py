"""Translates GGUF metadata to a Hugging Face config.json: a row for each architecture.

llama.cpp's conversion/*.py define how models are converted. The reader of the model type then makes
the dimensions, so a GGUF file and the folder that it was converted from mean the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.decoder.huggingface import TYPES, dimensions_of
from kvcast.checkpoints.decoder.latents import index_in_halves
from kvcast.checkpoints.decoder.model_type import DecoderType
from kvcast.checkpoints.decoder.rotary import FULL, QUERY_BETA, SHARE, SLIDING
from kvcast.checkpoints.decoder.tensors import softened_xielu
from kvcast.checkpoints.gguf.fields import (
    EXPERT_INNER,
    INNER,
    KV_HEADS,
    PATTERN,
    SCALE,
    SOFTMAX,
    WINDOW,
    Config,
    Values,
    cohere_fields,
    experts_fields,
    falcon_fields,
    falcon_h1_fields,
    gemma2_fields,
    gemma4_fields,
    glm4_experts_fields,
    granite_fields,
    granite_hybrid_fields,
    lfm2_fields,
    many_experts_fields,
    nemotron_h_fields,
    qwen35_fields,
    rotary_fields,
    routed_fields,
    shared_expert_fields,
    stablelm_fields,
    xielu_tensors,
)
from kvcast.checkpoints.gguf.file import GgufFile
from kvcast.checkpoints.gguf.kimi import KIMI_NAMES, kimi_fields, kimi_tensors
from kvcast.checkpoints.gguf.latents import (
    LATENT_NAMES,
    LATENT_QUERY_NAMES,
    glm5_fields,
    indexed_fields,
    latent_fields,
    latent_type,
)
from kvcast.checkpoints.gguf.tensors import (
    AFMOE_NAMES,
    FUSED_EXPERTS,
    FUSED_GATE_UP,
    FUSED_QKV,
    GEMMA4_NAMES,
    LFM2_NAMES,
    NAMES,
    NORM_AFTER_ATTENTION,
    QWEN35_NAMES,
    STATE_SPACE_NAMES,
    XIELU_NAMES,
    delta_net_tensors,
    falcon_h1_tensors,
    gemma4_tensors,
    grouped_delta_net_tensors,
    nemotron_h_tensors,
    norms_of_ones,
    second_norm_first,
    state_space_tensors,
    transpose_kernels,
)
from kvcast.families.decoder_dimensions import DecoderDimensions

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
_EPSILON, _RMS_EPSILON = "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"
# More than any model has, and few enough for a table.
_MOST_POSITIONS = 1 << 24


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How llama.cpp converts a model type: facts missing in a file's metadata."""

    model_type: str | Callable[[Values], str]
    fields: Callable[[Values], Config] = lambda _: {}
    permuted: bool = False  # whether rotary pairs are neighbouring rows, unlike in the folder
    global_every: int = 0  # with a window, every n-th layer sees everything; 0: no layer does
    truncate: bool = True  # whether whole pairs bound YaRN's blend
    uneven: bool = False  # whether sizes of layers may differ
    names: Mapping[str, Sequence[str]] = field(default_factory=lambda: NAMES)
    prepare: Callable[[Mapping[str, StoredTensor], DecoderDimensions], dict[str, StoredTensor]] = (
        lambda stored, _: dict(stored)
    )
    latents: bool = False  # whether attention is to latents
    # tensors that metadata has
    tensors: Callable[[Values], Mapping[str, StoredTensor]] = lambda _: {}
    epsilon: str = ""  # of the norms; empty: as the model type has RMS norms or layer norms

    def kind(self, values: Values) -> DecoderType:
        name = self.model_type if isinstance(self.model_type, str) else self.model_type(values)
        return TYPES[name]

    def are_neighbours(self, values: Values) -> bool:
        # ggml turns in halves of heads alone where images have positions of their own (GLM 4.1 V).
        halves = values.has("rope.dimension_sections")
        return (self.permuted or self.kind(values).neighbours) and not halves

    def names_in(self, values: Values) -> Mapping[str, Sequence[str]]:
        plain = not self.kind(values).mixers
        is_fused = plain and "blk.0.attn_qkv.weight" in values.tensors
        of_experts = values.has_tensor(".ffn_gate_up_exps.weight")
        has_queries = plain and self.latents and "blk.0.attn_q.weight" in values.tensors
        return {
            **self.names,
            **(FUSED_QKV if is_fused else {}),
            **(LATENT_QUERY_NAMES if has_queries else {}),
            **(FUSED_EXPERTS if of_experts else {}),
        }

    def dimensions(self, values: Values, file: GgufFile) -> DecoderDimensions:
        embedding = file.tensors.get(EMBEDDING)
        if embedding is None:
            raise values.fields.error(f"it has no tensor {EMBEDDING}: it is not a whole model")
        # Settings that some model types alone have may be in any file.
        plain = self.kind(values)
        kind = replace(plain, rotary=(SHARE, QUERY_BETA))
        share = 1.0 if self.latents else _share(values, plain)
        values.whole("block_count", most=len(file.tensors))
        tied = HEAD not in file.tensors
        heads = values.same_whole("attention.head_count")
        config = {
            "vocab_size": embedding.shape[0],
            "vocab_size_per_layer_input": embedding.shape[0],
            "hidden_size": values.whole("embedding_length"),
            "num_hidden_layers": values.layers,
            "num_attention_heads": heads,
            **self._sizes(values, heads, is_hybrid=bool(kind.mixers)),
            "head_dim": values.head_dim,
            "max_position_embeddings": values.whole("context_length", most=_MOST_POSITIONS),
            "sliding_window": values.count(WINDOW) or None,
            "layer_types": self._layer_types(values),
            kind.epsilon: values.positive(self.epsilon or _epsilon(kind)),
            **dict.fromkeys(("tie_word_embeddings", "tie_embedding"), tied),
            "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
            **rotary_fields(values, file.tensors, share, self.truncate),
            **self.fields(values),
        }
        made = dimensions_of(config, values.fields.label, kind, values.architecture)
        own: Config = {
            "qkv_bias": any(f"blk.0.attn_{name}.bias" in file.tensors for name in ("q", "qkv")),
            "out_bias": "blk.0.attn_output.bias" in file.tensors,
            "tied": tied,
        }
        if values.has(SCALE) and not values.architecture.startswith("gemma"):
            own["attention_scale"] = values.positive(SCALE)
        if self.uneven:
            own["layer_inners"] = values.each(INNER)
            own["keys_as_values"] = tuple(
                i for i in range(made.reading) if f"blk.{i}.attn_v.weight" not in file.tensors
            )
        return replace(made, **own)

    def _sizes(self, values: Values, heads: int, *, is_hybrid: bool) -> Config:
        if self.uneven:  # of the first layer
            inner, kv_heads = values.each(INNER)[0], values.each(KV_HEADS, heads)[0]
        else:
            # Models of experts alone may have no other width.
            of_experts = values.count(EXPERT_INNER) or None
            # Layers without attention have no heads of keys, others no feed-forward.
            absent = 0 if is_hybrid else None
            inner = values.same_whole(INNER, of_experts, absent)
            kv_heads = values.same_whole(KV_HEADS, heads, absent)
        return {"intermediate_size": inner, "num_key_value_heads": kv_heads}

    def _layer_types(self, values: Values) -> list[str]:
        layers, pattern = values.layers, values.plain(PATTERN)
        if not values.count(WINDOW):
            return [FULL] * layers
        if isinstance(pattern, np.ndarray):
            if len(pattern) != layers:
                raise values.fields.error(f"{PATTERN} is not one for each layer")
            windowed = [bool(flag) for flag in pattern]
        else:
            every = values.whole(PATTERN, self.global_every, least=0)
            windowed = [not every or (layer + 1) % every != 0 for layer in range(layers)]
        return [SLIDING if has_window else FULL for has_window in windowed]


def _share(values: Values, kind: DecoderType) -> float:
    """Return the share of a head's channels that rotate."""
    head_dim, turning = values.head_dim, "rope.dimension_count"
    for name in ("attention.value_length", *(() if SHARE in kind.rotary else (turning,))):
        if values.whole(name, head_dim) != head_dim:
            raise values.fields.error(f"{values.architecture}.{name} must be {head_dim}, as keys")
    return values.whole(turning, head_dim, most=head_dim) / head_dim


def _epsilon(kind: DecoderType) -> str:
    return _RMS_EPSILON if kind.epsilon == "rms_norm_eps" else _EPSILON


def _llama(plain: str) -> Callable[[Values], str]:
    return lambda values: "mixtral" if values.count("expert_count") else plain


def _granite_type(values: Values) -> str:
    shared = values.count("expert_shared_feed_forward_length")
    of_experts = "granitemoeshared" if shared else "granitemoe"
    return of_experts if values.count("expert_count") else "granite"


def _windowed(windowed: str, plain: str) -> Callable[[Values], str]:
    return lambda values: windowed if values.count(WINDOW) else plain


_LLAMA = Architecture(model_type=_llama("llama"), fields=experts_fields, permuted=True)
_QWEN3_EXPERTS = Architecture(model_type="qwen3_moe", fields=many_experts_fields)
_QWEN35 = Architecture(
    model_type="qwen3_5_text", fields=qwen35_fields, names=QWEN35_NAMES, prepare=delta_net_tensors
)
_QWEN35_EXPERTS = replace(
    _QWEN35,
    model_type="qwen3_5_moe_text",
    fields=lambda values: shared_expert_fields(values) | qwen35_fields(values),
)
_GPT2 = Architecture(model_type="gpt2")
_MINICPM3 = Architecture(
    model_type="minicpm3", fields=latent_fields, latents=True, names=LATENT_NAMES
)
_DEEPSEEK2 = replace(_MINICPM3, model_type=latent_type, permuted=True)
_COHERE = Architecture(model_type="cohere", fields=cohere_fields)
_NEMOTRON = Architecture(model_type="nemotron")
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": _LLAMA,
    "qwen2": Architecture(model_type="qwen2"),
    "qwen3": Architecture(model_type="qwen3"),
    "qwen2moe": Architecture(
        model_type="qwen2_moe",
        fields=lambda values: shared_expert_fields(values) | {"norm_topk_prob": False},
    ),
    "qwen3moe": _QWEN3_EXPERTS,
    "gpt-oss": Architecture(
        model_type="gpt_oss",
        fields=many_experts_fields,
        global_every=2,
        truncate=False,
        names={**NAMES, **NORM_AFTER_ATTENTION},
    ),
    "phi3": Architecture(model_type="phi3", names={**NAMES, **FUSED_GATE_UP}),
    "glm4": Architecture(model_type="glm4", names={**NAMES, **FUSED_GATE_UP}),
    "gemma": Architecture(model_type="gemma"),
    "gemma2": Architecture(model_type="gemma2", fields=gemma2_fields, global_every=2),
    "gemma3": Architecture(
        model_type="gemma3_text", fields=lambda values: gemma2_fields(values, 62), global_every=6
    ),
    "gemma4": Architecture(
        model_type="gemma4_text",
        fields=gemma4_fields,
        uneven=True,
        names=GEMMA4_NAMES,
        prepare=gemma4_tensors,
    ),
    "granite": Architecture(model_type="granite", fields=granite_fields, permuted=True),
    # llama.cpp, too, has the interval of layers without rotation in its program.
    "smollm3": Architecture(model_type="smollm3", permuted=True),
    "olmo2": Architecture(model_type=_windowed("olmo3", "olmo2"), global_every=4),
    "starcoder2": Architecture(model_type="starcoder2"),
    "command-r": _COHERE,
    "cohere2": replace(_COHERE, model_type=_windowed("cohere2", "cohere"), global_every=4),
    "exaone4": Architecture(model_type="exaone4", global_every=4),
    "gpt2": _GPT2,
    "gptneox": Architecture(
        model_type="gpt_neox",
        fields=lambda values: {"use_parallel_residual": values.flag("use_parallel_residual", True)},
    ),
    "phi2": Architecture(model_type="phi"),
    "stablelm": Architecture(model_type="stablelm", fields=stablelm_fields),
    "lfm2": Architecture(
        model_type="lfm2",
        fields=lfm2_fields,
        names=LFM2_NAMES,
        prepare=transpose_kernels,
        epsilon=_RMS_EPSILON,
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_EXPERTS,
    "qwen3next": replace(
        _QWEN35_EXPERTS, model_type="qwen3_next", prepare=grouped_delta_net_tensors
    ),
    "qwen2vl": Architecture(model_type="qwen2"),
    "qwen3vl": Architecture(model_type="qwen3"),
    "qwen3vlmoe": _QWEN3_EXPERTS,
    "mistral3": replace(_LLAMA, model_type=_llama("ministral3")),
    "granitemoe": Architecture(model_type=_granite_type, fields=granite_fields, permuted=True),
    "granitehybrid": Architecture(
        model_type="granitemoehybrid",
        fields=granite_hybrid_fields,
        permuted=True,
        names=STATE_SPACE_NAMES,
        prepare=state_space_tensors,
    ),
    "nemotron_h": Architecture(
        model_type="nemotron_h",
        fields=nemotron_h_fields,
        names=STATE_SPACE_NAMES,
        prepare=nemotron_h_tensors,
    ),
    "falcon-h1": Architecture(
        model_type="falcon_h1",
        fields=falcon_h1_fields,
        names=STATE_SPACE_NAMES,
        prepare=falcon_h1_tensors,
    ),
    "hunyuan-dense": Architecture(model_type="hunyuan_v1_dense"),
    "apertus": Architecture(
        model_type="apertus", names=XIELU_NAMES, tensors=xielu_tensors, prepare=softened_xielu
    ),
    "ernie4_5": Architecture(model_type="ernie4_5", fields=lambda _: {"use_bias": False}),
    "ernie4_5-moe": Architecture(
        model_type="ernie4_5_moe", fields=lambda values: routed_fields(values, SOFTMAX)
    ),
    "glm4moe": Architecture(
        model_type="glm4_moe",
        fields=glm4_experts_fields,
        names={**NAMES, **NORM_AFTER_ATTENTION},
    ),
    "dots1": Architecture(model_type="dots1", fields=routed_fields),
    "minimax-m2": Architecture(model_type="minimax_m2", fields=routed_fields),
    "afmoe": Architecture(
        model_type="afmoe",
        # llama.cpp, too, always scales embeddings.
        fields=lambda values: routed_fields(values) | {"mup_enabled": True},
        global_every=4,
        names=AFMOE_NAMES,
    ),
    "lfm2moe": Architecture(
        model_type="lfm2_moe",
        fields=lambda values: routed_fields(values) | lfm2_fields(values),
        names=LFM2_NAMES,
        prepare=transpose_kernels,
        epsilon=_RMS_EPSILON,
    ),
    "seed_oss": Architecture(model_type="seed_oss", names={**NAMES, **NORM_AFTER_ATTENTION}),
    "arcee": Architecture(model_type="arcee", permuted=True),
    "nemotron": _NEMOTRON,
    "jais2": replace(_NEMOTRON, model_type="jais2"),
    "olmo": Architecture(
        model_type="olmo",
        fields=lambda values: {"clip_qkv": values.optional("attention.clamp_kqv") or None},
        permuted=True,
        prepare=norms_of_ones,
    ),
    "olmoe": Architecture(
        model_type="olmoe", fields=lambda values: experts_fields(values) | {"norm_topk_prob": False}
    ),
    "starcoder": _GPT2,
    # llama.cpp, too, has the factors on embeddings, layers and logits in its program.
    "minicpm3": _MINICPM3,
    "deepseek2": _DEEPSEEK2,
    "mistral4": _DEEPSEEK2,
    "deepseek32": replace(_MINICPM3, model_type="deepseek_v32", fields=indexed_fields),
    "glm-dsa": replace(
        _MINICPM3, model_type="glm_moe_dsa", fields=glm5_fields, prepare=index_in_halves
    ),
    "kimi-linear": Architecture(
        model_type="kimi_linear",
        fields=kimi_fields,
        latents=True,
        names=KIMI_NAMES,
        prepare=kimi_tensors,
    ),
    "falcon": Architecture(model_type="falcon", fields=falcon_fields, prepare=second_norm_first),
}
