"""Random Moonshines of transformers, as folders on disk, and waveforms for them.

Every field that changes a result has another value in one of KINDS.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq

from kit.in_transformers import tiny_unigram

VOCAB, START, PAD, END = 96, 5, 0, 1  # as the tokenizer's
_TOKENS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "bos_token_id": START,
    "decoder_start_token_id": START,
    "pad_token_id": PAD,
    "eos_token_id": END,
    "max_position_embeddings": 96,
}
_OVER_SAMPLES: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "encoder_num_hidden_layers": 2,
    "decoder_num_hidden_layers": 3,
    "encoder_num_attention_heads": 2,
    "decoder_num_attention_heads": 2,
}
_OVER_FRAMES: dict[str, Any] = {
    **_TOKENS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "encoder_config": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_windows": [[5, 2], [3, 0], [4, 3]],
    },
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "moonshine": ("moonshine", {}),
    "moonshine-biased": (
        "moonshine",
        {
            "attention_bias": True,
            "encoder_hidden_act": "relu",
            "decoder_hidden_act": "gelu",
            "head_dim": 12,
            "pad_head_dim_to_multiple_of": 8,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 2.0,
                "rope_theta": 100.0,
                "partial_rotary_factor": 0.5,
            },
        },
    ),
    "streaming": ("moonshine_streaming", {}),
    "streaming-biased": (
        "moonshine_streaming",
        {
            "attention_bias": True,
            "hidden_act": "relu",
            "hidden_size": 24,
            "head_dim": 20,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 50.0,
                "partial_rotary_factor": 0.5,
            },
            "encoder_config": {
                **_OVER_FRAMES["encoder_config"],
                "attention_bias": True,
                "hidden_act": "silu",
                "head_dim": 12,
                "frame_ms": 2.5,
                "sliding_windows": [[1, 1], [6, 4], [2, 0]],
            },
        },
    ),
}


def random_moonshine(kind: str, seed: int = 0, **other: Any) -> Any:
    """One of KINDS, `other` settings replaced; weights are large enough to move the logits."""
    model_type, settings = KINDS[kind]
    torch.manual_seed(seed)
    sizes = _OVER_SAMPLES if model_type == "moonshine" else _OVER_FRAMES
    config = AutoConfig.for_model(model_type, **sizes | settings | other)
    model = AutoModelForSpeechSeq2Seq.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                parameter.normal_(1, 0.2)
            elif name.endswith("gamma"):
                parameter.normal_(0, 0.2)
            elif name.endswith("log_k"):
                parameter.fill_(0.4)
            else:
                mixes = "o_proj" in name or "fc2" in name
                parameter.normal_(0, 0.05 if "bias" in name else 0.6 if mixes else 0.3)
    return model


def save_moonshine(model: Any, folder: Path) -> Path:
    """Save a whole Hugging Face folder."""
    model.save_pretrained(folder)
    tiny_unigram().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return folder


def sounds(model: Any, lengths: tuple[int, ...]) -> list[NDArray[np.float32]]:
    """Noise with silences, of the given lengths in samples, all different."""
    generator = np.random.default_rng(len(lengths))
    loudness = 0.3 if model.config.model_type == "moonshine" else 0.05
    return [
        (generator.normal(0, loudness, length) * (np.arange(length) % 1500 > 100)).astype(
            np.float32
        )
        for length in lengths
    ]


def heard(model: Any, sound: NDArray[np.float32]) -> dict[str, torch.Tensor]:
    """Return the inputs that transformers' processor makes of a waveform."""
    if model.config.model_type == "moonshine":
        return {"input_values": torch.from_numpy(sound)[None]}
    encoder = model.config.encoder_config
    frame = round(encoder.sample_rate * encoder.frame_ms / 1000)
    padding = -len(sound) % frame
    values = torch.from_numpy(np.pad(sound, (0, padding)))[None]
    mask = torch.tensor([[1] * len(sound) + [0] * padding])
    return {"input_values": values, "attention_mask": mask}
