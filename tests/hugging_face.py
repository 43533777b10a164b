"""Whisper tiny.en's real weights in transformers, for folders in Hugging Face layout."""

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kvcast.checkpoints.base import WhisperCheckpoint


def to_transformers(checkpoint: WhisperCheckpoint) -> dict[str, torch.Tensor]:
    """The inverse of reading, written against transformers' names: a state dict."""
    state = {}
    for name, array in checkpoint.tensors.items():
        tensor = torch.from_numpy(np.array(array))
        name = f"model.{name}"
        name = name.replace(".embedding.weight", ".embed_tokens.weight")
        if name.endswith(".positions"):
            name = name.replace(".positions", ".embed_positions.weight")
        for ours, theirs in (
            ("encoder.norm", "encoder.layer_norm"),
            ("decoder.norm", "decoder.layer_norm"),
            ("self_attention_norm", "self_attn_layer_norm"),
            ("cross_attention_norm", "encoder_attn_layer_norm"),
            ("feed_forward_norm", "final_layer_norm"),
            (".attention_norm", ".self_attn_layer_norm"),
            ("feed_forward.up", "fc1"),
            ("feed_forward.down", "fc2"),
            ("self_attention.", "self_attn."),
            ("cross_attention.", "encoder_attn."),
            (".attention.", ".self_attn."),
            (".out.", ".out_proj."),
            (".query.", ".q_proj."),
        ):
            name = name.replace(ours, theirs)
        fused = {"qkv": ("q_proj", "k_proj", "v_proj"), "key_value": ("k_proj", "v_proj")}
        for ours, theirs in fused.items():
            if f".{ours}." in name:
                for target, part in zip(theirs, tensor.chunk(len(theirs)), strict=True):
                    state[name.replace(ours, target)] = part.contiguous()
                break
        else:
            state[name] = tensor
    for name in [name for name in state if name.endswith("k_proj.bias")]:
        # Left out by transformers, and zero in every Whisper.
        assert not state.pop(name).any()
    return state


def demo_in_transformers(checkpoint: WhisperCheckpoint) -> WhisperForConditionalGeneration:
    """Return the packaged model as transformers' module, in fp16 as it is stored."""
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
    missing, unexpected = model.load_state_dict(to_transformers(checkpoint), strict=False)
    assert missing == ["proj_out.weight"]
    assert unexpected == []
    model.tie_weights()
    return model
