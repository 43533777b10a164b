"""Tiny random decoders that hear, of transformers, saved with a tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    VoxtralConfig,
    VoxtralForConditionalGeneration,
)

from kit.small_tokenizers import byte_level

VOCAB = 520
SOUND = 510  # the placeholder of a position of sound, which no text has
_SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>"),
    *("[INST]", "[/INST]", "[BEGIN_AUDIO]", "[TRANSCRIBE]"),
]
TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
}
AUDIO: dict[str, dict[str, Any]] = {
    "qwen3_asr": {
        "num_mel_bins": 32,
        "d_model": 32,
        "encoder_layers": 2,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 40,
        "downsample_hidden_size": 6,
        "n_window_infer": 800,
        "output_dim": 48,
    },
    "voxtral": {
        "num_mel_bins": 32,
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    },
}


def random_audio_decoder(
    kind: str, seed: int = 3, text: Any = None, *, tied: bool = False, **audio: Any
) -> Any:
    """Return a model whose texts depend on the sound and end; `text` and `audio` change sizes."""
    torch.manual_seed(seed)
    end = ids()["<|im_end|>"]
    common = {
        "audio_config": {**AUDIO[kind], **audio},
        "text_config": {**TEXT, "eos_token_id": end, "pad_token_id": end, **(text or {})},
        "audio_token_id": SOUND,
        "tie_word_embeddings": tied,
    }
    if kind == "voxtral":
        model: Any = VoxtralForConditionalGeneration(VoxtralConfig(**common))
    else:
        config = Qwen3ASRConfig(**common, eos_token_id=[ids()["</s>"], end], pad_token_id=end)
        model = Qwen3ASRForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1, 0.2)
            elif "embed_positions" not in name:
                inputs = parameter[0].numel() if parameter.ndim > 1 else 100
                parameter.normal_(0, 1.5 / inputs**0.5)
        model.get_input_embeddings().weight.normal_(0, 1)
    return model.eval()


def save_audio_decoder(model: Any, folder: Path) -> Path:
    """Save a whole Hugging Face folder."""
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder


def tokenizer_json() -> dict[str, Any]:
    """Return a byte-level tokenizer with the special tokens of both, and no token before texts."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(_SPECIAL)
    tokenizer.add_tokens(["<asr_text>"])
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    description["post_processor"] = None
    return description


def ids() -> dict[str, int]:
    """Return the ids of added tokens."""
    return {token["content"]: token["id"] for token in tokenizer_json()["added_tokens"]}
