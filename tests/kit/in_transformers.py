"""Whispers and T5s of transformers, with the packaged weights or random, as folders on disk."""

import json
import string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    UMT5Config,
    UMT5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

import tokenizers
from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.source import open_checkpoint
from kvcast_bench.writing.huggingface import transformers_tensors
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors


def demo_in_transformers(checkpoint: Checkpoint) -> WhisperForConditionalGeneration:
    """Return the packaged model as transformers' module, in fp16 as stored."""
    config = WhisperConfig(
        vocab_size=51864,
        num_mel_bins=80,
        d_model=384,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=6,
        decoder_attention_heads=6,
        encoder_ffn_dim=1536,
        decoder_ffn_dim=1536,
        pad_token_id=50256,
        bos_token_id=50256,
        eos_token_id=50256,
    )
    model = WhisperForConditionalGeneration(config).half()
    state = {
        f"model.{name}": torch.from_numpy(np.array(tensor))
        for name, tensor in transformers_tensors(checkpoint.tensors)
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"]
    assert unexpected == []
    model.tie_weights()
    return model


_SIZES = {
    "vocab_size": 160,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 2,
    "decoder_start_token_id": 0,
}
_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
# ByT5's tokens are bytes and special ones; in the last case, heads * d_kv is not d_model.
SETTINGS: dict[str, dict[str, Any]] = {
    "T5_10": {},
    "T5_11": _GATED,
    "MT5": _GATED | {"num_decoder_layers": 3},
    "BYT5": _GATED | {"vocab_size": 384, "num_layers": 3, "num_decoder_layers": 1},
    "UMT5": {"feed_forward_proj": "gated-gelu", "num_decoder_layers": 3},
    "NARROW": {
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
        "feed_forward_proj": "gated-silu",
        "layer_norm_epsilon": 1e-5,
        "decoder_start_token_id": 3,
    },
}
_CLASSES = {
    "MT5": (MT5Config, MT5ForConditionalGeneration),
    "UMT5": (UMT5Config, UMT5ForConditionalGeneration),
}
_PIECES = ("▁the", "▁a", "▁and", "▁of", "ing", "er", "the", "an", "in", "on", "▁to", "▁is")


def random_t5(name: str, seed: int = 0, **settings: Any) -> PreTrainedModel:
    """One of SETTINGS, every weight random and large enough to move the logits."""
    config_of, model_of = _CLASSES.get(name, (T5Config, T5ForConditionalGeneration))
    wanted = _SIZES | SETTINGS[name] | settings
    torch.manual_seed(seed)
    model = model_of(config_of(**wanted)).eval()
    if wanted.get("tie_word_embeddings") is False:
        # transformers 5 ties whatever the configuration says, unless a checkpoint has both.
        model.lm_head.weight = torch.nn.Parameter(model.shared.weight.detach().clone())
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "layer_norm" in path:
                parameter.normal_(1, 0.2)
            elif "shared" in path or "relative_attention_bias" in path:
                parameter.normal_()
            else:
                parameter.normal_(0, 0.2)
    return model


def tiny_unigram() -> tokenizers.Tokenizer:
    """Letters, digits, marks and a few longer pieces, as a T5's tokenizer.json has them."""
    single = ["▁", *string.ascii_letters, *string.digits, *".,:;-'!?/"]
    scores = [(piece, -4.0) for piece in _PIECES] + [(piece, -8.0) for piece in single]
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram([*special, *scores], unk_id=2))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", "<extra_id_1>", "<extra_id_0>"])
    return tokenizer


def save_t5(model: PreTrainedModel, folder: Path, **options: Any) -> Path:
    """Save a whole Hugging Face folder: configuration, safetensors, and the tokenizer's files."""
    model.save_pretrained(folder, **options)
    of_bytes = model.config.vocab_size == SETTINGS["BYT5"]["vocab_size"]
    settings = {
        "tokenizer_class": "ByT5Tokenizer" if of_bytes else "T5TokenizerFast",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "extra_ids": 125 if of_bytes else 2,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if not of_bytes:
        tiny_unigram().save(str(folder / "tokenizer.json"))
    return folder


def read_t5(model: PreTrainedModel) -> Checkpoint:
    """Return the checkpoint that is read from the model's files."""
    with TemporaryDirectory() as folder:  # its files stay mapped
        return open_checkpoint(save_t5(model, Path(folder)))
