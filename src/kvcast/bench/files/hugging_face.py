"""Hugging Face folders that other programs read: a T5's own, a decoder-only model's written here.

Serves dense models of the Llama kind: Llama, Mistral, Qwen 2 and Qwen 3.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.decoder_huggingface import NAMES
from kvcast.checkpoints.tables import take_apart
from kvcast.spec.decoder import DecoderDimensions

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
TOKENIZER = "tokenizer.json"
_HEAD = "lm_head.weight"


def write_hugging_face(checkpoint: DecoderCheckpoint, folder: Path) -> None:
    """Make `folder`, with tensors in fp32."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    about = json.loads(checkpoint.text["text.json"])
    end = (about["end_tokens"] or [0])[0]
    config = _config(checkpoint.dimensions) | {"bos_token_id": end, "eos_token_id": end}
    special = {name: about[name] for name in ("bos_token", "eos_token") if about[name]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / TOKENIZER).write_bytes(checkpoint.text[TOKENIZER])
    keys = checkpoint.dimensions.kv_heads * checkpoint.dimensions.head_dim
    tensors = {
        name if name == _HEAD else f"model.{name}": np.array(tensor, np.float32)
        for name, tensor in take_apart(checkpoint.tensors, NAMES, keys)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def model_type(dimensions: DecoderDimensions) -> str:
    """Return what Hugging Face calls a model of these dimensions, if it `is_common`."""
    if dimensions.query_key_norm:
        return "qwen3"
    if dimensions.qkv_bias and not dimensions.out_bias:
        return "qwen2"
    return "llama" if dimensions.windows[0] is None else "mistral"


def is_common(dimensions: DecoderDimensions) -> bool:
    """Tell whether the model is of the Llama kind, without scaled rotation."""
    peculiar = (
        dimensions.experts,
        dimensions.post_norms,
        dimensions.attention_softcap,
        dimensions.logit_softcap,
        dimensions.window_rotary,
        len(set(dimensions.windows)) > 1,
        dimensions.rotary.scaling != "none",
        dimensions.embedding_scale != 1,
        dimensions.activation != "silu",
        not np.isclose(dimensions.attention_scale, dimensions.head_dim**-0.5),
        model_type(dimensions) != "mistral" and dimensions.windows[0] is not None,
    )
    return not any(peculiar)


def _config(dimensions: DecoderDimensions) -> dict[str, Any]:
    kind = model_type(dimensions)
    return {
        "model_type": kind,
        "architectures": [_CLASSES[kind]],
        "dtype": "float32",
        "vocab_size": dimensions.vocab_size,
        "hidden_size": dimensions.width,
        "intermediate_size": dimensions.inner,
        "num_hidden_layers": dimensions.layers,
        "num_attention_heads": dimensions.heads,
        "num_key_value_heads": dimensions.kv_heads,
        "head_dim": dimensions.head_dim,
        "sliding_window": dimensions.windows[0],
        "max_position_embeddings": dimensions.max_positions,
        "rope_theta": dimensions.rotary.base,
        "rms_norm_eps": dimensions.norm_eps,
        "hidden_act": dimensions.activation,
        "attention_bias": dimensions.out_bias,
        "tie_word_embeddings": dimensions.tied,
    }
