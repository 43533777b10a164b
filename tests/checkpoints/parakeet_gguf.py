"""Writes Parakeets as transcribe.cpp's converter does, from models of transformers."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from kit.random_conformers import BLANK, tokens_of_pieces

_NAMES = {
    r"^encoder\.subsampling\.layers\.": "enc.pre_encode.conv.",
    r"^encoder\.subsampling\.linear\.": "enc.pre_encode.out.",
    r"^encoder\.layers\.": "enc.blocks.",
    r"norm_feed_forward(\d)": r"norm_ff\1",
    r"feed_forward(\d)": r"ff\1",
    "norm_self_att": "norm_attn",
    r"self_attn\.([qkv])_proj": r"attn.linear_\1",
    r"self_attn\.o_proj": "attn.linear_out",
    r"self_attn\.relative_k_proj": "attn.linear_pos",
    r"self_attn\.bias_": "attn.pos_bias_",
    "pointwise_conv": "pointwise",
    "depthwise_conv": "depthwise",
    r"conv\.norm\.": "conv.bn.",
    r"^decoder\.embedding\.": "pred.embed.",
    r"^decoder\.lstm\.weight_ih_l(\d)": r"pred.lstm.\1.Wx",
    r"^decoder\.lstm\.weight_hh_l(\d)": r"pred.lstm.\1.Wh",
    r"^decoder\.lstm\.bias_ih_l(\d)": r"pred.lstm.\1.bias",
    r"^encoder_projector\.": "joint.enc.",
    r"^decoder\.decoder_projector\.": "joint.pred.",
    r"^joint\.head\.": "joint.out.",
    r"^ctc_head\.": "head.ctc.",
}


def write_parakeet(model: Any, path: Path, **changes: Any) -> Path:
    """Write a model of `random_conformers`; `changes`: values to replace, None to leave out."""
    config = model.config
    encoder = config.encoder_config
    head = config.model_type.removeprefix("parakeet_")
    own, frontend, text = "stt.parakeet", "stt.frontend", "tokenizer.ggml"
    pieces, scores, types = tokens_of_pieces()
    values: dict[str, Any] = {
        "stt.variant": f"{head}-tiny",
        f"{own}.head_kind": head,
        f"{text}.model": "bpe",
        f"{text}.tokens": pieces,
        f"{text}.scores": scores,
        f"{text}.token_type": types,
        f"{text}.unknown_token_id": 0,
        f"{text}.blank_token_id": BLANK,
        f"{own}.encoder.n_layers": encoder.num_hidden_layers,
        f"{own}.encoder.d_model": encoder.hidden_size,
        f"{own}.encoder.n_heads": encoder.num_attention_heads,
        f"{own}.encoder.d_ff": encoder.intermediate_size,
        f"{own}.encoder.conv_kernel": encoder.conv_kernel_size,
        f"{own}.encoder.subsampling_factor": encoder.subsampling_factor,
        f"{own}.encoder.subsampling_channels": encoder.subsampling_conv_channels,
        f"{own}.encoder.pos_emb_max_len": encoder.max_position_embeddings,
        f"{own}.encoder.use_bias": encoder.attention_bias,
        f"{own}.encoder.xscaling": encoder.scale_input,
        f"{frontend}.type": "mel",
        f"{frontend}.num_mels": encoder.num_mel_bins,
        f"{frontend}.sample_rate": 16_000,
        f"{frontend}.n_fft": 512,
        f"{frontend}.win_length": 400,
        f"{frontend}.hop_length": 160,
        f"{frontend}.window": "hann",
        f"{frontend}.normalize": "per_feature",
        f"{frontend}.dither": 1e-5,
        f"{frontend}.pre_emphasis": 0.97,
        f"{frontend}.f_min": 0.0,
        f"{frontend}.f_max": 8_000.0,
    }
    if head != "ctc":
        values |= {
            f"{own}.predictor.hidden": config.decoder_hidden_size,
            f"{own}.predictor.n_layers": config.num_decoder_layers,
            f"{own}.predictor.vocab": config.vocab_size,
            f"{own}.joint.hidden": config.decoder_hidden_size,
            f"{own}.joint.num_extra_outputs": len(getattr(config, "durations", ())),
            f"{own}.joint.activation": config.hidden_act,
        }
    if head == "tdt":
        values |= {
            f"{own}.tdt.durations": list(config.durations),
            f"{own}.tdt.max_symbols": config.max_symbols_per_step,
        }
    writer = GGUFWriter(path, "parakeet")
    for name, value in {**values, **changes}.items():
        if value is not None:
            _add(writer, name, value)
    for name, array in _tensors(model).items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: GGUFWriter, name: str, value: Any) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    kind = "int32" if isinstance(value, int) and value < 0 else kinds[type(value)]
    getattr(writer, f"add_{kind}")(name, value)


def _tensors(model: Any) -> dict[str, np.ndarray]:
    stored = {name: value.numpy() for name, value in model.state_dict().items()}
    tensors = {}
    for name, array in stored.items():
        if "bias_hh" in name or name.endswith("num_batches_tracked") or "positional" in name:
            continue
        if "bias_ih" in name:
            array = array + stored[name.replace("_ih_", "_hh_")]
        for pattern, theirs in _NAMES.items():
            name = re.sub(pattern, theirs, name)
        tensors[name] = array
    return tensors
