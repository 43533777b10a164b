"""Reads T5Gemma and T5Gemma 2 in Hugging Face layout."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.decoder.fields import activation_of
from kvcast.checkpoints.decoder.gemma import GEMMA_TYPES
from kvcast.checkpoints.decoder.rotary import FULL, SLIDING, read_rotary
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import START, HuggingFaceFamily, with_start_token
from kvcast.checkpoints.source_text import read_text
from kvcast.checkpoints.tensor_names import Entry, apply_change, drop_tied, fill, one_more, same
from kvcast.families.gemma_stack import GemmaStack
from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.families.table import family_with
from kvcast.spec.sizes import MOST_LAYERS

_DEFAULTS_2: Mapping[str, Any] = {**GEMMA_TYPES["gemma3"].defaults, "bos_token_id": 2}
_DEFAULTS: Mapping[str, Any] = {
    **_DEFAULTS_2,
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "rope_theta": 10_000.0,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "eos_token_id": 1,
}
HEAD, EMBEDDING = "lm_head.out_proj.weight", "decoder.embed_tokens.weight"
_LAYER = re.compile(r"(?<=\blayers\.)\d+")


def stack_names(stack: str, attentions: Mapping[str, str]) -> dict[str, Sequence[str]]:
    layer = f"{stack}.layers.{{i}}"
    modules: dict[str, Sequence[str]] = {
        stack: [f"{stack}.embed_tokens"],
        f"{stack}.embedding": [f"{stack}.embed_tokens"],
        f"{stack}.norm": [f"{stack}.norm"],
        f"{layer}.feed_forward_norm": [f"{layer}.pre_feedforward_layernorm"],
        f"{layer}.feed_forward_post_norm": [f"{layer}.post_feedforward_layernorm"],
        f"{layer}.feed_forward.gate_up": [f"{layer}.mlp.{x}_proj" for x in ("gate", "up")],
        f"{layer}.feed_forward.down": [f"{layer}.mlp.down_proj"],
    }
    for theirs, ours in attentions.items():
        module, name = f"{layer}.{theirs}", f"{layer}.{ours}"
        modules |= {
            f"{name}_norm": [f"{layer}.pre_{theirs}_layernorm"],
            f"{name}_post_norm": [f"{layer}.post_{theirs}_layernorm"],
            f"{name}.qkv": [f"{module}.{x}_proj" for x in "qkv"],
            f"{name}.query": [f"{module}.q_proj"],
            f"{name}.key_value": [f"{module}.{x}_proj" for x in "kv"],
            f"{name}.out": [f"{module}.o_proj"],
            f"{name}.query_norm": [f"{module}.q_norm"],
            f"{name}.key_norm": [f"{module}.k_norm"],
        }
    return modules


_NAMES: Mapping[str, Sequence[str]] = {
    "head": ["lm_head.out_proj"],
    **stack_names("encoder", {"self_attn": "self_attention"}),
    **stack_names("decoder", {"self_attn": "self_attention", "cross_attn": "cross_attention"}),
}


def read_t5gemma(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    dimensions = t5gemma_dimensions(with_start_token(folder, config), str(folder / "config.json"))
    tensors = own_tensors(stored)
    dimensions = replace(dimensions, tied=HEAD not in tensors)
    return checkpoint_of(folder, config, dimensions, tensors, _NAMES)


def checkpoint_of(
    folder: Path,
    config: Mapping[str, Any],
    dimensions: T5GemmaDimensions,
    tensors: Mapping[str, StoredTensor],
    names: Mapping[str, Sequence[str]],
) -> Checkpoint:
    decoder = config.get("decoder")
    ends = decoder.get("eos_token_id") if isinstance(decoder, dict) else None
    ends = config.get("eos_token_id") or ends or _DEFAULTS["eos_token_id"]
    entries = _entries(dimensions, names)
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill(entries, tensors, str(folder), "a T5Gemma", lenient=True),
        text=read_text(folder, {**config, "eos_token_id": ends}),
        source=f"Hugging Face folder {folder}",
    )


def t5gemma_dimensions(config: Mapping[str, Any], label: str) -> T5GemmaDimensions:
    """Read a configuration; whether the head is tied is not checked against the weights."""
    outer = Fields(values=config, label=label)
    none = Fields(values={}, label=label)
    stacks = [outer.group(name) or none for name in ("encoder", "decoder")]
    encoder, decoder = (replace(stack, values={**_DEFAULTS, **stack.values}) for stack in stacks)
    return dimensions_of(
        outer,
        (encoder, decoder),
        encoder=_stack(encoder, lambda reach: 2 * reach + 1),
        decoder=_stack(decoder, lambda window: window),
    )


def dimensions_of(outer: Fields, stacks: tuple[Fields, Fields], **parts: Any) -> T5GemmaDimensions:
    """`parts`: read by the model type."""
    encoder, decoder = stacks
    usual = outer.whole("bos_token_id", decoder.whole("bos_token_id", least=0), least=0)
    return outer.make(
        T5GemmaDimensions,
        architecture=outer.values["model_type"],
        vocab_size=decoder.whole("vocab_size"),
        source_vocab_size=encoder.whole("vocab_size"),
        logit_softcap=_softcap(decoder, "final_logit_softcapping"),
        tied=outer.flag("tie_word_embeddings", True),
        start_token=outer.whole(START, usual, least=0),
        **parts,
    )


def _stack(fields: Fields, seen: Callable[[int], int]) -> GemmaStack:
    longest = fields.whole("max_position_embeddings")
    kinds = layer_kinds(fields, lambda i: FULL if i % 2 else SLIDING)
    window = fields.whole("sliding_window") if SLIDING in kinds else longest
    return stack_of(
        fields,
        # A window as long as any sequence is no window.
        windows=tuple(
            seen(window) if kind == SLIDING and window < longest else None for kind in kinds
        ),
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
    )


def stack_of(fields: Fields, **parts: Any) -> GemmaStack:
    """`parts`: read by the model type."""
    return fields.make(
        GemmaStack,
        width=fields.whole("hidden_size"),
        inner=fields.whole("intermediate_size"),
        heads=fields.whole("num_attention_heads"),
        kv_heads=fields.whole("num_key_value_heads"),
        head_dim=fields.whole("head_dim"),
        positions=fields.whole("max_position_embeddings"),
        rotary=read_rotary(fields, FULL, "rope_theta"),
        norm_eps=fields.positive("rms_norm_eps"),
        activation=activation_of(fields),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        attention_bias=fields.flag("attention_bias"),
        **parts,
    )


def _softcap(fields: Fields, name: str) -> float:
    return 0.0 if fields.values.get(name) is None else fields.positive(name)


def layer_kinds(fields: Fields, usual: Callable[[int], str]) -> list[str]:
    """FULL or SLIDING of each layer; `usual`: the default without a field."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = list(map(usual, range(layers)))
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list {layers} layers")
    if any(kind not in (FULL, SLIDING) for kind in kinds):
        raise fields.error(f"layer_types other than {FULL} and {SLIDING} are not supported")
    return kinds


