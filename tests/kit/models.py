"""Random models of each family, for proving that two computations agree, and their sources."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints import decoder_names, names, t5_names, unilm_names
from kvcast.families.decoder import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.models.programs.decoder import DecoderPrograms
from kvcast.models.programs.t5 import T5Programs
from kvcast.models.programs.unilm import UnilmPrograms
from kvcast.models.programs.whisper import WhisperPrograms
from kvcast.runtimes.base import EncoderDecoder

# A family's name, its tensors' shapes, and its programs.
_FAMILIES: Mapping[type, tuple[str, Callable[[Any], Mapping[str, tuple[int, ...]]], Any]] = {
    WhisperDimensions: ("whisper", names.tensor_shapes, WhisperPrograms),
    T5Dimensions: ("t5", t5_names.tensor_shapes, T5Programs),
    DecoderDimensions: ("decoder", decoder_names.tensor_shapes, DecoderPrograms),
    UnilmDimensions: ("unilm", unilm_names.tensor_shapes, UnilmPrograms),
}


def family_name(dimensions: Any) -> str:
    """Return the name of the family that has such dimensions."""
    return _FAMILIES[type(dimensions)][0]


def random_tensors(dimensions: Any, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Weights large enough that every part of the model moves the logits."""
    generator = np.random.default_rng(seed)
    shapes = _FAMILIES[type(dimensions)][1](dimensions)
    tensors = {
        name: generator.normal(name.endswith("norm.weight"), 0.2, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    # In a T5 distances matter as much as contents.
    return {name: 5 * part if ".bias." in name else part for name, part in tensors.items()}


def random_programs(dimensions: Any, seed: int = 0) -> Any:
    """Return the programs of a model with random weights."""
    return _FAMILIES[type(dimensions)][2].from_tensors(dimensions, random_tensors(dimensions, seed))


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
