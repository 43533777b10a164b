"""Makes a Whisper's dimensions, and fills its tensors by a table of names.

Knows no file format.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.alignment import alignment_heads
from kvcast.checkpoints.base import LazyTensors, StoredTensor
from kvcast.checkpoints.tables import Entry, NameTable, fill, same, zeros
from kvcast.errors import KvcastError
from kvcast.families.whisper import WhisperDimensions, layers_of, shape_templates

SOURCE_POSITIONS = 1500


def whisper_dimensions(
    label: str, named: object, model: str = "", **sizes: Any
) -> WhisperDimensions:
    """Return the dimensions; raises KvcastError, naming `label`, for impossible ones.

    `named` and `model` are the files' facts about alignment heads; see `alignment_heads`.
    """
    try:
        dimensions = WhisperDimensions(**sizes)
        return replace(dimensions, alignment_heads=alignment_heads(dimensions, named, model))
    except KvcastError as error:
        raise KvcastError(f"{label}: {error}") from None


def assemble(
    dimensions: WhisperDimensions,
    table: NameTable,
    stored: Mapping[str, StoredTensor],
    label: str,
) -> LazyTensors:
    """Fill the canonical names from `stored` by `table`, in parts of equal size; see `fill`."""
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return fill(_entries(dimensions, table), stored, label, f"a Whisper model of {layers}")


def check_tied(head: StoredTensor, embedding: StoredTensor, label: str) -> None:
    """Raise KvcastError unless the output head is the embedding, which kvcast relies on."""
    if not same(head, embedding):
        raise KvcastError(f"{label}: the output head differs from the embedding: not a Whisper")


def with_key_biases(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return tensors with biases of keys, which Whisper's layers and those like them lack."""
    own = dict(stored)
    for name, weight in stored.items():
        if name.endswith(".k_proj.weight"):
            own.setdefault(name.replace("weight", "bias"), zeros(weight.shape[:1]))
    return own


def sinusoids(width: int) -> StoredTensor:
    """Return the encoder's position embeddings [1500, width], for files that leave them out.

    As `sinusoids` in openai/whisper's model.py: sines and cosines over log-spaced timescales from
    1 to 10,000, side by side. Raises KvcastError for a width that is odd or below 4.
    """
    if width < 4 or width % 2:
        raise KvcastError(f"no sinusoidal positions exist for a width of {width}")

    def read() -> NDArray[np.float32]:
        half = width // 2
        inverse = np.exp(-np.log(10000) / (half - 1) * np.arange(half, dtype=np.float32))
        angles = np.arange(SOURCE_POSITIONS, dtype=np.float32)[:, None] * inverse
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    return StoredTensor(shape=(SOURCE_POSITIONS, width), read=read)


def _entries(dimensions: WhisperDimensions, table: NameTable) -> Iterator[Entry]:
    shapes = shape_templates(dimensions)
    for template, sources in table.items():
        whole = shapes[template]
        share = (whole[0] // len(sources), *whole[1:])
        for i in layers_of(template, dimensions):
            yield template.format(i=i), whole, [(name.format(i=i), share) for name in sources]
