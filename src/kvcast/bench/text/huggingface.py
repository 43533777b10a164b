"""A checkpoint as a Hugging Face folder: what transformers and two converters read."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.bench.text.names import HUGGING_FACE, model_type
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.spec.decoder import DecoderDimensions

_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_TOKENIZER = "tokenizer.json"


def has_tokenizer(checkpoint: DecoderCheckpoint) -> bool:
    """Tell whether the tokenizer is one that such a folder can hold."""
    return _TOKENIZER in checkpoint.text


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
    (folder / _TOKENIZER).write_bytes(checkpoint.text[_TOKENIZER])
    tensors = {
        name: np.array(tensor, np.float32) for name, tensor in HUGGING_FACE.rename(checkpoint)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


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
