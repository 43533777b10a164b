"""TensorFlow's checkpoints in tests/data, and a writer for indexes with wrong values."""

import runpy
import shutil
import struct
from pathlib import Path
from types import SimpleNamespace

from kvcast.checkpoints.text2text.tensorflow import _MAGIC, _masked_crc32c

DATA = Path(__file__).parents[1] / "data" / "tensorflow"
# Its configurations, shapes and numbers; importing it needs no TensorFlow.
WRITER = SimpleNamespace(**runpy.run_path(str(DATA / "write.py")))
RELEASES = ("roformer-sim", "simbert", "t5-pegasus")


def variables(release):
    shapes = {
        "roformer-sim": lambda: WRITER.bert_shapes(WRITER.ROFORMER),
        "simbert": lambda: WRITER.bert_shapes(WRITER.SIMBERT),
        "t5-pegasus": lambda: WRITER.t5_shapes(WRITER.T5_PEGASUS),
    }
    return WRITER.numbers(shapes[release]())


def copied(release, tmp_path):
    return Path(shutil.copytree(DATA / release, tmp_path / release, dirs_exist_ok=True))


def varint(number):
    parts = []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def field(number, content):
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def entry(shape, offset, size, kind=1, shard=0):
    axes = b"".join(field(2, field(1, axis)) for axis in shape)
    numbers = {1: kind, 3: shard, 4: offset, 5: size}
    return field(2, axes) + b"".join(field(n, value) for n, value in numbers.items())


def block(pairs, compression=0, restarts=(0,)):
    """A block with its trailer; `pairs` may give a key as (bytes shared, rest)."""
    contents = b""
    for key, value in pairs:
        shared, rest = key if isinstance(key, tuple) else (0, key)
        contents += varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value
    contents += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    return sealed(contents + bytes([compression]))


def sealed(contents):
    return contents + struct.pack("<I", _masked_crc32c(contents))


def index(*blocks, handles=None):
    start, places = 0, []
    for contents in blocks:
        places.append((start, len(contents) - 5))
        start += len(contents)
    handles = places if handles is None else handles
    top = block([(b"%06d" % n, varint(a) + varint(b)) for n, (a, b) in enumerate(handles)])
    footer = varint(0) + varint(0) + varint(start) + varint(len(top) - 5)
    return b"".join(blocks) + top + footer.ljust(40, b"\0") + _MAGIC.to_bytes(8, "little")


HEADER = (b"", field(1, 1))