def own_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Without name prefixes, with 1 added to norm weights; a tied head is dropped."""
    own = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    own = {
        name: apply_change(tensor, one_more) if name.endswith("norm.weight") else tensor
        for name, tensor in own.items()
    }
    drop_tied(own, HEAD, EMBEDDING)
    return own


def _entries(
    dimensions: T5GemmaDimensions, modules: Mapping[str, Sequence[str]]
) -> Iterator[Entry]:
    for canonical, shape in family_with(dimensions).tensor_shapes(dimensions).items():
        module, _, leaf = canonical.rpartition(".")
        layer = _LAYER.search(module)
        names = [
            f"{name.format(i=layer[0] if layer else 0)}.{leaf}"
            for name in modules[_LAYER.sub("{i}", module)]
        ]
        rows, *rest = shape
        counts = [rows // len(names)] * len(names)
        if module.endswith(".qkv"):
            stack = dimensions.stacks[module.partition(".")[0]]
            counts = [stack.mixed, stack.keys, stack.keys]
        parts = zip(names, counts, strict=True)
        yield canonical, shape, [(name, (count, *rest)) for name, count in parts]


T5GEMMA = HuggingFaceFamily(
    family=T5GemmaDimensions,
    model_types=("t5gemma",),
    dimensions=t5gemma_dimensions,
    read=read_t5gemma,
    heads={HEAD: (f"model.{EMBEDDING}", EMBEDDING)},
)


_EOI_TOKEN = 256_000
_IMAGES = ("encoder.vision_tower.", "encoder.multi_modal_projector.")
# The encoder's text part, by the class that saved a model.
_TEXT, _ENCODER = "encoder.text_model.", "encoder."
_OWN = "embed_tokens.weight", "embed_tokens.eoi_embedding"
_NAMES_2: Mapping[str, Sequence[str]] = {
    "head": ["lm_head.out_proj"],
    **stack_names("encoder", {"self_attn": "self_attention"}),
    **stack_names("decoder", {"self_attn": "attention"}),
}


def read_t5gemma2(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    dimensions = t5gemma2_dimensions(with_start_token(folder, config), str(folder / "config.json"))
    tensors = _text_tensors(stored)
    dimensions = replace(
        dimensions,
        tied=HEAD not in tensors,
        one_embedding=not any(f"{_ENCODER}{name}" in tensors for name in _OWN),
    )
    return checkpoint_of(folder, config, dimensions, tensors, _NAMES_2)


def t5gemma2_dimensions(config: Mapping[str, Any], label: str) -> T5GemmaDimensions:
    """Read a configuration, trusting it about embeddings and the head."""
    outer = Fields(values=config, label=label)
    none = Fields(values={}, label=label)
    around = outer.group("encoder") or none
    given = around.group("text_config") or none, outer.group("decoder") or none
    encoder, decoder = (replace(stack, values={**_DEFAULTS_2, **stack.values}) for stack in given)
    return dimensions_of(
        outer,
        (encoder, decoder),
        # A position at an end sees all where half of a window is as long as any sequence.
        encoder=_stack_2(encoder, 2 * encoder.whole("max_position_embeddings")),
        decoder=_stack_2(decoder, decoder.whole("max_position_embeddings")),
        merged=True,
        one_embedding=outer.flag("tie_word_embeddings", True),
        eoi_token=around.whole("eoi_token_index", _EOI_TOKEN, least=0),
    )


def _stack_2(fields: Fields, widest: int) -> GemmaStack:
    """Read a stack; a window wider than `widest` sees no more than that."""
    every = fields.whole("sliding_window_pattern")
    kinds = layer_kinds(fields, lambda i: SLIDING if (i + 1) % every else FULL)
    window = min(fields.whole("sliding_window"), widest) if SLIDING in kinds else None
    return stack_of(
        fields,
        windows=tuple(window if kind == SLIDING else None for kind in kinds),
        window_rotary=read_rotary(fields, SLIDING, "rope_local_base_freq"),
        query_key_norm=True,
    )


def _text_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Tensors shared by the stacks have the decoder's name."""
    named = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    text = {
        name.replace(_TEXT, _ENCODER, 1): tensor
        for name, tensor in named.items()
        if not name.startswith(_IMAGES)
    }
    pairs = [(f"{_ENCODER}{name}", f"decoder.{name}") for name in _OWN]
    there = [(text[one], text.get(other, text[one])) for one, other in pairs if one in text]
    if all(one is other or same(one, other) for one, other in there):
        for one, other in pairs:
            if one in text:
                text.setdefault(other, text.pop(one))
    return own_tensors(text)


T5GEMMA2 = HuggingFaceFamily(
    family=T5GemmaDimensions,
    model_types=("t5gemma2",),
    dimensions=t5gemma2_dimensions,
    read=read_t5gemma2,
    heads={
        HEAD: [
            f"{prefix}{embedding}"
            for prefix in ("model.", "")
            for embedding in (EMBEDDING, f"{_TEXT}{_OWN[0]}", f"{_ENCODER}{_OWN[0]}")
        ]
    },
)
