"""Reads TensorFlow checkpoints without TensorFlow: an index, and shards with the tensors' bytes.

`x.index` is a sorted string table as in LevelDB (doc/table_format.md), little-endian:

    blocks, each followed by u8 compression, u32 checksum (CRC-32C, masked) of block and compression
    footer of 48 bytes: two handles (varint offset, varint size) of blocks, padding, u64 magic

The second handle points to a block whose values are the handles of the other blocks. A block:

    entries: varint bytes shared with the last key, varint bytes of its own, varint bytes of value,
    rest of the key, value
    u32 x n restart points, where nothing is shared, u32 n

Keys are names of tensors; values are protocol buffers from tensorflow/core/protobuf's
tensor_bundle.proto: a BundleHeaderProto for the first, empty key, and BundleEntryProto for the
others. `x.data-00000-of-0000n` are the shards. TensorFlow writes indexes without compression. The
index's checksums are verified. The tensors' are not, since that would take minutes in Python for a
large model. All else is checked against the files before it is used.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor, map_file, require_file, tensor_from_bytes
from kvcast.errors import InputOutputError, KvcastError

_SUFFIX = ".index"
_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_TRAILER = 5
# An index takes about 60 bytes per tensor.
_MOST_BYTES = 4 << 20
_MOST_CHARACTERS = 256
_MOST_SHARDS = 99_999
_MAX_RANK = 8
_SNAPPY = 1
# DataType of tensorflow/core/framework/types.proto.
_KINDS = {1: "float32", 14: "bfloat16", 19: "float16"}


@dataclass(frozen=True, kw_only=True)
class TensorflowTensor:
    """A tensor as stored; `raw` [bytes] is a view of its shard."""

    label: str
    type: int
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]

    def stored(self) -> StoredTensor:
        """As float16 or float32 (bfloat16 is widened); KvcastError for other types."""
        if self.type not in _KINDS:
            raise KvcastError(
                f"{self.label} is of TensorFlow's type {self.type}, not "
                f"{', '.join(_KINDS.values())}: save the weights as one of them"
            )
        return tensor_from_bytes(self.raw, _KINDS[self.type], self.shape, self.label)


def shard_files(index: Path) -> list[Path]:
    """List the shards beside an index, without parsing it."""
    prefix = f"{_stem(index)}.data-"
    return sorted(path for path in index.parent.iterdir() if path.name.startswith(prefix))


def read_checkpoint(index: Path) -> Mapping[str, TensorflowTensor]:
    """Find each tensor's bytes in its shard, without reading them.

    InputOutputError for damage, InputMissingError for a missing shard, KvcastError for a compressed
    or big-endian checkpoint and for variables in several slices.
    """
    entries = _table(index)
    count = _number_of_shards(index, *next(entries, (b"", b"")))
    # Keys that start with NUL are slices; the entry of their variable shows that it has some.
    named = [(key, value) for key, value in entries if not key.startswith(b"\0")]
    placed = [_entry(index, key, value, count) for key, value in named]
    placed.sort(key=lambda entry: (entry.shard, entry.offset, entry.size))
    # No two may share bytes: small files cannot claim to be a huge model.
    for entry, other in pairwise(placed):
        if entry.shard == other.shard and entry.offset + entry.size > other.offset:
            raise _error(index, f"tensors {entry.name} and {other.name} share bytes")
    shards = {}
    for number in sorted({entry.shard for entry in placed}):
        path = index.with_name(f"{_stem(index)}.data-{number:05}-of-{count:05}")
        shards[number] = path, map_file(require_file(path, "fetch all of the checkpoint's shards"))
    return {entry.name: _tensor(entry, *shards[entry.shard]) for entry in placed}


@dataclass(frozen=True, kw_only=True)
class _Place:
    name: str
    type: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int


def _stem(index: Path) -> str:
    return index.name.removesuffix(_SUFFIX)


def _error(path: Path, reason: str) -> InputOutputError:
    return InputOutputError(f"{path} is damaged: {reason}; fetch it again")


def _number_of_shards(index: Path, key: bytes, value: bytes) -> int:
    if key:
        raise _error(index, "it has no header")
    fields = _fields(_IndexCursor(value, index))
    count, order = fields.get(1, 0), fields.get(2, 0)
    if order != 0:
        raise KvcastError(f"{index} is big-endian: save it again on a little-endian machine")
    if type(count) is not int or not 0 < count <= _MOST_SHARDS:
        raise _error(index, "it has no sensible number of shards")
    return count


def _entry(index: Path, key: bytes, value: bytes, shards: int) -> _Place:
    name = _name(index, key)
    fields = _fields(_IndexCursor(value, index))
    if 7 in fields:
        raise KvcastError(
            f"{index}: variable {name} is in several slices: save it again without a partitioner"
        )
    values = [fields.get(number, 0) for number in (1, 3, 4, 5)]
    shape = fields.get(2, b"")
    if not all(type(number) is int for number in values) or not isinstance(shape, bytes):
        raise _error(index, f"the description of tensor {name} cannot be read")
    kind, shard, offset, size = map(int, values)
    if shard >= shards:
        raise _error(index, f"tensor {name} lies in shard {shard} of {shards}")
    axes = _shape(_IndexCursor(shape, index), name)
    return _Place(name=name, type=kind, shape=axes, shard=shard, offset=offset, size=size)


def _name(index: Path, key: bytes) -> str:
    try:
        name = key.decode()
    except UnicodeDecodeError:
        name = "\n"
    # Names end up in messages: no line breaks or terminal codes.
    if not name.isprintable():
        raise _error(index, "the name of a tensor is not text")
    return name


def _shape(cursor: "_IndexCursor", name: str) -> tuple[int, ...]:
    axes: list[int] = []
    for number, value in cursor.message():
        if number == 2 and isinstance(value, bytes):
            size = _fields(_IndexCursor(value, cursor.path)).get(1, 0)
            if type(size) is not int or size >= 1 << 63 or len(axes) == _MAX_RANK:
                raise _error(cursor.path, f"tensor {name} has no sensible shape")
            axes.append(size)
    return tuple(axes)


def _tensor(place: _Place, shard: Path, data: NDArray[np.uint8]) -> TensorflowTensor:
    end = place.offset + place.size
    if end > len(data):
        raise _error(shard, f"it ends within tensor {place.name}")
    return TensorflowTensor(
        label=f"{shard}: tensor {place.name}",
        type=place.type,
        shape=place.shape,
        raw=data[place.offset : end],
    )


def _table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    if path.stat().st_size > _MOST_BYTES:
        raise _error(path, "it is larger than any checkpoint's index")
    contents = path.read_bytes()
    footer = contents[-_FOOTER:]
    if len(footer) < _FOOTER or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise InputOutputError(
            f"{path} is not the index of a TensorFlow checkpoint, or not whole: fetch it again"
        )
    handles = _IndexCursor(footer[:-8], path)
    handles.handle()
    blocks = contents[:-_FOOTER]
    end, last = 0, None
    for _, value in _block(blocks, *handles.handle(), path):
        start, size = _IndexCursor(value, path).handle()
        # Blocks may not overlap, so each byte is read once, however many handles there are.
        if start < end:
            raise _error(path, "its blocks overlap")
        end = start + size
        for key, content in _block(blocks, start, size, path):
            if last is not None and key <= last:
                raise _error(path, "its names are not in order")
            last = key
            yield key, content


def _block(blocks: bytes, start: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    if start + size + _TRAILER > len(blocks):
        raise _error(path, "a block does not lie within it")
    end = start + size + _TRAILER
    checked, checksum = blocks[start : end - 4], blocks[end - 4 : end]
    if _masked_crc32c(checked) != int.from_bytes(checksum, "little"):
        raise _error(path, "a checksum does not match")
    if checked[-1] == _SNAPPY:
        raise KvcastError(f"{path} is compressed with Snappy: save it again with TensorFlow")
    restarts = int.from_bytes(checked[-5:-1], "little")
    if checked[-1] or size < 4 * (1 + restarts):
        raise _error(path, "a block cannot be read")
    cursor = _IndexCursor(checked[: size - 4 * (1 + restarts)], path)
    key = b""
    while cursor.remaining:
        shared, own, length = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + own > _MOST_CHARACTERS:
            raise _error(path, "a name cannot be read")
        key = key[:shared] + cursor.take(own)
        yield key, cursor.take(length)


class _IndexCursor:
    def __init__(self, data: bytes, path: Path) -> None:
        self.path = path
        self._data = data
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def take(self, count: int) -> bytes:
        if count > self.remaining:
            raise _error(self.path, "an entry ends too early")
        start = self._position
        self._position += count
        return self._data[start : self._position]

    def varint(self) -> int:
        """Read a 64-bit integer, seven bits per byte, lowest first."""
        number = 0
        for shift in range(0, 64, 7):
            (byte,) = self.take(1)
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise _error(self.path, "a number has no end")

    def handle(self) -> tuple[int, int]:
        return self.varint(), self.varint()

    def message(self) -> Iterator[tuple[int, int | bytes]]:
        """Read a protocol buffer's field numbers and contents, in order."""
        while self.remaining:
            number, wire = divmod(self.varint(), 8)
            if wire == 0:
                yield number, self.varint()
            elif wire == 2:
                yield number, self.take(self.varint())
            elif wire in (1, 5):
                yield number, self.take(8 if wire == 1 else 4)
            else:
                raise _error(self.path, "an entry is not a protocol buffer")


def _fields(cursor: _IndexCursor) -> dict[int, int | bytes]:
    return dict(cursor.message())


def _crc32c_table() -> tuple[int, ...]:
    """Return the CRC-32C remainder of each byte (Castagnoli, bits reversed; RFC 3720, B.4)."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC32C = _crc32c_table()


def _masked_crc32c(data: bytes) -> int:
    """Return the CRC-32C, rotated and offset as LevelDB stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
