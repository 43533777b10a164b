"""Reads decoder-only models in Hugging Face layout: config.json, tensor names, text files.

Each model type has a row in `TYPES`. Configurations may be spelt as in published models
(rope_theta, rope_scaling) or as in transformers 5 (rope_parameters).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import Checkpoint, StoredTensor, read_file
from kvcast.checkpoints.decoder.fields import activation_of
from kvcast.checkpoints.decoder.gemma import GEMMA_TYPES
from kvcast.checkpoints.decoder.hybrid import HYBRID_TYPES
from kvcast.checkpoints.decoder.kimi import KIMI_TYPES
from kvcast.checkpoints.decoder.latents import LATENT_TYPES, tails_in_halves
from kvcast.checkpoints.decoder.layer_norm import LAYER_NORM_TYPES
from kvcast.checkpoints.decoder.llama import LLAMA_TYPES
from kvcast.checkpoints.decoder.mixtures import MIXTURE_TYPES
from kvcast.checkpoints.decoder.model_type import IMAGES, DecoderType, Factor
from kvcast.checkpoints.decoder.rotary import FULL, SLIDING, read_rotary
from kvcast.checkpoints.decoder.tensors import CODES, experts_in_codes
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import (
    HuggingFaceFamily,
    chat_templates,
    end_token_by_text,
    end_tokens,
    recommended_options,
    special_tokens,
    tokenizer_settings,
)
from kvcast.checkpoints.lora import Modules
from kvcast.checkpoints.tensor_names import (
    apply_change,
    drop_tied,
    fill_decoder,
    in_halves,
    one_more,
    transpose,
)
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.mixers import ATTENTION
from kvcast.spec.sizes import MOST_LAYERS

SIZES = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "max_positions": "max_position_embeddings",
}


TYPES: Mapping[str, DecoderType] = {
    **LLAMA_TYPES,
    **GEMMA_TYPES,
    **LAYER_NORM_TYPES,
    **HYBRID_TYPES,
    **MIXTURE_TYPES,
    **LATENT_TYPES,
    **KIMI_TYPES,
}


# Models with images whose decoder is of any type, and that type where text_config names none.
WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("llava", "llava_next", "idefics3", "smolvlm"), "llama"),
    **dict.fromkeys(("llava_onevision", "internvl"), "qwen2"),
    **dict.fromkeys(("aya_vision", "cohere2_vision"), "cohere2"),
    "lfm2_vl": "lfm2",
    "mistral3": "mistral",
}


# Depends on the class that saved the model, and for Gemma 3 with images on transformers' version.
_PREFIX = re.compile(
    r"^(?:(?:model|language_model|text_model|gpt_neox|transformer|decoder|backbone)\.)+"
)


HEAD = "lm_head.weight"


_OTHER_NAMES = {"embed_out.weight": HEAD, "output.weight": HEAD}


_ROTATED = re.compile(
    r"\.(?:(?:self_)?attn\.(?:[qk]_proj|qkv_proj|[qk]_norm|[qk]_layernorm)"
    r"|attention\.query_key_value)\."
)


_CONV1D = re.compile(r"\.c_(?:attn|proj|fc)\.weight$")


_INPUTS_FIRST = re.compile(rf"{_CONV1D.pattern}|\.experts\.\w+$")


_LAYER_NUMBER = re.compile(r"\b(?P<layers>layers|h)\.(?P<number>\d{1,9})\.")


_FIRST_GATE = re.compile(r"\.experts\.0\.gate_proj\.(weight|bias)$")


# Layers that read those of others may have them in files.
_KEYS_VALUES = re.compile(r"\.self_attn\.[kv]_(?:proj|norm)\.")


# Old models store them, but they follow from the configuration.
_TABLES = (
    *(".inv_freq", ".cos_cached", ".sin_cached"),
    *(f".{module}.{leaf}" for module in ("attn", "attention") for leaf in ("bias", "masked_bias")),
)


def read_decoder(
    folder: Path,
    config: Mapping[str, Any],
    stored: Mapping[str, StoredTensor],
) -> Checkpoint:
    """KvcastError for unsupported configurations, and missing, unknown or misshapen tensors."""
    label = str(folder / "config.json")
    kind = _type_of(config, label)
    dimensions = dimensions_of(config, label, kind, config["model_type"])
    factors = kind.factors(_fields(config, kind, label))
    if factors and is_of_mlx(stored, kind):
        raise KvcastError(
            f"{folder}: MLX multiplies weights of {config['model_type']} by the configuration's "
            "multipliers, which is not supported: give the folder that it was converted from"
        )
    own = own_tensors(_scaled(stored, factors), dimensions, kind)
    if dimensions.tied:
        dimensions = replace(dimensions, tied=is_tied(own, kind))
    tensors = fill_decoder(dimensions, names_in(own, kind), own, str(folder), lenient=True)
    unused = [name for name in stored if _own_name(name, kind) in tensors.unused]
    tensors = tensors.beside(unused)
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=text_files(folder, config, _about_unused(folder, unused, dimensions)),
        source=f"Hugging Face folder {folder}",
    )


def _scaled(
    stored: Mapping[str, StoredTensor], factors: Mapping[str, Factor]
) -> Mapping[str, StoredTensor]:
    def scale(tensor: StoredTensor, factor: Factor) -> StoredTensor:
        if np.all(np.equal(factor, 1)):
            return tensor
        return apply_change(tensor, lambda values: values.astype(np.float32) * factor)

    whose = {name: next(filter(name.endswith, factors), "") for name in stored}
    return {name: scale(x, factors.get(whose[name], 1.0)) for name, x in stored.items()}


def is_tied(own: dict[str, StoredTensor], kind: DecoderType) -> bool:
    """Whether the head is tied to the embedding; keeps one name for both unless they differ."""
    (embedding,) = kind.names["decoder.embedding.weight"]
    drop_tied(own, HEAD, embedding)
    return HEAD not in own


def _about_unused(folder: Path, unused: Sequence[str], dimensions: DecoderDimensions) -> list[str]:
    inside = [
        name
        for name in unused
        if (layer := _LAYER_NUMBER.search(name))
        and int(layer["number"]) < dimensions.layers
        and not name.endswith(_TABLES)
        and not (int(layer["number"]) >= dimensions.reading and _KEYS_VALUES.search(name))
    ]
    if not inside:
        return []
    others = f" and {len(inside) - 1} others" if len(inside) > 1 else ""
    return [
        f"{folder} has tensors that a model of its kind does not use, {inside[0]}{others}: results "
        "may be wrong; kvcast doctor lists them"
    ]


def decoder_dimensions(config: Mapping[str, Any], label: str) -> DecoderDimensions:
    return dimensions_of(config, label, _type_of(config, label), config["model_type"])


def dimensions_of(
    config: Mapping[str, Any], label: str, kind: DecoderType, architecture: str
) -> DecoderDimensions:
    """`architecture` is the model type's name in the dimensions."""
    return _dimensions(_fields(config, kind, label), kind, architecture)


