"""Random Whisper models and bundles of them, for proving that two computations agree."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from kvcast.bundle.manifest import Manifest
from kvcast.bundle.writing import seal, staged
from kvcast.lowering.onnx_whisper import cache_layers, lower
from kvcast.models.whisper import Whisper
from kvcast.programs.whisper import WhisperPrograms
from kvcast.spec.whisper import WhisperDimensions

SMALL = WhisperDimensions(
    n_mels=80,
    vocab_size=300,
    d_model=64,
    encoder_layers=2,
    encoder_heads=4,
    decoder_layers=3,
    decoder_heads=4,
    source_positions=25,
    target_positions=32,
)


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


def write_bundle(programs: WhisperPrograms, folder: Path, quantize: str = "none") -> Manifest:
    """Lower and seal, without the proof that `kvcast.export_bundle` adds."""
    with staged(folder, overwrite=False) as staging:
        return seal(
            staging,
            Manifest(
                family="whisper",
                runtime="onnx",
                quantize=quantize,
                dimensions=asdict(programs.dimensions),
                cache=cache_layers(programs.dimensions),
                graphs=lower(programs, quantize, staging),
                source={},
                tools={},
            ),
        )
