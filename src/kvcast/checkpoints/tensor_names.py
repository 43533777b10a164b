"""Fills canonical tensors from a file's tensors by a table of names, for any family."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import LazyTensors, StoredTensor
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.table import family_with
from kvcast.spec.stored_matrices import joined, joined_rows

# Maps a canonical name to the names in a file whose tensors, concatenated along the first axis,
# make it up. `{i}` stands for the layer (`{i:03}` in three digits, `{n}` counting from 1) and `{e}`
# for the expert. A name with an expert occurs once for each, and the canonical tensor has a first
# axis of experts.
NameTable = Mapping[str, Sequence[str]]

# A name in the file and the shape that its tensor must have.
Part = tuple[str, tuple[int, ...]]
# A canonical name, its shape, and the parts that fill it.
Entry = tuple[str, tuple[int, ...], Iterable[Part]]

_MATRIX = 2  # axes
_LAYER = re.compile(r"(?<=\blayers\.)\d+")


def of_modules(modules: NameTable) -> dict[str, Sequence[str]]:
    return {
        f"{ours}.{leaf}": [f"{module}.{leaf}" for module in theirs]
        for ours, theirs in modules.items()
        for leaf in ("weight", "bias")
    }


def fill(
    entries: Iterable[Entry],
    stored: Mapping[str, StoredTensor],
    label: str,
    model: str,
    *,
    lenient: bool = False,
) -> LazyTensors:
    """Fill canonical tensors from `stored`, checking every shape without reading values.

    Entries are consumed one by one, so too many layers fail at the first missing tensor. Raises
    KvcastError, naming `label` and the tensor, if it is missing, of another shape, unreadable, or,
    unless `lenient`, does not belong to `model`.
    """
    filled: dict[str, list[StoredTensor]] = {}
    used = set()
    for canonical, shape, parts in entries:
        tensors = []
        for name, expected in parts:
            if name not in stored:
                raise KvcastError(f"{label} has no tensor {name}: it is not a whole model")
            if stored[name].shape != expected:
                raise KvcastError(
                    f"{label}: tensor {name} has shape {list(stored[name].shape)}, "
                    f"but the configuration asks for {list(expected)}"
                )
            if stored[name].problem:
                raise KvcastError(stored[name].problem)
            tensors.append(stored[name])
            used.add(name)
        filled[canonical] = [_join(tensors, shape)]
    foreign = sorted(stored.keys() - used)
    if foreign and not lenient:
        problem = f"{label}: tensor {foreign[0]} has no place in {model}"
        raise KvcastError(stored[foreign[0]].problem or problem)
    return LazyTensors(filled, foreign)


def fill_decoder(
    dimensions: DecoderDimensions,
    table: NameTable,
    stored: Mapping[str, StoredTensor],
    label: str,
    *,
    lenient: bool = False,
) -> LazyTensors:
    """As `fill`, for a decoder-only model."""
    model = f"a {dimensions.architecture} model of {dimensions.layers} layers"
    return fill(_decoder_entries(dimensions, table), stored, label, model, lenient=lenient)


def fill_evenly(
    dimensions: Any,
    table: NameTable,
    stored: Mapping[str, StoredTensor],
    label: str,
    model: str,
    *,
    lenient: bool = False,
    prefix: str = "",
) -> LazyTensors:
    """As `fill`, in parts of equal size; `prefix`: of the names to fill."""
    entries = _even_entries(_shapes(dimensions, prefix), table)
    return fill(entries, stored, label, model, lenient=lenient)


def _shapes(dimensions: Any, prefix: str) -> dict[str, tuple[int, ...]]:
    shapes = family_with(dimensions).tensor_shapes(dimensions)
    return {name: shape for name, shape in shapes.items() if name.startswith(prefix)}


def take_apart(
    tensors: Mapping[str, NDArray[Any]], table: NameTable, keys: int | None = None
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield canonical tensors under the names of a file, one by one: the inverse of `fill`.

    Parts are equal, unless keys and values have `keys` rows each. For tensors without experts.
    """
    for canonical in tensors:
        tensor, names = tensors[canonical], _names(canonical, table)
        if ".qkv." in canonical and keys is not None:
            parts = np.split(tensor, [len(tensor) - 2 * keys, len(tensor) - keys])
        else:
            parts = np.split(tensor, len(names))
        yield from zip(names, parts, strict=True)


