"""Interprets Canary and its relatives in Hugging Face layout: config.json, tensor names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import (
    START,
    HuggingFaceFamily,
    generation_fields,
    read_text,
    token_ids_of,
)
from kvcast.checkpoints.speech import conformer
from kvcast.checkpoints.tensor_names import drop_tied, fill_evenly, of_modules, zeros
from kvcast.families.canary import CanaryDimensions
from kvcast.spec.sizes import MOST_LAYERS

# Few enough for a table that is computed.
_MOST_WAVES = 1 << 16
BEGINNING = "<|startofcontext|>"
_EMBEDDING, _HEAD = "decoder.embed_tokens.weight", "proj_out.weight"
_POSITIONS = "decoder.pos_emb.weight"
_DECODER: Mapping[str, Any] = {
    "vocab_size": 16384,
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "intermediate_size": 4096,
    "hidden_act": "relu",
    "max_position_embeddings": 1024,
    "attention_bias": True,
}


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A model_type."""

    encoder: Mapping[str, Any]
    nested: bool  # whether the decoder's fields are nested, and its positions sinusoidal
    start: int | None  # the token that starts texts, by default; None: `bos_token_id`
    before: tuple[str, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    "canary": _Kind(
        encoder={"num_hidden_layers": 32, "num_mel_bins": 128, "scale_input": False},
        nested=True,
        start=7,
    ),
    "cohere_asr": _Kind(
        encoder={
            "hidden_size": 1280,
            "num_hidden_layers": 48,
            "intermediate_size": 5120,
            "num_mel_bins": 128,
            "scale_input": False,
        },
        nested=False,
        start=None,
        before=("▁",),
    ),
}

_LAYER = "decoder.layers.{i}"
_ATTENTIONS = {"self_attn": "self_attention", "encoder_attn": "cross_attention"}
_MODULES: Mapping[str, Sequence[str]] = {
    f"{_LAYER}.self_attention_norm": [f"{_LAYER}.input_layernorm"],
    f"{_LAYER}.cross_attention_norm": [f"{_LAYER}.post_attention_layernorm"],
    f"{_LAYER}.feed_forward_norm": [f"{_LAYER}.final_layernorm"],
    f"{_LAYER}.feed_forward.up": [f"{_LAYER}.mlp.fc1"],
    f"{_LAYER}.feed_forward.down": [f"{_LAYER}.mlp.fc2"],
    f"{_LAYER}.self_attention.qkv": [f"{_LAYER}.self_attn.{x}_proj" for x in "qkv"],
    f"{_LAYER}.self_attention.out": [f"{_LAYER}.self_attn.o_proj"],
    f"{_LAYER}.cross_attention.query": [f"{_LAYER}.encoder_attn.q_proj"],
    f"{_LAYER}.cross_attention.key_value": [f"{_LAYER}.encoder_attn.{x}_proj" for x in "kv"],
    f"{_LAYER}.cross_attention.out": [f"{_LAYER}.encoder_attn.o_proj"],
    "decoder.embedding_norm": ["decoder.embedding_layernorm"],
    "decoder.norm": ["decoder.norm"],
    "encoder.out": ["decoder.proj"],
    "head": ["proj_out"],
}
NAMES: Mapping[str, Sequence[str]] = {
    **conformer.NAMES,
    **of_modules(_MODULES),
    "embedding.weight": [_EMBEDDING],
    "embedding.bias": ["proj_out.bias"],
    "decoder.positions": [_POSITIONS],
}

# Parts of names in files of NeMo's, as Cohere's are, and ours.
_OF_NEMO: Mapping[str, str] = {
    "encoder.pre_encode.conv.": "encoder.subsampling.layers.",
    "encoder.pre_encode.out.": "encoder.subsampling.linear.",
    "transf_decoder._embedding.position_embedding.pos_enc": _POSITIONS,
    "transf_decoder._embedding.token_embedding": "decoder.embed_tokens",
    "transf_decoder._embedding.layer_norm": "decoder.embedding_layernorm",
    "transf_decoder._decoder.final_layer_norm": "decoder.norm",
    "transf_decoder._decoder.layers": "decoder.layers",
    "encoder_decoder_proj.": "decoder.proj.",
    **{f".self_attn.linear_{x}.": f".self_attn.{x}_proj." for x in "qkv"},
    ".self_attn.linear_out.": ".self_attn.o_proj.",
    ".self_attn.linear_pos.": ".self_attn.relative_k_proj.",
    ".self_attn.pos_bias_": ".self_attn.bias_",
    ".first_sub_layer.": ".self_attn.",
    ".second_sub_layer.": ".encoder_attn.",
    **{
        f".{theirs}.": f".{ours}."
        for theirs, ours in (
            *(("query_net", "q_proj"), ("key_net", "k_proj"), ("value_net", "v_proj")),
            *(("out_projection", "o_proj"), ("third_sub_layer.dense_in", "mlp.fc1")),
            *(("third_sub_layer.dense_out", "mlp.fc2"), ("layer_norm_1", "input_layernorm")),
            *(("layer_norm_2", "post_attention_layernorm"), ("layer_norm_3", "final_layernorm")),
            ("conv.batch_norm", "conv.norm"),
        )
    },
    "log_softmax.mlp.layer0": "proj_out",
}


