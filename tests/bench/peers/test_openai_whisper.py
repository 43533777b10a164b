"""Every tensor of a checkpoint finds its place in the programs that are fed with it."""

import numpy as np
import pytest
import torch
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperModel
from whisper.model import ModelDimensions, Whisper

from kvcast.bench.hugging_face import transformers_tensors
from kvcast.bench.peers.openai_whisper import openai_sizes, openai_tensors
from kvcast.checkpoints.names import tensor_shapes
from kvcast.errors import KvcastError
from kvcast.spec.whisper import WhisperDimensions

DIMENSIONS = WhisperDimensions(
    n_mels=80,
    vocab_size=99,
    d_model=8,
    encoder_layers=2,
    encoder_heads=2,
    decoder_layers=1,
    decoder_heads=2,
    source_positions=10,
    target_positions=6,
)


def checkpoint() -> dict[str, np.ndarray]:
    tensors = {
        name: np.ones(shape, np.float32) for name, shape in tensor_shapes(DIMENSIONS).items()
    }
    for name, tensor in tensors.items():
        if name.endswith("attention.qkv.bias"):
            tensor[8:16] = 0
        if name.endswith("key_value.bias"):
            tensor[:8] = 0
    return tensors


def test_openai_whisper_gets_exactly_its_tensors():
    assert openai_sizes(DIMENSIONS) == vars(ModelDimensions(80, 10, 8, 2, 2, 99, 6, 8, 2, 1))
    model = Whisper(ModelDimensions(**openai_sizes(DIMENSIONS)))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in openai_tensors(checkpoint())} == shapes


def test_transformers_gets_exactly_its_tensors():
    config = WhisperConfig(
        num_mel_bins=80,
        vocab_size=99,
        d_model=8,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=32,
        max_source_positions=10,
        max_target_positions=6,
        pad_token_id=0,
    )
    with torch.device("meta"):
        model = WhisperModel(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: tensor.shape for name, tensor in transformers_tensors(checkpoint())} == shapes


def test_stacked_projections_come_apart_in_order():
    tensors = checkpoint()
    stacked = np.arange(24 * 8, dtype=np.float32).reshape(24, 8)
    tensors["encoder.layers.0.attention.qkv.weight"] = stacked
    named = dict(openai_tensors(tensors))
    parts = [named[f"encoder.blocks.0.attn.{part}.weight"] for part in ("query", "key", "value")]
    assert np.array_equal(np.concatenate(parts), stacked)


def test_a_bias_of_keys_is_refused_because_nobody_else_would_add_it():
    tensors = checkpoint()
    tensors["decoder.layers.0.cross_attention.key_value.bias"][:] = 1
    with pytest.raises(KvcastError, match="bias"):
        list(openai_tensors(tensors))