def _type_of(config: Mapping[str, Any], label: str) -> DecoderType:
    kind = _named_type(config, label)
    if not kind.neighbours_field:
        return kind
    return replace(kind, neighbours=_fields(config, kind, label).flag(kind.neighbours_field))


def _named_type(config: Mapping[str, Any], label: str) -> DecoderType:
    name, outer = config["model_type"], Fields(values=config, label=label)
    if name not in WRAPPERS:
        return TYPES[name]
    text = outer.group("text_config")
    usual = WRAPPERS[name]
    name = usual if text is None else str(text.values.get("model_type", usual))
    if name not in TYPES:
        raise outer.error(f"model_type {name!r} of its text_config is not supported")
    kind = TYPES[name]
    defaults = {**kind.defaults, "tie_word_embeddings": True}
    return replace(kind, defaults=defaults, foreign=IMAGES)


def _fields(config: Mapping[str, Any], kind: DecoderType, label: str) -> Fields:
    outer = Fields(values=config, label=label)
    text = outer.group("text_config")
    if text is None:
        named = {usual: config[own] for own, usual in kind.spelling.items() if own in config}
        fields = Fields(values={**kind.defaults, **config, **named}, label=label)
    else:
        tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
        fields = Fields(values={**kind.defaults, **text.values, **tied}, label=text.label)
    return replace(fields, values={**fields.values, **kind.restated(fields)})


