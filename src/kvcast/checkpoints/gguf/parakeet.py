"""Interprets Parakeets in GGUF files as transcribe.cpp 0.4.1 converts them.

Its scripts/convert-parakeet.py renames NeMo's tensors, sums the two biases of each LSTM layer, and
stores hyperparameters as `stt.parakeet.*` metadata; tensors and values get Hugging Face names
here.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf.file import GgufFile
from kvcast.checkpoints.gguf.tokenizer import read_text
from kvcast.checkpoints.speech.parakeet import parakeet_dimensions, parakeet_tensors
from kvcast.checkpoints.tensor_names import zeros
from kvcast.families.parakeet import ParakeetDimensions

ARCHITECTURE = "parakeet"
_HEADS = ("ctc", "rnnt", "tdt")
TYPES = {ParakeetDimensions: tuple(f"{ARCHITECTURE}_{head}" for head in _HEADS)}

_OWN = f"stt.{ARCHITECTURE}"
_ENCODER = f"{_OWN}.encoder"
# What the reader of transcribe.cpp assumes where a file says nothing, and kvcast always does.
_FIXED: Mapping[str, Any] = {
    f"{_ENCODER}.att_context_left": -1,
    f"{_ENCODER}.att_context_right": -1,
    f"{_ENCODER}.att_context_style": "regular",
    f"{_ENCODER}.conv_context_left": -1,
    f"{_ENCODER}.conv_context_right": -1,
    f"{_ENCODER}.conv_norm_type": "batch_norm",
    "stt.frontend.type": "mel",
    "stt.frontend.sample_rate": 16_000,
    "stt.frontend.n_fft": 512,
    "stt.frontend.win_length": 400,
    "stt.frontend.hop_length": 160,
    "stt.frontend.window": "hann",
    "stt.frontend.normalize": "per_feature",
    "stt.frontend.f_min": 0.0,
    "stt.frontend.f_max": 8_000.0,
}
_SIZES: Mapping[str, str] = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "d_ff",
    "conv_kernel_size": "conv_kernel",
    "subsampling_factor": "subsampling_factor",
    "subsampling_conv_channels": "subsampling_channels",
    "max_position_embeddings": "pos_emb_max_len",
}
_NAMES: Mapping[str, str] = {
    r"enc\.pre_encode\.conv\.(\d+)\.": r"encoder.subsampling.layers.\1.",
    r"enc\.pre_encode\.out\.": "encoder.subsampling.linear.",
    r"enc\.blocks\.(\d+)\.": r"encoder.layers.\1.",
    r"\.norm_ff(\d)\.": r".norm_feed_forward\1.",
    r"\.ff(\d)\.": r".feed_forward\1.",
    r"\.norm_attn\.": ".norm_self_att.",
    r"\.attn\.linear_([qkv])\.": r".self_attn.\1_proj.",
    r"\.attn\.linear_out\.": ".self_attn.o_proj.",
    r"\.attn\.linear_pos\.": ".self_attn.relative_k_proj.",
    r"\.attn\.pos_bias_([uv])$": r".self_attn.bias_\1",
    r"\.conv\.pointwise(\d)\.": r".conv.pointwise_conv\1.",
    r"\.conv\.depthwise\.": ".conv.depthwise_conv.",
    r"\.conv\.bn\.": ".conv.norm.",
    r"^pred\.embed\.": "decoder.embedding.",
    r"^pred\.lstm\.(\d+)\.Wx$": r"decoder.lstm.weight_ih_l\1",
    r"^pred\.lstm\.(\d+)\.Wh$": r"decoder.lstm.weight_hh_l\1",
    r"^pred\.lstm\.(\d+)\.bias$": r"decoder.lstm.bias_ih_l\1",
    r"^joint\.enc\.": "encoder_projector.",
    r"^joint\.pred\.": "decoder.decoder_projector.",
    r"^joint\.out\.": "joint.head.",
    r"^head\.ctc\.": "ctc_head.",
}
"""Patterns of its names, and Hugging Face's instead."""


def read_parakeet(file: GgufFile, label: str) -> Checkpoint:
    """Raise KvcastError, naming `label`, for sizes or tensors that are not those of a Parakeet."""
    fields = Fields(values=file.values, label=label)
    config = _config(fields)
    dimensions = parakeet_dimensions(config, label)
    stored = {_renamed(name): tensor.stored() for name, tensor in file.tensors.items()}
    for layer in range(dimensions.prediction_layers):
        stored[f"decoder.lstm.bias_hh_l{layer}"] = zeros((4 * dimensions.width,))
    return Checkpoint(
        dimensions=dimensions,
        tensors=parakeet_tensors(stored, config, dimensions, label),
        text=_text(file.values, label),
        source=f"GGUF file {label}",
    )


def _config(fields: Fields) -> dict[str, Any]:
    """Return what config.json of Hugging Face's layout would say."""
    fields.require(_FIXED)
    if abs(fields.positive("stt.frontend.pre_emphasis", 0.97) - 0.97) > 1e-6:
        raise fields.error("stt.frontend.pre_emphasis must be 0.97")
    head = str(fields.values.get(f"{_OWN}.head_kind", "tdt"))
    if head not in _HEADS:
        supported = ", ".join(_HEADS)
        raise fields.error(
            f"{_OWN}.head_kind {head[:40]!r} is not supported (supported: {supported})"
        )
    has_biases = fields.flag(f"{_ENCODER}.use_bias", False)
    encoder = {
        **{name: fields.whole(f"{_ENCODER}.{own}") for name, own in _SIZES.items()},
        "num_mel_bins": fields.whole("stt.frontend.num_mels"),
        "attention_bias": has_biases,
        "convolution_bias": has_biases,
        "scale_input": fields.flag(f"{_ENCODER}.xscaling", False),
    }
    blank = fields.whole("tokenizer.ggml.blank_token_id", least=0)
    config: dict[str, Any] = {"model_type": f"{ARCHITECTURE}_{head}", "encoder_config": encoder}
    if head == "ctc":
        return {**config, "vocab_size": blank + 1, "pad_token_id": blank}
    width = fields.whole(f"{_OWN}.predictor.hidden")
    fields.require({f"{_OWN}.joint.hidden": width})
    config |= {
        "vocab_size": fields.whole(f"{_OWN}.predictor.vocab"),
        "blank_token_id": blank,
        "decoder_hidden_size": width,
        "num_decoder_layers": fields.whole(f"{_OWN}.predictor.n_layers"),
        "hidden_act": fields.values.get(f"{_OWN}.joint.activation"),
        "max_symbols_per_step": fields.whole(f"{_OWN}.tdt.max_symbols", 10),
    }
    if head == "tdt":
        durations = fields.values.get(f"{_OWN}.tdt.durations")
        if durations is None:
            raise fields.error(f"{_OWN}.tdt.durations is missing")
        if not isinstance(durations, np.ndarray) or durations.dtype.kind not in "iu":
            raise fields.error(f"{_OWN}.tdt.durations must list numbers of positions")
        config["durations"] = durations.tolist()
    return config


def _renamed(name: str) -> str:
    for pattern, theirs in _NAMES.items():
        name = re.sub(pattern, theirs, name)
    return name


def _text(values: Mapping[str, Any], label: str) -> dict[str, bytes]:
    """Return SentencePiece's pieces; a text ends with its audio, so any token may be its end."""
    ours = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    return read_text({**values, **ours}, label)
