"""Models of published shapes with random weights, run by eager PyTorch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcast.checkpoints.source import read_dimensions
from kvcast.families.table import family_with
from kvcast.models.executor import TorchModel

CONFIGS = Path(__file__).parents[1] / "configs"
"""Folders with config.json, as published but without fields that do not affect sizes."""


def published(name: str) -> Any:
    return read_dimensions(CONFIGS / name)


def random_model(dimensions: Any, seed: int = 0) -> TorchModel:
    """Return a model whose parts all move the logits."""
    rng = np.random.default_rng(seed)

    def drawn(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        spread = 1.5 * shape[-1] ** -0.5 if len(shape) > 1 else 0.2
        around = float(name.endswith("norm.weight"))
        return (around + spread * rng.standard_normal(shape)).astype(np.float32)

    shapes = family_with(dimensions).tensor_shapes(dimensions)
    return TorchModel.from_tensors(
        dimensions, {name: drawn(name, shape) for name, shape in shapes.items()}
    )


def self_caches(model: TorchModel, capacity: int) -> list[Tensor]:
    """Return empty caches of one row: key and value of each layer, [1, heads, capacity, d]."""
    parts = family_with(model.dimensions).caches(model.dimensions)
    return [
        torch.zeros(1, part.heads, capacity, part.head_dim)
        for part in parts
        if part.kind != "cross"
        for _ in range(2 * part.layers)
    ]


def call(
    decode: Any,
    tokens: Sequence[int],
    length: int,
    caches: Sequence[Tensor],
    given: Sequence[Tensor],
) -> Tensor:
    """Append tokens to a row of `length` positions; return the last one's logits [vocab]."""
    results = decode(
        torch.tensor([tokens]),
        torch.tensor([length], dtype=torch.int32),
        torch.tensor([len(tokens) - 1]),
        *caches,
        *given,
    )
    logits: Tensor = results[0][0, 0]
    return logits
