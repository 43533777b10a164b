"""Interprets T5s in Hugging Face layout (t5, mt5, umt5): config.json, tensor names, text files.

There, T5 1.0, 1.1, FLAN-T5 and ByT5 are all "t5", and T5-PEGASUS is an "mt5" with word pieces.
Defaults are transformers', whose T5 also decides how contradictory files are read.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor, read_file
from kvcast.checkpoints.fields import ACTIVATIONS, Fields
from kvcast.checkpoints.huggingface_text import (
    START,
    HuggingFaceFamily,
    end_tokens,
    generation_fields,
    recommended_options,
    token_text,
    tokenizer_settings,
)
from kvcast.checkpoints.tensor_names import drop_tied, fill_evenly, same
from kvcast.checkpoints.text2text.word_pieces import (
    BEGIN,
    END,
    PLAIN,
    SEGMENTING,
    has_word_pieces,
    read_wordpiece,
    token_ids,
    vocabulary_file,
)
from kvcast.errors import InputMissingError, KvcastError
from kvcast.families.t5 import T5Dimensions
from kvcast.spec.sizes import MOST_LAYERS
from kvcast.spec.text_files import MOST_SENTINELS

_COMMON = {
    "d_model": 512,
    "d_kv": 64,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "pad_token_id": 0,
}
_END_TOKENS = [1]
_CLASS = "tokenizer_class"
_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "t5": _COMMON
    | {
        "vocab_size": 32128,
        "d_ff": 2048,
        "num_layers": 6,
        "num_heads": 8,
        "feed_forward_proj": "relu",
    },
    "mt5": _COMMON
    | {
        "vocab_size": 250112,
        "d_ff": 1024,
        "num_layers": 8,
        "num_heads": 6,
        "feed_forward_proj": "gated-gelu",
    },
}

_DEFAULTS["umt5"] = _DEFAULTS["mt5"]
_EMBEDDING, _HEAD = "shared.weight", "lm_head.weight"
_COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# The first T5s were saved with this matrix, which nothing has ever used.
_UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def _stack_names(stack: str, cross: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    block = f"{stack}.block.{{i}}.layer"
    own, dense = f"{block}.0.SelfAttention", f"{block}.{2 if cross else 1}.DenseReluDense"
    layer: dict[str, Sequence[str]] = {
        "self_attention_norm": (f"{block}.0.layer_norm",),
        "self_attention.qkv": (f"{own}.q", f"{own}.k", f"{own}.v"),
        "self_attention.out": (f"{own}.o",),
        "feed_forward_norm": (f"{block}.{2 if cross else 1}.layer_norm",),
        "feed_forward.up": (f"{dense}.wi",),
        "feed_forward.gate_up": (f"{dense}.wi_0", f"{dense}.wi_1"),
        "feed_forward.down": (f"{dense}.wo",),
        "bias": (f"{own}.relative_attention_bias",),
        **{name: [f"{block}.1.{part}" for part in parts] for name, parts in cross.items()},
    }
    modules = {f"{stack}.layers.{{i}}.{name}": parts for name, parts in layer.items()}
    modules[f"{stack}.norm"] = (f"{stack}.final_layer_norm",)
    modules[f"{stack}.bias"] = (f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias",)
    return {
        f"{name}.weight": [f"{part}.weight" for part in parts] for name, parts in modules.items()
    }


NAMES: Mapping[str, Sequence[str]] = {
    "embedding.weight": (_EMBEDDING,),
    "head.weight": (_HEAD,),
    **_stack_names("encoder", {}),
    **_stack_names(
        "decoder",
        {
            "cross_attention_norm": ("layer_norm",),
            "cross_attention.query": ("EncDecAttention.q",),
            "cross_attention.key_value": ("EncDecAttention.k", "EncDecAttention.v"),
            "cross_attention.out": ("EncDecAttention.o",),
        },
    ),
}


def read_t5(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    dimensions = t5_dimensions({**config, **_start(folder, config)}, str(folder / "config.json"))
    stored = _own_tensors(stored, str(folder))
    # Configurations are often wrong about the head, so the weights decide.
    dimensions = replace(dimensions, tied=_HEAD not in stored)
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill_evenly(
            dimensions,
            NAMES,
            stored,
            str(folder),
            f"a {dimensions.architecture} model of {layers}",
            lenient=True,
        ),
        text=_text(folder, config),
        source=f"Hugging Face folder {folder}",
    )


def t5_dimensions(config: Mapping[str, Any], label: str) -> T5Dimensions:
    """Read a configuration; whether the head is tied is not checked against the weights."""
    kind = config["model_type"]
    fields = Fields(values={**_DEFAULTS[kind], **config}, label=label)
    width, layers = fields.whole("d_model"), fields.whole("num_layers", most=MOST_LAYERS)
    activation, gated = _feed_forward(fields)
    scaled = kind != "mt5" and _scales_logits(fields)
    return fields.make(
        T5Dimensions,
        architecture=kind,
        vocab_size=fields.whole("vocab_size"),
        width=width,
        inner=fields.whole("d_ff"),
        heads=fields.whole("num_heads"),
        head_dim=fields.whole("d_kv"),
        encoder_layers=layers,
        decoder_layers=fields.whole("num_decoder_layers", layers, most=MOST_LAYERS),
        buckets=fields.whole("relative_attention_num_buckets"),
        max_distance=fields.whole("relative_attention_max_distance"),
        activation=activation,
        gated=gated,
        layer_bias=kind == "umt5",
        tied=scaled,
        logit_scale=width**-0.5 if scaled else 1.0,
        norm_eps=fields.positive("layer_norm_epsilon"),
        start_token=fields.whole(START, fields.whole("pad_token_id", least=0), least=0),
    )


def _scales_logits(fields: Fields) -> bool:
    """As with a tied head; transformers 5, which saves every head as tied, has a field for it."""
    return fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))


def _feed_forward(fields: Fields) -> tuple[str, bool]:
    """Activation, and whether it is gated, from "relu", "gated-gelu" and so on."""
    kind = str(fields.values["feed_forward_proj"])
    gate, _, name = kind.rpartition("-")
    # T5 1.1's GELU is the tanh approximation.
    implied = "gelu_new" if kind == "gated-gelu" else name
    activation = str(fields.values.get("dense_act_fn") or implied)
    if gate not in ("", "gated") or activation not in ACTIVATIONS:
        supported = ", ".join(ACTIVATIONS)
        raise fields.error(
            f"feed_forward_proj {kind!r} of {activation!r} is not supported (supported: "
            f"{supported}, plain or after 'gated-')"
        )
    return ACTIVATIONS[activation], fields.flag("is_gated_act", bool(gate))


def _own_tensors(stored: Mapping[str, StoredTensor], label: str) -> dict[str, StoredTensor]:
    """Without copies of the embedding, which may have any of four names."""
    own = {name: tensor for name, tensor in stored.items() if name != _UNUSED}
    for name in _COPIES:
        copy = own.pop(name, None)
        if copy is not None and not same(copy, own.setdefault(_EMBEDDING, copy)):
            raise KvcastError(f"{label}: tensor {name} differs from {_EMBEDDING}: not a T5")
    drop_tied(own, _HEAD, _EMBEDDING)
    return own


def _start(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the token that targets start with, if files other than config.json specify it.

    Conversions of T5-PEGASUS keep mT5's ids, with which no word-piece model was trained. An end
    token other than [SEP] shows that; such targets start with [CLS].
    """
    label = str(folder / "generation_config.json")
    generation = Fields(values=generation_fields(folder), label=label)
    said = generation.values.get(START) is not None
    named = {START: generation.whole(START, least=0)} if said else {}
    if not has_word_pieces(folder):
        return named
    ids = token_ids(vocabulary_file(folder))
    usual = {START: ids[BEGIN]}
    if ids[END] not in end_tokens(folder, config):
        return usual
    return named or (usual if config.get(START) is None else {})