def _rename(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, ours in _OF_NEMO.items():
        name = name.replace(theirs, ours)
    return name


def read_canary(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    label = str(folder / "config.json")
    dimensions = canary_dimensions(config, label)
    conformer.check_features(folder, dimensions.encoder)
    decoder = _decoder(config, label)
    tensors = dict(stored)
    drop_tied(tensors, _HEAD, _EMBEDDING)
    # Configurations are often wrong about the head, so the weights decide.
    weighed = partial(replace, dimensions)
    dimensions = decoder.make(weighed, tied=_HEAD not in tensors, before=_before(folder, config))
    encoder = _encoder(config, label)
    tensors = conformer.conformer_tensors(tensors, dimensions.encoder, encoder, str(folder))
    if not decoder.flag("attention_bias"):
        tensors |= _no_biases(dimensions)
    if _KINDS[config["model_type"]].nested:
        shape = (dimensions.target_positions, dimensions.width)
        tensors[_POSITIONS] = StoredTensor(shape=shape, read=lambda: _waves(*shape))
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill_evenly(
            dimensions,
            NAMES,
            tensors,
            str(folder),
            f"a {dimensions.architecture} model of {dimensions.decoder_layers} layers",
            lenient=True,
        ),
        text=read_text(folder, config, decoder.values, {"eos_token_id": 3}),
        source=f"Hugging Face folder {folder}",
    )


def canary_dimensions(config: Mapping[str, Any], label: str) -> CanaryDimensions:
    decoder, encoder = _decoder(config, label), conformer.conformer_of(_encoder(config, label))
    width, heads = decoder.whole("hidden_size"), decoder.whole("num_attention_heads")
    decoder.require({"head_dim": width // heads, "num_key_value_heads": heads})
    decoder.flag("attention_bias")
    nested = _KINDS[config["model_type"]].nested
    if nested and width % 2:
        raise decoder.error(f"hidden_size must be even, not {width}")
    most = {"most": _MOST_WAVES} if nested else {}
    vocab = decoder.whole("vocab_size")
    if nested and config.get("vocab_size") not in (None, vocab):
        raise decoder.error(f"vocab_size {vocab} is not the model's, {config['vocab_size']!r}")
    tied = Fields(values=config, label=label).flag("tie_word_embeddings", nested)
    return decoder.make(
        CanaryDimensions,
        architecture=config["model_type"],
        encoder=encoder,
        vocab_size=vocab,
        width=width,
        inner=decoder.whole("intermediate_size"),
        decoder_heads=heads,
        decoder_layers=decoder.whole("num_hidden_layers", most=MOST_LAYERS),
        target_positions=decoder.whole("max_position_embeddings", **most),
        activation=decoder.activation("hidden_act"),
        projected=not nested,
        tied=tied,
    )


def _before(folder: Path, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the decoder prompt's first tokens: the start token, once, as in transformers."""
    kind = _KINDS[config["model_type"]]
    told: dict[str, Any] = {START: kind.start, "bos_token_id": 4}
    for fields in (config, generation_fields(folder)):
        told |= {name: fields[name] for name in told if fields.get(name) is not None}
    start = told[START]
    start = told["bos_token_id"] if start is None else start
    before = token_ids_of(folder, (*kind.before, BEGINNING))
    return (*([] if start == before[0] else [start]), *before)


def _encoder(config: Mapping[str, Any], label: str) -> Fields:
    defaults = {**conformer.DEFAULTS, **_KINDS[config["model_type"]].encoder}
    return Fields(values=config, label=label).group_over("encoder_config", defaults)


def _decoder(config: Mapping[str, Any], label: str) -> Fields:
    fields = Fields(values=config, label=label)
    if _KINDS[config["model_type"]].nested:
        defaults = {**_DECODER, "model_type": "canary_decoder"}
        return fields.group_over("decoder_config", defaults)
    return fields.over(_DECODER)


def _no_biases(dimensions: CanaryDimensions) -> dict[str, StoredTensor]:
    return {
        f"{_LAYER.format(i=i)}.{attention}.{x}_proj.bias": zeros((dimensions.width,))
        for i in range(dimensions.decoder_layers)
        for attention in _ATTENTIONS
        for x in "qkvo"
    }


def _waves(positions: int, width: int) -> NDArray[np.float32]:
    """Sines and then cosines [positions, width], over the square root of the width."""
    frequencies = 10000.0 ** (-2 * np.arange(width // 2) / width)
    angles = np.arange(positions)[:, None] * frequencies
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=1) / width**0.5
    rounded: NDArray[np.float32] = waves.astype(np.float32)
    return rounded


CANARY = HuggingFaceFamily(
    family=CanaryDimensions,
    model_types=tuple(_KINDS),
    dimensions=canary_dimensions,
    read=read_canary,
    renamed=_rename,
    heads={_HEAD: (_EMBEDDING,)},
)
