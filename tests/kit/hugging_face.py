"""Whisper tiny.en's real weights in transformers, for folders in Hugging Face layout."""

import numpy as np
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast_bench.writing.huggingface import transformers_tensors


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
    state = {
        f"model.{name}": torch.from_numpy(np.array(tensor))
        for name, tensor in transformers_tensors(checkpoint.tensors)
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["proj_out.weight"]
    assert unexpected == []
    model.tie_weights()
    return model
