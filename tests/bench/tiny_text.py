"""Checkpoints of tiny random decoder-only models, with a tokenizer of words w0, w1, ..."""

import json

import numpy as np
from tokenizers import Tokenizer, decoders, models

from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.decoder_names import tensor_shapes
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.rotary import Rotary

TINY = DecoderDimensions(
    architecture="llama",
    vocab_size=96,
    width=64,
    inner=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    windows=(None, None),
    max_positions=64,
    rotary=Rotary(base=10000.0),
    norm_eps=1e-5,
    attention_scale=0.25,
)


def tiny_checkpoint(dimensions: DecoderDimensions = TINY) -> DecoderCheckpoint:
    rng = np.random.default_rng(0)
    words = {f"w{token}": token for token in range(dimensions.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.decoder = decoders.ByteLevel()
    about = {"end_tokens": [1], "bos_token": None, "eos_token": "w1"}
    return DecoderCheckpoint(
        dimensions=dimensions,
        tensors={
            name: rng.standard_normal(shape, np.float32)
            for name, shape in tensor_shapes(dimensions).items()
        },
        text={
            "tokenizer.json": tokenizer.to_str().encode(),
            "text.json": json.dumps(about).encode(),
        },
        source="a test",
        content_hash="0",
    )
