"""The canonical names and shapes of Whisper's tensors, and how a table of names fills them.

Weights are [out, in], as in torch's Linear. Query, key and value of self-attention are one tensor,
and so are key and value of cross-attention. The output head is the embedding. Knows no file format.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import LazyTensors, StoredTensor
from kvcast.checkpoints.tables import Entry, NameTable, fill, same
from kvcast.errors import KvcastError
from kvcast.families.whisper import WhisperDimensions

SOURCE_POSITIONS = 1500


def tensor_shapes(dimensions: WhisperDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    return {
        template.format(i=i): shape
        for template, shape in _shapes(dimensions).items()
        for i in _layers(template, dimensions)
    }


def assemble(
    dimensions: WhisperDimensions,
    table: NameTable,
    stored: Mapping[str, StoredTensor],
    what: str,
) -> LazyTensors:
    """Fill the canonical names from `stored` by `table`, in parts of equal size; see `fill`."""
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return fill(_entries(dimensions, table), stored, what, f"a Whisper model of {layers}")


def check_tied(head: StoredTensor, embedding: StoredTensor, what: str) -> None:
    """Raise KvcastError unless the output head is the embedding, which kvcast relies on."""
    if not same(head, embedding):
        raise KvcastError(f"{what}: the output head differs from the embedding: not a Whisper")


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
    shapes = _shapes(dimensions)
    for template, sources in table.items():
        whole = shapes[template]
        share = (whole[0] // len(sources), *whole[1:])
        for i in _layers(template, dimensions):
            yield template.format(i=i), whole, [(name.format(i=i), share) for name in sources]


def _layers(template: str, dimensions: WhisperDimensions) -> range:
    """Return the values of `{i}` in `template`; a name without layers occurs once."""
    if "{i}" not in template:
        return range(1)
    encoder = template.startswith("encoder.")
    return range(dimensions.encoder_layers if encoder else dimensions.decoder_layers)


def _shapes(dimensions: WhisperDimensions) -> dict[str, tuple[int, ...]]:
    """Return shapes by template."""
    d = dimensions.d_model
    linears = {
        "encoder.layers.{i}.attention.qkv": (3 * d, d),
        "encoder.layers.{i}.attention.out": (d, d),
        "encoder.layers.{i}.feed_forward.up": (4 * d, d),
        "encoder.layers.{i}.feed_forward.down": (d, 4 * d),
        "decoder.layers.{i}.self_attention.qkv": (3 * d, d),
        "decoder.layers.{i}.self_attention.out": (d, d),
        "decoder.layers.{i}.cross_attention.query": (d, d),
        "decoder.layers.{i}.cross_attention.key_value": (2 * d, d),
        "decoder.layers.{i}.cross_attention.out": (d, d),
        "decoder.layers.{i}.feed_forward.up": (4 * d, d),
        "decoder.layers.{i}.feed_forward.down": (d, 4 * d),
        "encoder.conv1": (d, dimensions.n_mels, 3),
        "encoder.conv2": (d, d, 3),
    }
    norms = (
        "encoder.layers.{i}.attention_norm",
        "encoder.layers.{i}.feed_forward_norm",
        "encoder.norm",
        "decoder.layers.{i}.self_attention_norm",
        "decoder.layers.{i}.cross_attention_norm",
        "decoder.layers.{i}.feed_forward_norm",
        "decoder.norm",
    )
    return dict(_shape_items(dimensions, linears, norms))


def _shape_items(
    dimensions: WhisperDimensions, linears: Mapping[str, tuple[int, ...]], norms: Sequence[str]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    d = dimensions.d_model
    for name, shape in linears.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
    for name in norms:
        yield f"{name}.weight", (d,)
        yield f"{name}.bias", (d,)
    yield "encoder.positions", (dimensions.source_positions, d)
    yield "decoder.embedding.weight", (dimensions.vocab_size, d)
    yield "decoder.positions", (dimensions.target_positions, d)