def _text(folder: Path, config: Mapping[str, Any]) -> dict[str, bytes]:
    """ByT5 needs no vocabulary."""
    if has_word_pieces(folder):
        # T5-PEGASUS's tokenizer is a BertTokenizer, to which its users' programs add words.
        return read_wordpiece(folder, (*PLAIN, *SEGMENTING, None))
    label = str(folder / "tokenizer_config.json")
    settings = Fields(values=tokenizer_settings(folder), label=label)
    about: dict[str, Any] = {
        "end_tokens": end_tokens(folder, config) or _END_TOKENS,
        "bos_token": None,
        "eos_token": token_text(settings.values.get("eos_token")) or "</s>",
        **recommended_options(folder),
    }
    files = {}
    whole, pieces = folder / "tokenizer.json", folder / "spiece.model"
    if whole.is_file():
        files[whole.name] = read_file(whole)
    elif pieces.is_file():
        files[pieces.name] = read_file(pieces)
        if settings.values.get("extra_ids") is not None:
            about["extra_ids"] = settings.whole("extra_ids", least=0, most=MOST_SENTINELS)
    elif "ByT5Tokenizer" in (settings.values.get(_CLASS), config.get(_CLASS)):
        about["tokenizer"] = "byt5"
    else:
        raise InputMissingError(
            f"no tokenizer.json, spiece.model or vocab.txt in {folder}: copy the base model's (a "
            "ByT5 needs its tokenizer_config.json)"
        )
    return {**files, "text.json": json.dumps(about).encode()}


T5 = HuggingFaceFamily(
    family=T5Dimensions,
    model_types=tuple(_DEFAULTS),
    dimensions=t5_dimensions,
    read=read_t5,
    heads={_HEAD: (_EMBEDDING,)},
)
