"""GGUF files with wrong values anywhere in the header: a correct read or a one-line error."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoints import folder_checks
from kit.coded_gguf import GRIDS
from kit.coded_gguf import write as write_coded
from kit.tiny_gguf import sizes, tensors, tiny_llama, vocabulary, write
from kvcast.checkpoints.gguf.reader import READER

# Memory that reading may take beyond the file's size; a wrong header could ask for any amount.
ROOM = 8 << 20
WRONG = [33, 2**64 - 1]
MORE = [0, 1, 2**32 - 1, 2**40]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bytes of a small file, and the offset of its tensors."""
    path = tiny_llama(tmp_path_factory.mktemp("whole") / "m.gguf")
    return path.read_bytes(), gguf.GGUFReader(path).data_offset


def outcome(path, contents):
    """Read everything; return the error's one line, or None if there was none."""
    path.write_bytes(contents)

    def read():
        checkpoint = READER.read(path)
        for name in checkpoint.tensors:
            assert checkpoint.tensors[name].dtype in (np.float32, np.float16)

    return folder_checks.outcome(read)


def test_every_truncation_is_one_line(whole, tmp_path):
    contents, start = whole
    lengths = {*range(0, start, 97), *range(start - 40, start + 40), len(contents) - 1}
    for length in sorted(lengths):
        assert outcome(tmp_path / "m.gguf", contents[:length]), length


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_changed_bytes_are_read_or_one_line(whole, tmp_path, data):
    contents, start = whole
    changed = bytearray(contents)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, start - 1))
        changed[place] = data.draw(st.integers(0, 255))
    outcome(tmp_path / "m.gguf", bytes(changed))


@pytest.mark.parametrize("kind", [*GRIDS, "TQ1_0", "TQ2_0", "NVFP4"])
def test_any_bytes_are_numbers_of_types_of_few_bits(tmp_path, kind):
    path = write_coded(tmp_path / "m.gguf", {"": kind}, tied=False)
    contents, start = path.read_bytes(), gguf.GGUFReader(path).data_offset
    for byte in (b"\0", b"\x7c", b"\xff"):
        assert outcome(path, contents[:start] + byte * (len(contents) - start)) is None
    assert "its place" in outcome(path, contents[:-64])


@pytest.mark.parametrize("factor", [np.nan, np.inf, -np.inf])
def test_a_factor_that_is_no_number_is_one_line(tmp_path, factor):
    path = write_coded(tmp_path / "m.gguf", {"": "NVFP4"}, factors=True)
    (scale,) = (x for x in gguf.GGUFReader(path).tensors if x.name == "blk.1.ffn_up.scale")
    contents = bytearray(path.read_bytes())
    contents[scale.data_offset : scale.data_offset + 4] = np.float32(factor).tobytes()
    assert "blk.1.ffn_up.scale is damaged" in outcome(path, bytes(contents))


def numbers_in_header(contents):
    """Every count, length, axis and offset in the header: (place, bytes)."""
    places = [(8, 8), (16, 8)]
    position = 24
    tensors, values = struct.unpack_from("<QQ", contents, 8)
    scalar = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def string():
        nonlocal position
        places.append((position, 8))
        position += 8 + struct.unpack_from("<Q", contents, position)[0]

    def value(kind):
        nonlocal position
        if kind == 8:
            string()
        elif kind == 9:
            item, count = struct.unpack_from("<IQ", contents, position)
            places.extend([(position, 4), (position + 4, 8)])
            position += 12
            if item == 8:
                for n in range(count):
                    string()
                    if n > 3:
                        places.pop()
            else:
                position += scalar[item] * count
        else:
            places.append((position, scalar[kind]))
            position += scalar[kind]

    for _ in range(values):
        string()
        (kind,) = struct.unpack_from("<I", contents, position)
        places.append((position, 4))
        position += 4
        value(kind)
    for _ in range(tensors):
        string()
        (rank,) = struct.unpack_from("<I", contents, position)
        sizes = [4, *[8] * rank, 4, 8]
        for size in sizes:
            places.append((position, size))
            position += size
    return places


@pytest.mark.parametrize("numbers", [WRONG, pytest.param(MORE, marks=pytest.mark.slow)], ids=str)
def test_every_wrong_number_is_read_or_one_line_and_takes_no_memory(whole, tmp_path, numbers):
    contents, _ = whole
    refused = 0
    tracemalloc.start()
    try:
        for place, size in numbers_in_header(contents):
            for number in numbers:
                changed = bytearray(contents)
                changed[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
                tracemalloc.reset_peak()
                refused += outcome(tmp_path / "m.gguf", bytes(changed)) is not None
                assert tracemalloc.get_traced_memory()[1] < ROOM, (place, number)
    finally:
        tracemalloc.stop()
    assert refused > 100


def test_every_value_of_another_type_is_read_or_one_line(tmp_path):
    values = sizes("llama") | vocabulary()
    values |= {f"tokenizer.ggml.{name}_token_id": 0 for name in ("eot", "eom", "unknown")}
    values |= {f"llama.rope.scaling.{name}": 1.0 for name in ("factor", "yarn_ext_factor")}
    values |= sizes("llama", expert_count=0, attention__sliding_window=3, attention__scale=1.0)
    values |= {"llama.rope.scaling.type": "yarn", "llama.attention.sliding_window_pattern": 2}
    values |= {"llama.rope.scaling.original_context_length": 32, "split.count": 1}
    values |= {"tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": "x"}
    path = tmp_path / "m.gguf"
    assert outcome(path, write(path, "llama", values, tensors()).read_bytes()) is None
    refused = 0
    for name in values:
        for other in ([], [1, 2], [0.5, 0.5], ["a", "b"], "x", -1.0, float("nan"), True, 0):
            changed = write(path, "llama", values | {name: other}, tensors())
            refused += outcome(path, changed.read_bytes()) is not None
    assert refused > 150
    for other in ([1, 2], True, 3):
        writer = gguf.GGUFWriter(path, "llama")
        writer.kv_data[0]["general.architecture"] = gguf.GGUFValue(
            other, gguf.GGUFValueType.get_type(other)
        )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert "is not supported" in outcome(path, path.read_bytes())
