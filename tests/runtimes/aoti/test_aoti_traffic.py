"""What a compiled program's C++ says that it reads and writes equals an independent count."""

from pathlib import Path
from typing import Any

import pytest
from torch._inductor import config

import kvcast
from kit.dimensions import LFM2, SHALLOW
from kit.models import bundle, write
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.inspect.work import work_of
from kvcast.runtimes.aoti.sources import SOURCES, read_sources
from kvcast.runtimes.aoti.traffic import _evaluated
from kvcast.runtimes.copies import copies_of, traffic_of
from kvcast.runtimes.traffic import CallSizes
from runtimes.aoti.small_package import compiled_products
from runtimes.copying import copying_programs


@pytest.mark.slow
@pytest.mark.parametrize("dimensions", [SHALLOW, LFM2])
def test_the_c_plus_plus_reads_and_writes_what_is_counted_from_dimensions(dimensions: Any):
    folder = bundle(dimensions, runtime="aoti")
    sizes = CallSizes(rows=2, length=9)
    programs = {p.name: p for p in traffic_of(folder, read_bundle(folder), sizes)}
    decode, work = programs["decode"], work_of(dimensions).call(9, 1, rows=2, inputs=2)
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
def test_a_cache_that_is_copied_is_found_in_the_c_plus_plus(tmp_path: Path):
    with config.patch(
        {"aot_inductor.package_cpp_only": True}
    ):  # nothing is compiled to native code
        write(copying_programs(SHALLOW), tmp_path / "bundle", runtime="aoti")
    assert [copy.name for copy in copies_of(tmp_path / "bundle")] == ["past_key_0"]


def test_the_c_plus_plus_beside_a_package_names_no_folder_of_this_machine():
    code = read_sources(compiled_products() / "aoti/model.pt2", "decode")
    assert "AOTInductorModel::run_impl" in code
    for folder in (Path.home(), Path(kvcast.__file__).parents[1], Path("/tmp")):
        assert f"{folder}/" not in code


def test_a_package_without_its_c_plus_plus_is_told(tmp_path: Path):
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
