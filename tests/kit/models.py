"""Random models of each family, for proving that two computations agree, and their sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.families.table import family_with
from kvcast.runtimes.base import EncoderDecoder
from kvcast.spec.entry_points import imported


def family_name(dimensions: Any) -> str:
    """Return the name of the family that has such dimensions."""
    return family_with(dimensions).name


def random_tensors(dimensions: Any, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Weights large enough that every part of the model moves the logits."""
    generator = np.random.default_rng(seed)
    shapes = family_with(dimensions).tensor_shapes(dimensions)
    tensors = {
        name: generator.normal(name.endswith("norm.weight"), 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    # In a T5 distances matter as much as contents.
    return {name: 5 * part if ".bias." in name else part for name, part in tensors.items()}


def random_programs(dimensions: Any, seed: int = 0) -> Any:
    """Return the programs of a model with random weights."""
    programs = imported(family_with(dimensions).program_class)
    return programs.from_tensors(dimensions, random_tensors(dimensions, seed))


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