def _dimensions(fields: Fields, kind: DecoderType, architecture: str) -> DecoderDimensions:
    heads = fields.whole(SIZES["heads"])
    width = fields.whole(SIZES["width"])
    usual = {"kv_heads": heads, "head_dim": width // heads}
    if kind.inner_per_width:
        usual["inner"] = kind.inner_per_width * width
    whole = {ours: fields.whole(theirs, usual.get(ours)) for ours, theirs in SIZES.items()}
    kinds, particulars = _layer_types(fields, kind), dict(kind.particulars(fields))
    if "rotary" not in particulars:
        particulars["rotary"] = read_rotary(fields, FULL, "rope_theta", kind.rotary)
    sizes = {
        "architecture": architecture,
        **whole,
        "windows": _windows(fields, kinds, told_apart="window_rotary" in particulars),
        "mixers": _mixers(kinds, kind),
        "norm_eps": fields.positive(kind.epsilon),
        "attention_scale": whole["head_dim"] ** -0.5,
        "activation": activation_of(fields),
        "tied": fields.flag("tie_word_embeddings"),
    }
    return fields.make(DecoderDimensions, **{**sizes, **particulars})


def _windows(fields: Fields, kinds: Sequence[str], *, told_apart: bool) -> tuple[int | None, ...]:
    """Windows include the query's position; `told_apart`: their layers rotate differently."""
    window = fields.whole("sliding_window") if SLIDING in kinds else None
    longest = fields.whole(SIZES["max_positions"])
    if window is not None and window >= longest:
        # Phi 4 mini's is twice as long as its longest sequence.
        window = longest if told_apart else None
    return tuple(window if layer_type == SLIDING else None for layer_type in kinds)


def _mixers(kinds: Sequence[str], kind: DecoderType) -> tuple[str, ...]:
    mixers = tuple(kind.mixers.get(layer_type, ATTENTION) for layer_type in kinds)
    return mixers if set(mixers) != {ATTENTION} else ()


def _layer_types(fields: Fields, kind: DecoderType) -> list[str]:
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if kind.windowed(fields, i) else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list {layers} layers")
    known = (*kind.mixers, FULL, SLIDING)
    if any(layer_type not in known for layer_type in kinds):
        *others, last = known
        raise fields.error(
            f"layer_types other than {', '.join(others)} and {last} are not supported"
        )
    return kinds


def own_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions, kind: DecoderType
) -> dict[str, StoredTensor]:
    own = kind.prepare(_rename(stored, kind), dimensions)
    if dimensions.latents:
        return tails_in_halves(own, dimensions) if kind.neighbours else own
    return in_halves(own, dimensions, _ROTATED.search, neighbours=kind.neighbours)


def names_in(own: Mapping[str, StoredTensor], kind: DecoderType) -> Mapping[str, Sequence[str]]:
    spelled = {_LAYER_NUMBER.sub(r"\g<layers>.{i}.", name) for name in own}
    instead = {ours: names for ours, names in kind.names_instead.items() if spelled >= {*names}}
    return {**kind.names, **instead, **_listed_experts(spelled, kind)}


def _listed_experts(spelled: set[str], kind: DecoderType) -> dict[str, Sequence[str]]:
    """Names of experts one by one, as folders in codes have them of types that stack theirs."""
    stacks = [ours for ours in kind.names if ours.endswith(".gate_up")]
    names: dict[str, Sequence[str]] = {}
    for name in spelled:
        if stacks and (first := _FIRST_GATE.search(name)):
            parts = [
                f"{name[: first.start()]}.experts.{{e}}.{part}_proj.{first[1]}"
                for part in ("gate", "up", "down")
            ]
            ending = {"weight": "", "bias": "_bias"}[first[1]]
            names[f"{stacks[-1]}{ending}"] = parts[:2]
            names[f"{stacks[-1].removesuffix('gate_up')}down{ending}"] = parts[2:]
    return names


