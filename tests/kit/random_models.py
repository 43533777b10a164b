"""Random Whispers and T5s, for proving that two computations agree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvcast.checkpoints import t5_names
from kvcast.families.t5 import T5Dimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.models.programs.t5 import T5Programs
from kvcast.models.programs.whisper import WhisperPrograms
from kvcast.models.whisper import Whisper
from kvcast.runtimes.base import EncoderDecoder

SMALL = WhisperDimensions(
    n_mels=80,
    vocab_size=300,
    d_model=64,
    encoder_layers=1,
    encoder_heads=4,
    decoder_layers=2,
    decoder_heads=4,
    source_positions=25,
    target_positions=32,
    # Of two layers, and not in their order.
    alignment_heads=((1, 3), (0, 1), (1, 0)),
)
# Sizes that all quantisation schemes support.
SMALL_T5 = T5Dimensions(
    architecture="t5",
    vocab_size=320,
    width=64,
    inner=128,
    heads=4,
    head_dim=16,
    encoder_layers=1,
    decoder_layers=2,
    buckets=8,
    max_distance=12,
    gated=True,
    activation="gelu_tanh",
    tied=False,
    target_positions=32,
)
# bert4keras's: a bias in cross-attention too, and a head that is the embedding.
CROSS_BIASED_T5 = replace(
    SMALL_T5, cross_bias=True, gated=False, activation="relu", tied=True, logit_scale=0.5
)


@dataclass(frozen=True)
class Subject:
    """A runtime, and a function that makes its sources from a batch size and a seed."""

    runtime: EncoderDecoder
    source: Callable[[int, int], tuple[NDArray[Any], ...]]


def speech(batch: int, seed: int) -> tuple[NDArray[Any], ...]:
    """Features [batch, mels, frames] for `SMALL`."""
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(batch, 80, 50)).astype(np.float32),)


def text(batch: int, seed: int) -> tuple[NDArray[Any], ...]:
    """Tokens [batch, t] for `SMALL_T5`, and lengths [batch] of which one is t."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, batch).astype(np.int32)
    return generator.integers(0, 300, (batch, lengths.max())), lengths


def random_programs(dimensions: WhisperDimensions, seed: int = 0) -> WhisperPrograms:
    """Programs with weights large enough that every part of the model moves the logits."""
    generator = np.random.default_rng(seed)
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Whisper(dimensions).state_dict().items()}
    tensors = {
        name: generator.normal(1 if name.endswith("norm.weight") else 0, 0.2, shape)
        for name, shape in shapes.items()
    }
    return WhisperPrograms.from_tensors(dimensions, tensors)


def random_t5_programs(dimensions: T5Dimensions, seed: int = 0) -> T5Programs:
    """Like `random_programs`."""
    generator = np.random.default_rng(seed)
    tensors = {
        name: generator.normal(1 if "norm" in name else 0, 0.2, shape)
        for name, shape in t5_names.tensor_shapes(dimensions).items()
    }
    # Distances matter as much as contents.
    tensors |= {name: 5 * tensor for name, tensor in tensors.items() if ".bias." in name}
    return T5Programs.from_tensors(dimensions, tensors)
