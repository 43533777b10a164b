"""Tiny models for benchmarks: decoder-only ones with a tokenizer of words w0, w1, ...; a T5."""

import json
from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from kit.dimensions import LLAMA, T5_SMALL
from kit.models import lazy_tensors
from kvcast.checkpoints.base import Checkpoint
from kvcast.families.decoder import DECODER
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast_bench.greedy_step import GreedyState
from tokenizers import Tokenizer, decoders, models

TINY = replace(LLAMA, vocab_size=96, max_positions=64)
TINY_T5 = replace(
    T5_SMALL,
    vocab_size=64,
    width=32,
    inner=48,
    heads=4,
    head_dim=8,
    encoder_layers=1,
    decoder_layers=2,
    logit_scale=32**-0.5,
)
TINY_T5_CONFIG = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 1,
    "num_decoder_layers": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


def tiny_checkpoint(dimensions: DecoderDimensions = TINY) -> Checkpoint:
    rng = np.random.default_rng(0)
    words = {f"w{token}": token for token in range(dimensions.vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.decoder = decoders.ByteLevel()
    about = {"end_tokens": [1], "bos_token": None, "eos_token": "w1"}
    return Checkpoint(
        dimensions=dimensions,
        tensors=lazy_tensors(
            {
                name: rng.standard_normal(shape, np.float32)
                for name, shape in DECODER.tensor_shapes(dimensions).items()
            }
        ),
        text={
            "tokenizer.json": tokenizer.to_str().encode(),
            "text.json": json.dumps(about).encode(),
        },
        source="a test",
    )


@torch.no_grad()
def written_eagerly(decode: nn.Module, begun: GreedyState, new: int) -> list[int]:
    text = tree_map(torch.clone, begun)
    tokens = []
    for _ in range(new):
        offsets = torch.zeros(1, dtype=torch.int64)
        logits, *_ = decode(text.token_rs, text.lengths, offsets, *text.caches, *text.given)
        text.token_rs.copy_(logits[:, -1].argmax(-1)[:, None])
        text.lengths.add_(1)
        tokens.append(int(text.token_rs))
    return tokens
