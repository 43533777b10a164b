"""What a compiled program's C++ says that it reads and writes equals an independent count."""

import re
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

import kvcast
from kit.dimensions import LFM2, SHALLOW
from kit.models import bundle
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.inspect.work import ModelWork
from kvcast.runtimes.aoti.target import SOURCES, read_sources, write_sources
from kvcast.runtimes.aoti.traffic import _evaluated
from kvcast.runtimes.copies import copies_of, traffic_of
from kvcast.runtimes.traffic import CallSizes
from runtimes.aoti.small_package import compiled_products


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [SHALLOW, LFM2])
def test_the_c_plus_plus_reads_and_writes_what_is_counted_from_dimensions(dimensions: Any):
    folder = bundle(dimensions, runtime="aoti")
    sizes = CallSizes(rows=2, length=9)
    programs = {p.name: p for p in traffic_of(folder, read_bundle(folder), sizes).programs}
    decode, work = programs["decode"], ModelWork(dimensions=dimensions).call(9, 1, rows=2, inputs=2)
    assert sum(layer.read for layer in decode.layers) == 4 * work.cached
    assert sum(layer.written for layer in decode.layers) == 4 * work.written
    # Loops over the first layer's norm look rows up as well.
    looked_up = 4 * 2 * decode_tables(dimensions)
    assert decode.weights == 4 * work.weights + looked_up
    assert not copies_of(folder)


def decode_tables(dimensions: Any) -> int:
    """Return the numbers of a row of each table that a token is looked up in."""
    tables = {"d_model": 2, "width": 1}
    return sum(getattr(dimensions, name, 0) * count for name, count in tables.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_clone({cache}, &buf900_handle));",
        "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_copy_({cache}, buf0, 0));",
        "AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(4, int_array_900, int_array_900, "
        "cached_torch_dtype_float32, cached_torch_device_type_cpu, 0, &buf900_handle));\n"
        "cpp_fused_clone_9((const float*)({cache}.data_ptr()), (float*)(buf900.data_ptr()));",
    ],
)
def test_a_cache_that_is_copied_is_found(call: str, tmp_path: Path):
    folder = tmp_path / "bundle"
    copytree(bundle(SHALLOW, runtime="aoti"), folder)
    package = folder / "aoti/model.pt2"
    code = {name: read_sources(package, name) for name in ("encode", "decode")}
    # The first self cache comes after slots, tokens, lengths and offsets.
    cache = re.findall(r"inputs_info_\[4\]\.name = \"(\w+)\"", code["decode"])[0]
    sizes = re.findall(r"int64_t (\w+) = \w+_size\[2\];", code["decode"])[0]
    array = f"const int64_t int_array_900[] = {{1L, 4L, {sizes}, 16L}};\n"
    end = "} // AOTInductorModel::run_impl"
    code["decode"] = code["decode"].replace(end, array + call.format(cache=cache) + "\n" + end)
    files = {}
    for name, text in code.items():
        path = tmp_path / f"{name}.cpp"
        path.write_text(text, encoding="utf-8")
        files[name] = [str(path)]
    write_sources(folder, files)
    manifest = read_bundle(bundle(SHALLOW, runtime="aoti"))
    assert [copy.name for copy in copies_of(folder, manifest)] == ["past_key_0"]


def test_the_c_plus_plus_beside_a_package_names_no_folder_of_this_machine():
    code = read_sources(compiled_products() / "aoti/model.pt2", "decode")
    assert "AOTInductorModel::run_impl" in code
    for folder in (Path.home(), Path(kvcast.__file__).parents[1], Path("/tmp")):
        assert f"{folder}/" not in code


def test_a_package_without_its_c_plus_plus_is_refused(tmp_path: Path):
    package = tmp_path / "aoti/model.pt2"
    package.parent.mkdir()
    package.write_bytes((compiled_products() / "aoti/model.pt2").read_bytes())
    with pytest.raises(KvcastError, match="exported without the C\\+\\+ of its programs"):
        read_sources(package, "decode")
    (tmp_path / SOURCES).write_bytes(b"PK")
    with pytest.raises(KvcastError, match="cannot be read"):
        read_sources(package, "decode")


def test_sizes_are_arithmetic_and_nothing_else():
    code = "s8*(c10::div_floor_integer(static_cast<int64_t>(s97), static_cast<int64_t>(2L))), 64L"
    assert _evaluated(code, {"s8": 3, "s97": 8}) == (12, 64)
    for other in ("s1", "().__class__", "s8 // 0", "open(s8)"):
        with pytest.raises(KvcastError, match="no arithmetic over sizes"):
            _evaluated(other, {"s8": 3})
