"""Random decoder-only models, for proving that two computations agree."""

from dataclasses import replace

import numpy as np

from kvcast.checkpoints.decoder_names import tensor_shapes
from kvcast.families.decoder import DecoderDimensions
from kvcast.models.programs.decoder import DecoderPrograms
from kvcast.spec.rotary import Rotary

LLAMA = DecoderDimensions(
    architecture="llama",
    vocab_size=160,
    width=64,
    inner=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    windows=(None, None),
    max_positions=4096,
    rotary=Rotary(base=10000.0),
    norm_eps=1e-5,
    attention_scale=16**-0.5,
)
MISTRAL = replace(LLAMA, architecture="mistral", windows=(7, 7), tied=False)
QWEN2 = replace(LLAMA, architecture="qwen2", qkv_bias=True)
QWEN3 = replace(LLAMA, architecture="qwen3", query_key_norm=True)
GEMMA3 = replace(
    LLAMA,
    architecture="gemma3_text",
    windows=(5, None, 5),
    window_rotary=Rotary(base=100.0),
    activation="gelu_tanh",
    query_key_norm=True,
    post_norms=True,
    embedding_scale=8.0,
    attention_softcap=5.0,
    logit_softcap=20.0,
)
MIXTRAL = replace(MISTRAL, architecture="mixtral", experts=4, experts_per_token=2)
MODELS = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA3, MIXTRAL)


def random_decoder(dimensions: DecoderDimensions, seed: int = 0) -> DecoderPrograms:
    """Programs with weights large enough that every part of the model moves the logits."""
    generator = np.random.default_rng(seed)
    tensors = {
        name: generator.normal(1 if "norm" in name else 0, 0.2, shape)
        for name, shape in tensor_shapes(dimensions).items()
    }
    return DecoderPrograms.from_tensors(dimensions, tensors)