def _own_name(full_name: str, kind: DecoderType) -> str:
    name = _PREFIX.sub("", full_name)
    for pattern, replacement in kind.spellings.items():
        name = re.sub(pattern, replacement, name)
    return _OTHER_NAMES.get(name, name)


def _modules(config: Mapping[str, Any]) -> Modules:
    label = "config.json"
    kind = _type_of(config, label)

    def plain(full_name: str) -> str:
        name = _own_name(full_name, kind)
        for pattern, replacement in kind.modules.items():
            name = re.sub(pattern, replacement, name)
        return name

    return Modules(
        tied=_fields(config, kind, label).flag("tie_word_embeddings"),
        plain=plain,
        inputs_first=lambda name: kind.transposed and bool(_INPUTS_FIRST.search(name)),
        in_codes=experts_in_codes,
    )


def _rename(stored: Mapping[str, StoredTensor], kind: DecoderType) -> dict[str, StoredTensor]:
    """Without name prefixes, norm weights as they multiply."""
    own = {}
    of_mlx = is_of_mlx(stored, kind)
    for full_name, tensor in stored.items():
        name = _own_name(full_name, kind)
        if name.startswith(kind.foreign):
            continue
        whole = of_mlx or f".{name}".endswith(kind.whole_norms)
        if kind.norms_less_one and name.endswith("norm.weight") and not whole:
            tensor = apply_change(tensor, one_more)
        elif kind.transposed and _CONV1D.search(name):
            tensor = transpose(tensor)
        elif name.endswith(kind.kernels):
            tensor = _by_position(tensor)
        own[name] = tensor
    return own


def is_of_mlx(stored: Mapping[str, StoredTensor], kind: DecoderType) -> bool:
    """Whether kernels are [width, length, 1], as mlx-lm 0.32.2 has them, and norms have their 1."""
    kernels = [tensor.shape for name, tensor in stored.items() if name.endswith(kind.kernels)]
    return any(len(shape) == 3 and shape[1] != 1 == shape[2] for shape in kernels)


def _by_position(kernel: StoredTensor) -> StoredTensor:
    """[width, 1, length] or [width, length, 1] to [length, width]."""
    if len(kernel.shape) != 3 or 1 not in kernel.shape[1:]:
        return kernel
    width, length = kernel.shape[0], kernel.shape[1] * kernel.shape[2]
    return replace(
        apply_change(kernel, lambda values: values.reshape(width, length).T), shape=(length, width)
    )


def text_files(
    folder: Path,
    config: Mapping[str, Any],
    notices: Sequence[str],
    tokenizer: bytes | None = None,
) -> dict[str, bytes]:
    """Files for `kvcast.tokenizers.opening.open_text`; `tokenizer`: in place of tokenizer.json."""
    settings = tokenizer_settings(folder)
    special = special_tokens(folder, settings, config["model_type"])
    ends = end_tokens(folder, config) or [end_token_by_text(folder, special["eos_token"])]
    about = {"end_tokens": ends, **special, **recommended_options(folder)}
    if notices:
        about["notices"] = notices
    return {
        "tokenizer.json": tokenizer or read_file(folder / "tokenizer.json"),
        "text.json": json.dumps(about).encode(),
        **chat_templates(folder, settings),
    }


DECODER = HuggingFaceFamily(
    family=DecoderDimensions,
    model_types=(*TYPES, *WRAPPERS),
    dimensions=decoder_dimensions,
    read=read_decoder,
    codes={"gpt_oss": CODES},
    modules=_modules,
    heads={
        HEAD: (
            *("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight"),
            "tok_embeddings.weight",
        )
    },
    required={
        "tokenizer.json": "vocab.json and merges.txt alone are not read; "
        "save the tokenizer with transformers' save_pretrained, or copy the base model's"
    },
)
