"""Interprets T5Gemma 2 in Hugging Face layout: config.json, tensor names. Images are not read.

The encoder's fields are its `text_config`, beside a tower that sees images and the layers that make
embeddings of what it saw; tensors of both are passed over. Defaults are those of transformers,
which reads attn_logit_softcapping and does not use it. Knows nothing of how weights are stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_family import HuggingFaceFamily
from kvcast.checkpoints.rotary_huggingface import FULL, SLIDING, read_rotary
from kvcast.checkpoints.t5gemma_huggingface import (
    EMBEDDING,
    HEAD,
    checkpoint_of,
    dimensions_of,
    layer_kinds,
    own_tensors,
    stack_names,
    stack_of,
)
from kvcast.checkpoints.tables import same
from kvcast.checkpoints.text_huggingface import with_start_token
from kvcast.families.gemma_stack import GemmaStack
from kvcast.families.t5gemma import T5GemmaDimensions

_DEFAULTS_2: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "bos_token_id": 2,
}
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
    """Read a model with a model_type of this reader.

    Raises KvcastError, naming the file, for what kvcast does not support and for tensors that do
    not belong to the configuration; InputMissingError without a tokenizer.
    """
    dimensions = t5gemma2_dimensions(with_start_token(folder, config), str(folder / "config.json"))
    tensors = _text_tensors(stored)
    dimensions = replace(
        dimensions,
        tied=HEAD not in tensors,
        one_embedding=not any(f"{_ENCODER}{name}" in tensors for name in _OWN),
    )
    return checkpoint_of(folder, config, dimensions, tensors, _NAMES_2)


def t5gemma2_dimensions(config: Mapping[str, Any], label: str) -> T5GemmaDimensions:
    """Read a configuration, trusting it about embeddings and the head.

    Raises KvcastError, naming `label`, for what kvcast does not support.
    """
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
    """Return the tensors that texts need; one that the stacks share has the decoder's name."""
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