def same(tensor: StoredTensor, other: StoredTensor) -> bool:
    return tensor.shape == other.shape and np.array_equal(tensor.read(), other.read())


def drop_tied(own: dict[str, StoredTensor], head: str, embedding: str) -> None:
    """Drop a head that is the embedding, perhaps there by the head's name alone; keep others."""
    if head in own and same(own[head], own.setdefault(embedding, own[head])):
        del own[head]


def zeros(shape: tuple[int, ...]) -> StoredTensor:
    """Return a bias that files omit; float16, so that concatenation keeps the others' dtype."""
    return StoredTensor(shape=shape, read=lambda: np.zeros(shape, np.float16))


def apply_change(
    tensor: StoredTensor, change: Callable[[NDArray[Any]], NDArray[Any]]
) -> StoredTensor:
    """Apply `change`, which keeps the shape, when the tensor is read."""
    return replace(tensor, read=lambda: change(tensor.read()), blocks=None, rows=None)


def one_more(weight: NDArray[Any]) -> NDArray[np.float32]:
    # Added in float32, as transformers does: half precision would round small weights away.
    return weight.astype(np.float32) + np.float32(1)


def swap(rows: NDArray[Any]) -> NDArray[Any]:
    return np.roll(rows, len(rows) // 2, axis=0)


def transpose(tensor: StoredTensor) -> StoredTensor:
    def read() -> NDArray[Any]:
        return np.ascontiguousarray(tensor.read().T)

    return replace(tensor, shape=tensor.shape[::-1], read=read, blocks=None, rows=None)


def reorder(tensor: StoredTensor, move: Callable[[NDArray[Any]], NDArray[Any]]) -> StoredTensor:
    """Move rows, and their codes."""
    blocks, rows = tensor.blocks, tensor.rows
    return replace(
        apply_change(tensor, move),
        blocks=None if blocks is None else lambda: blocks().moved(move),
        rows=None if rows is None else lambda: rows().moved(move),
    )


def pick(tensor: StoredTensor, index: NDArray[np.intp]) -> StoredTensor:
    part = reorder(tensor, lambda rows: rows[index])
    nbytes = tensor.nbytes * len(index) // tensor.shape[0]
    return replace(part, shape=(len(index), *tensor.shape[1:]), nbytes=nbytes)


def by_part(
    tensor: StoredTensor, heads: int, parts: Mapping[str, Sequence[int]]
) -> dict[str, StoredTensor]:
    """Rows by the names of parts; a part has the rows of all heads for each of its sizes."""
    each = sum(sum(sizes) for sizes in parts.values())
    if tensor.shape[0] != heads * each:
        return dict.fromkeys(parts, tensor)  # of a shape that no configuration asks for
    rows, first, divided = np.arange(heads * each).reshape(heads, each), 0, {}
    for name, sizes in parts.items():
        ends = first + np.cumsum(sizes)
        spans = np.split(rows[:, first : ends[-1]], (ends - first)[:-1], axis=1)
        divided[name] = pick(tensor, np.concatenate([span.reshape(-1) for span in spans]))
        first = int(ends[-1])
    return divided


def join_flat(tensors: Sequence[StoredTensor]) -> StoredTensor:
    """Concatenate the values of small tensors, [count]."""
    return StoredTensor(
        shape=(sum(prod(tensor.shape) for tensor in tensors),),
        read=lambda: np.concatenate([tensor.read().ravel() for tensor in tensors]),
        problem="".join(tensor.problem for tensor in tensors[:1]),
        kinds=frozenset[str]().union(*(tensor.kinds for tensor in tensors)),
        nbytes=sum(tensor.nbytes for tensor in tensors),
    )


def _join(parts: Sequence[StoredTensor], shape: tuple[int, ...]) -> StoredTensor:
    def read() -> NDArray[Any]:
        arrays = [part.read() for part in parts]
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return whole.reshape(shape)

    places = [part.rows for part in parts if part.rows is not None]
    has_rows = len(places) == len(parts) and len(shape) >= _MATRIX
    tensor = StoredTensor(
        shape=shape,
        read=read,
        rows=(lambda: joined_rows([rows() for rows in places])) if has_rows else None,
        kinds=frozenset[str]().union(*(part.kinds for part in parts)),
        nbytes=sum(part.nbytes for part in parts),
    )
    blocks = [part.blocks for part in parts if part.blocks is not None]
    if len(blocks) < len(parts) or len(shape) < _MATRIX:
        return tensor
    # Matrices of experts are also concatenated: [experts * outputs, inputs].
    return replace(tensor, blocks=lambda: joined([read_blocks() for read_blocks in blocks]))


def _even_entries(shapes: Mapping[str, tuple[int, ...]], table: NameTable) -> Iterator[Entry]:
    for canonical, shape in shapes.items():
        names = _names(canonical, table)
        share = (shape[0] // len(names), *shape[1:])
        yield canonical, shape, [(name, share) for name in names]


def _names(canonical: str, table: NameTable) -> list[str]:
    layer = _LAYER.search(canonical)
    names = table[_LAYER.sub("{i}", canonical)]
    i = int(layer[0]) if layer else 0
    return [name.format(i=i, n=i + 1, e="{e}") for name in names]  # the expert's index comes later


def _decoder_entries(dimensions: DecoderDimensions, table: NameTable) -> Iterator[Entry]:
    for canonical, shape in _shapes(dimensions, "decoder.").items():
        names = _names(canonical, table)
        yield canonical, shape, _decoder_parts(dimensions, names, canonical, shape)


def _decoder_parts(
    dimensions: DecoderDimensions, names: Sequence[str], canonical: str, shape: tuple[int, ...]
) -> Iterator[Part]:
    per_expert = "{e}" in names[0]
    rows, *rest = shape[1:] if per_expert else shape
    counts: tuple[int, ...] = (rows,)
    if ".qkv." in canonical and (layer := _LAYER.search(canonical)):
        counts = dimensions.projection_widths(int(layer[0]))
        if len(names) > 1:
            names = names[: len(counts)]  # a layer may read keys and values of another's
    elif ".gate_up" in canonical:
        counts = (rows // 2, rows // 2)
    elif ".delta.input." in canonical and dimensions.delta is not None:
        delta = dimensions.delta
        counts = delta.parts if len(names) == len(delta.parts) else delta.projected
    if len(names) == 1:  # files may have the parts in one tensor
        counts = (rows,)
    for expert in range(dimensions.experts if per_expert else 1):
        for name, count in zip(names, counts, strict=True):
            yield name.replace("{e}", str(expert)), (count, *rest)


def halves_from_pairs(weight: NDArray[Any], head_dim: int) -> NDArray[Any]:
    """Reorder the rows of a query or key projection [heads * head_dim, ...].

    In files of Mistral and GGUF, rotary pair p of a head is rows 2p and 2p + 1; in kvcast, rows p
    and p + head_dim / 2. Queries and keys alike, so their products are unchanged.
    """
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def in_halves(
    stored: Mapping[str, StoredTensor],  # by the file's names
    dimensions: DecoderDimensions,  # the model's
    is_rotated: Callable[[str], object],  # by name, of queries, keys, perhaps values after
    *,
    neighbours: bool,  # whether pairs are adjacent rows, not halves of the rotated channels
) -> dict[str, StoredTensor]:
    """Return tensors with the rows of queries and keys in kvcast's order of rotary pairs."""
    size, rotary = dimensions.head_dim, dimensions.rotary or dimensions.window_rotary
    if rotary is None:
        return dict(stored)
    order = head_order(size, rotary.channels(size), neighbours=neighbours)
    if np.array_equal(order, np.arange(size)):
        return dict(stored)
    count = (dimensions.heads + dimensions.kv_heads) * size

    def move(rows: NDArray[Any]) -> NDArray[Any]:
        heads = rows[:count].reshape(-1, size, *rows.shape[1:])
        return np.concatenate([heads[:, order].reshape(-1, *rows.shape[1:]), rows[count:]])

    return {
        name: reorder(tensor, move) if is_rotated(name) else tensor
        for name, tensor in stored.items()
    }


def head_order(head_dim: int, channels: int, *, neighbours: bool) -> NDArray[np.intp]:
    """Permutation from a file's rows of a query or key head to kvcast's.

    In files, the first `channels` rows are rotary pairs and the others are not rotated. In kvcast,
    pairs are in halves of the whole head, rotated ones first.
    """
    if neighbours:
        first, second = np.arange(0, channels, 2), np.arange(1, channels, 2)
    else:
        first, second = np.split(np.arange(channels), 2)
    still = np.split(np.arange(channels, head_dim), 2)
    return np.concatenate([first, still[0], second, still[1]])


def pairs_from_halves(weight: NDArray[Any], head_dim: int) -> NDArray[Any]:
    halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)
