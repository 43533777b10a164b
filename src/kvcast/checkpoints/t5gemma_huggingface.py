"""Interprets T5Gemma in Hugging Face layout: config.json, tensor names.

Defaults are those of transformers. Knows nothing of how weights are stored.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.decoder_particulars import activation_of
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_family import HuggingFaceFamily
from kvcast.checkpoints.rotary_huggingface import FULL, SLIDING, read_rotary
from kvcast.checkpoints.source_text_huggingface import read_text
from kvcast.checkpoints.tables import Entry, changed, fill, one_more, same
from kvcast.checkpoints.text_huggingface import generation_fields
from kvcast.families.t5gemma import GemmaStack, T5GemmaDimensions, tensor_shapes
from kvcast.spec.sizes import MOST_LAYERS

_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
    "bos_token_id": 2,
    "eos_token_id": 1,
}
_START = "decoder_start_token_id"
_HEAD, _EMBEDDING = "lm_head.out_proj.weight", "decoder.embed_tokens.weight"
_LAYER = re.compile(r"(?<=\blayers\.)\d+")


def _names(stack: str, attentions: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Return names of a stack's modules; `attentions`: ours by theirs."""
    layer = f"{stack}.layers.{{i}}"
    modules: dict[str, Sequence[str]] = {
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
        }
    return modules


NAMES: Mapping[str, Sequence[str]] = {
    "head": ["lm_head.out_proj"],
    **_names("encoder", {"self_attn": "self_attention"}),
    **_names("decoder", {"self_attn": "self_attention", "cross_attn": "cross_attention"}),
}


def read_t5gemma(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    """Read a model with a model_type of this family.

    Raises KvcastError, naming the file, for what kvcast does not support and for tensors that do
    not belong to the configuration; InputMissingError without a tokenizer.
    """
    started = generation_fields(folder).get(_START)
    if started is not None:
        config = {**config, _START: started}
    dimensions = t5gemma_dimensions(config, str(folder / "config.json"))
    tensors = _own_tensors(stored)
    dimensions = replace(dimensions, tied=_HEAD not in tensors)
    decoder = config.get("decoder")
    ends = decoder.get("eos_token_id") if isinstance(decoder, dict) else None
    ends = config.get("eos_token_id") or ends or _DEFAULTS["eos_token_id"]
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill(_entries(dimensions), tensors, str(folder), "a T5Gemma", lenient=True),
        text=read_text(folder, {**config, "eos_token_id": ends}),
        source=f"Hugging Face folder {folder}",
    )


def t5gemma_dimensions(config: Mapping[str, Any], label: str) -> T5GemmaDimensions:
    """Read a configuration, trusting it about the head.

    Raises KvcastError, naming `label`, for what kvcast does not support.
    """
    outer = Fields(values=config, label=label)
    none = Fields(values={}, label=label)
    stacks = [outer.group(name) or none for name in ("encoder", "decoder")]
    encoder, decoder = (replace(stack, values={**_DEFAULTS, **stack.values}) for stack in stacks)
    usual = outer.whole("bos_token_id", decoder.whole("bos_token_id", least=0), least=0)
    return outer.make(
        T5GemmaDimensions,
        architecture=config["model_type"],
        vocab_size=decoder.whole("vocab_size"),
        source_vocab_size=encoder.whole("vocab_size"),
        encoder=_stack(encoder),
        decoder=_stack(decoder),
        logit_softcap=_softcap(decoder, "final_logit_softcapping"),
        tied=outer.flag("tie_word_embeddings", True),
        start_token=outer.whole(_START, usual, least=0),
    )


def _stack(fields: Fields) -> GemmaStack:
    positions = fields.whole("max_position_embeddings")
    return fields.make(
        GemmaStack,
        width=fields.whole("hidden_size"),
        inner=fields.whole("intermediate_size"),
        heads=fields.whole("num_attention_heads"),
        kv_heads=fields.whole("num_key_value_heads"),
        head_dim=fields.whole("head_dim"),
        windows=_windows(fields, positions),
        positions=positions,
        rotary=read_rotary(fields, FULL, "rope_theta"),
        norm_eps=fields.positive("rms_norm_eps"),
        activation=activation_of(fields),
        attention_scale=fields.positive("query_pre_attn_scalar") ** -0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        attention_bias=fields.flag("attention_bias"),
    )


def _softcap(fields: Fields, name: str) -> float:
    return 0.0 if fields.values.get(name) is None else fields.positive(name)


def _windows(fields: Fields, positions: int) -> tuple[int | None, ...]:
    """Return each layer's window; None where it is as long as any sequence."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if i % 2 == 0 else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise fields.error(f"layer_types must list {layers} layers")
    if any(kind not in (FULL, SLIDING) for kind in kinds):
        raise fields.error(f"layer_types other than {FULL} and {SLIDING} are not supported")
    window = fields.whole("sliding_window") if SLIDING in kinds else positions
    return tuple(window if kind == SLIDING and window < positions else None for kind in kinds)


def _own_tensors(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return tensors without name prefixes, with norm weights as they multiply."""
    own = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    own = {
        name: changed(tensor, one_more) if name.endswith("norm.weight") else tensor
        for name, tensor in own.items()
    }
    if _HEAD in own and same(own[_HEAD], own.setdefault(_EMBEDDING, own[_HEAD])):
        del own[_HEAD]
    return own


def _entries(dimensions: T5GemmaDimensions) -> Iterator[Entry]:
    """Yield canonical tensors with the parts of files that fill them."""
    for canonical, shape in tensor_shapes(dimensions).items():
        module, _, leaf = canonical.rpartition(".")
        layer = _LAYER.search(module)
        names = [
            f"{name.format(i=layer[0] if layer else 0)}.{leaf}"
            for name in NAMES[_LAYER.sub("{i}", module)]
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
    heads={_HEAD: (f"model.{_EMBEDDING}", _EMBEDDING)},
)
