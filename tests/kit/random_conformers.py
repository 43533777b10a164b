"""Random models of transformers with FastConformer encoders, as folders on disk.

Every field that changes a result has another value in one of KINDS.
"""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

MELS, HALVINGS = 16, 2
END, PAD, BLANK = 3, 2, 63
_CONTROLS = """
endoftext startoftranscript pnc nopnc startofcontext itn noitn timestamp notimestamp diarize
nodiarize emo:undefined en de
"""
_SPECIAL = ["<unk>", "<|nospeech|>", "<pad>", *(f"<|{name}|>" for name in _CONTROLS.split())]
_PIECES = ["\u2581", *string.ascii_lowercase, *"0123456789.,?!'-", "\u2581a", "\u2581th", "er"]
VOCAB = len(_SPECIAL) + len(_PIECES)  # 63
_ENCODER: dict[str, Any] = {
    "model_type": "parakeet_encoder",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_kernel_size": 5,
    "subsampling_factor": 1 << HALVINGS,
    "subsampling_conv_channels": 8,
    "num_mel_bins": MELS,
}
_CANARY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "vocab_size": VOCAB,
}
_COHERE = {**_CANARY, "hidden_size": 24, "head_dim": 12}
_TRANSDUCER = {
    "decoder_hidden_size": 24,
    "num_decoder_layers": 2,
    "blank_token_id": BLANK,
    "pad_token_id": PAD,
}
_OTHER = {
    "hidden_act": "relu",
    "attention_bias": False,
    "convolution_bias": False,
    "conv_kernel_size": 9,
    "subsampling_factor": 8,
}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "canary": ("canary", {"scale_input": False}, {}),
    "canary-otherwise": (
        "canary",
        {"scale_input": True, **_OTHER},
        {"hidden_act": "gelu", "attention_bias": False},
    ),
    "cohere_asr": ("cohere_asr", {"scale_input": False}, {}),
    "cohere_asr-otherwise": (
        "cohere_asr",
        {"scale_input": True},
        {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": True},
    ),
    "parakeet_ctc": ("parakeet_ctc", {}, {"pad_token_id": BLANK}),
    "parakeet_rnnt": (
        "parakeet_rnnt",
        {"scale_input": False, "convolution_bias": False},
        {**_TRANSDUCER, "max_symbols_per_step": 3},
    ),
    "parakeet_tdt": ("parakeet_tdt", {}, {**_TRANSDUCER, "durations": [0, 1, 2, 3, 4]}),
    "parakeet_tdt-otherwise": (
        "parakeet_tdt",
        {},
        {**_TRANSDUCER, "durations": [0, 1, 2], "num_decoder_layers": 1, "hidden_act": "silu"},
    ),
}
"""By name: a model type, fields of its encoder, and others."""


def random_conformer(kind: str, seed: int = 0) -> Any:
    """One of KINDS, every weight random and large enough to move the logits."""
    model_type, encoder, others = KINDS[kind]
    encoder = {**_ENCODER, **encoder}
    fields: dict[str, Any] = {"encoder_config": encoder, "vocab_size": VOCAB}
    if model_type == "canary":
        fields["decoder_config"] = {**_CANARY, **others}
    elif model_type == "cohere_asr":
        fields |= {**_COHERE, **others}
    else:
        fields |= {**others, "vocab_size": VOCAB + 1}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    torch.manual_seed(seed)
    model = getattr(transformers, _CLASSES[model_type])(config).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "running_var" in name:
                tensor.uniform_(0.5, 2)
            elif "norm" in name and name.endswith("weight"):
                tensor.normal_(1, 0.2)
            elif (
                tensor.dtype == torch.float32
                and "inv_freq" not in name
                and "positional" not in name
            ):
                small = "bias" in name or "running_mean" in name
                tensor.normal_(0, 0.1 if small else 0.25)
        if model_type == "parakeet_tdt":  # whose durations transformers takes for tokens
            model.joint.head.bias[VOCAB + 1 :] -= 40
            model.joint.head.bias[VOCAB + 1] -= 6  # of 0 positions: transformers would stay at one
    return model


_CLASSES = {
    "canary": "CanaryForConditionalGeneration",
    "cohere_asr": "CohereAsrForConditionalGeneration",
    "parakeet_ctc": "ParakeetForCTC",
    "parakeet_rnnt": "ParakeetForRNNT",
    "parakeet_tdt": "ParakeetForTDT",
}


def save_conformer(model: Any, folder: Path) -> Path:
    """Save a whole Hugging Face folder."""
    model.save_pretrained(folder)
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return folder


def _tokenizer() -> tokenizers.Tokenizer:
    pieces = [(piece, 0.0) for piece in _SPECIAL] + [(piece, -4.0) for piece in _PIECES]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(_SPECIAL)
    return tokenizer


def tokens_of_pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens with the blank one, scores and types, as GGUF has them."""
    tokens = [*_SPECIAL, *_PIECES, "<blank>"]
    types = [2] + [3] * (len(_SPECIAL) - 1) + [1] * len(_PIECES) + [3]
    return tokens, [0.0 if kind != 1 else -4.0 for kind in types], types


def ragged_features(lengths: tuple[int, ...], seed: int = 0) -> list[NDArray[np.float32]]:
    """Features [frames, mels] of each length."""
    generator = np.random.default_rng(seed)
    return [generator.normal(size=(frames, MELS)).astype(np.float32) for frames in lengths]


def padded(features: list[NDArray[np.float32]]) -> dict[str, torch.Tensor]:
    """Features as transformers' models take them together."""
    longest = max(map(len, features))
    padding = [np.pad(each, ((0, longest - len(each)), (0, 0))) for each in features]
    mask = [[True] * len(each) + [False] * (longest - len(each)) for each in features]
    return {
        "input_features": torch.from_numpy(np.stack(padding)),
        "attention_mask": torch.tensor(mask),
    }
