"""TensorFlow's checkpoints are read exactly; damaged ones too, or give a one-line error."""

import itertools
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints import folder_checks
from checkpoints.tiny_tensorflow import (
    DATA,
    HEADER,
    RELEASES,
    WRITER,
    block,
    entry,
    field,
    index,
    sealed,
    variables,
    varint,
)
from kvcast.checkpoints.text2text.tensorflow import _masked_crc32c, read_checkpoint, shard_files
from kvcast.errors import InputOutputError, KvcastError

INDEX = {name: next((DATA / name).glob("*.index")) for name in RELEASES}
ONE = WRITER.numbers(WRITER.ONE)["one"]
# Memory that reading may take beyond the files' size; a wrong index could ask for any amount.
ROOM = 1 << 20


@pytest.mark.parametrize("release", RELEASES)
def test_what_tensorflow_wrote_is_read_to_the_bit(release):
    tensors = read_checkpoint(INDEX[release])
    expected = variables(release)
    assert expected.keys() <= tensors.keys()
    for name, want in expected.items():
        got = tensors[name].stored()
        assert got.shape == want.shape
        np.testing.assert_array_equal(got.read(), want)
        assert got.read().dtype == np.float32


def test_several_shards_are_found_by_the_index_alone():
    shards = shard_files(INDEX["simbert"])
    assert [path.name for path in shards] == [
        f"bert_model.ckpt.data-{i:05}-of-00004" for i in range(4)
    ]
    used = {tensor.label.partition(":")[0] for tensor in read_checkpoint(INDEX["simbert"]).values()}
    assert used == {str(path) for path in shards}


def test_half_precision_is_kept_and_bfloat16_widened():
    half = read_checkpoint(DATA / "kinds/float16.ckpt.index")["one"].stored().read()
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, ONE.astype(np.float16))
    brain = read_checkpoint(DATA / "kinds/bfloat16.ckpt.index")["one"].stored().read()
    assert brain.dtype == np.float32
    assert not (brain.view(np.uint32) & 0xFFFF).any()
    np.testing.assert_allclose(brain, ONE, rtol=2**-8)


def test_other_types_are_refused_where_they_are_used_and_not_before():
    tensors = read_checkpoint(DATA / "kinds/float64.ckpt.index")
    with pytest.raises(KvcastError, match="tensor one is of TensorFlow's type 2, not float32"):
        tensors["one"].stored()


def test_a_variable_in_slices_is_one_line():
    with pytest.raises(KvcastError, match="variable one is in several slices: save it again"):
        read_checkpoint(DATA / "kinds/sliced.ckpt.index")


def test_checksums_are_castagnolis():
    # RFC 3720, B.4, masked as LevelDB's util/crc32c.h says.
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert _masked_crc32c(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def outcome(folder, contents, shard=None):
    (folder / "m.ckpt.index").write_bytes(contents)
    if shard is not None:
        (folder / "m.ckpt.data-00000-of-00001").write_bytes(shard)

    def read():
        for tensor in read_checkpoint(folder / "m.ckpt.index").values():
            tensor.stored().read().sum()

    return folder_checks.outcome(read)


T5_INDEX = INDEX["t5-pegasus"].read_bytes()
T5_SHARD = shard_files(INDEX["t5-pegasus"])[0].read_bytes()


def first_block_size():
    """The offset of the first block's trailer, found by its checksum."""
    for size in range(8, len(T5_INDEX) - 5):
        (checksum,) = struct.unpack_from("<I", T5_INDEX, size + 1)
        if _masked_crc32c(T5_INDEX[: size + 1]) == checksum:
            return size
    raise AssertionError("no block")


FIRST_BLOCK = first_block_size()


def test_the_undamaged_files_are_read(tmp_path):
    assert outcome(tmp_path, T5_INDEX, T5_SHARD) is None


def test_every_truncation_is_one_line(tmp_path):
    for length in (*range(0, len(T5_INDEX), 7), len(T5_INDEX) - 1):
        assert outcome(tmp_path, T5_INDEX[:length], T5_SHARD), length
    for length in (*range(0, len(T5_SHARD), 97), len(T5_SHARD) - 1):
        assert outcome(tmp_path, T5_INDEX, T5_SHARD[:length]), length


def test_every_flipped_byte_of_an_index_is_noticed(tmp_path):
    # Except for those of the second block, which TensorFlow leaves empty.
    empty = range(FIRST_BLOCK + 5, FIRST_BLOCK + 5 + 13)
    for place in range(0, len(T5_INDEX) - 48, 5):
        changed = bytearray(T5_INDEX)
        changed[place] ^= 1 << place % 8
        noticed = outcome(tmp_path, bytes(changed), T5_SHARD) is not None
        assert noticed == (place not in empty), place


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_bytes_under_right_checksums_are_read_or_one_line(tmp_path, data):
    size = FIRST_BLOCK
    contents = bytearray(T5_INDEX[: size + 1])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, size))
        contents[place] = data.draw(st.integers(0, 255))
    changed = sealed(bytes(contents)) + T5_INDEX[size + 5 :]
    tracemalloc.start()
    try:
        outcome(tmp_path, changed, T5_SHARD)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()


GOOD = entry((2, 3), 0, 24)
SHARD = bytes(48)


def test_unknown_fields_and_several_blocks_are_read(tmp_path):
    more = field(99, 5) + field(98, b"abc") + varint(97 << 3 | 1) + bytes(8)
    contents = index(block([HEADER, (b"ab", GOOD + more)]), block([(b"b", entry((6,), 24, 24))]))
    assert outcome(tmp_path, contents, SHARD) is None


def test_a_huge_index_is_not_read(tmp_path):
    with (tmp_path / "m.ckpt.index").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputOutputError, match="larger than any"):
        read_checkpoint(tmp_path / "m.ckpt.index")


def test_many_names_that_share_everything_take_little_memory(tmp_path):
    pairs, last = [HEADER], b""
    for letters in itertools.islice(itertools.product(b"abcdefgh", repeat=5), 4000):
        name = b"x" * 250 + bytes(letters)
        shared = len(name) - 5 if last else 0
        pairs.append(((shared, name[shared:]), entry((0,), 0, 0)))
        last = name
    tracemalloc.start()
    try:
        assert outcome(tmp_path, index(block(pairs)), SHARD) is None
        assert tracemalloc.get_traced_memory()[1] < 16 * ROOM
    finally:
        tracemalloc.stop()
