"""GGUF files opened as they are: matrices stay in their own codes, of mixed types too."""

import mmap
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvcast
from kit import tiny_gguf
from kit.coded_gguf import GRIDS, write
from kvcast.checkpoints.base import map_file
from kvcast.checkpoints.source import open_checkpoint
from kvcast.loading.examination import examine_model
from kvcast.runtimes.native.bundles import open_checkpoint as opened_on_native
from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.plan_builder import Experts, Joined, Matrix
from kvcast.spec.runtimes import OWN, RUNTIMES, BundlePrecision, PrecisionRequest
from kvcast.spec.stored_matrices import Encoding, FileRows
from runtimes.native.native_calls import looked_up

MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "": "Q4_K"}
QKV = "decoder.layers.0.attention.qkv.weight"


def constants_of(path: Path, precision: BundlePrecision) -> dict[str, Any]:
    _, interpreter = opened_on_native(open_checkpoint(path), precision, 2)
    return {constant.name: packed for constant, packed in interpreter.constants.items()}


def test_own_codes_are_the_default_of_what_native_opens() -> None:
    native = RUNTIMES["native"]
    assert native.choose_opening(PrecisionRequest()).quantize == OWN
    assert native.choose_opening(PrecisionRequest(quantize="int8")).quantize == "int8"
    assert native.choose_precision(PrecisionRequest()).quantize == "int8"
    assert RUNTIMES["eager"].choose_opening(PrecisionRequest()).quantize == "none"


def test_each_matrix_keeps_its_type(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.gguf", MIXED, tied=False)
    constants = constants_of(path, BundlePrecision(quantize=OWN))
    qkv = constants[QKV]
    assert isinstance(qkv, Joined)
    assert [part.format for part in qkv.parts] == [Format.INT4_LARGE, Format.INT6_LARGE]
    assert [part.outputs for part in qkv.parts] == [384, 128]
    formats = {
        name.removeprefix("decoder.layers.0."): matrix.format
        for name, matrix in constants.items()
        if isinstance(matrix, Matrix) and "layers.1" not in name
    }
    assert formats == {
        "attention.out.weight": Format.INT4_LARGE,
        "feed_forward.gate_up.weight": Format.INT4_LARGE,
        "feed_forward.down.weight": Format.INT6_LARGE,
        "decoder.head.weight": Format.INT4_LARGE,
    }
    assert isinstance(constants["decoder.embedding.weight"], FileRows)


def test_an_examination_tells_what_was_kept(tmp_path: Path) -> None:
    report = examine_model(str(write(tmp_path / "mixed.gguf", MIXED)), prove=True)
    held = {row["stored"]: row["held"] for row in report["weights"]}
    assert report["quantize"] == OWN
    assert held["Q4_K, Q6_K"] == "INT4 LARGE and INT6 LARGE"
    assert held["Q4_K"] == "INT4 LARGE"
    assert all(row["kept"] for row in report["weights"])
    assert report["proof"]["tokens_equal"] == report["proof"]["tokens"]


def test_a_checkpoint_without_codes_is_int8(tmp_path: Path) -> None:
    arrays = tiny_gguf.tensors()
    values = tiny_gguf.sizes("llama") | tiny_gguf.vocabulary()
    path = tiny_gguf.write(tmp_path / "f16.gguf", "llama", values, arrays, {"": "F16"})
    manifest, _ = opened_on_native(open_checkpoint(path), BundlePrecision(quantize=OWN), 1)
    assert manifest.quantize == "int8"


@pytest.mark.parametrize(
    "kinds",
    [
        MIXED,
        {"": "Q4_0"},
        {"ffn_up": "Q8_0", "": "Q4_1"},
        {"token_embd": "Q8_0", "attn_q": "Q5_K", "": "Q6_K"},
        {"attn_v": "IQ3_S", "ffn_down": "IQ1_M", "token_embd": "IQ3_S", "": "IQ2_XS"},
        {"": "TQ1_0"},
    ],
    ids=["Q4_K and Q6_K", "Q4_0", "a gate of two types", "three types", "grids", "ternary"],
)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_nearly_those_of_the_files_numbers(
    kinds: Mapping[str, str], tied: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", kinds, tied=tied, bias=not tied)
    tokens = np.random.default_rng(0).integers(0, tiny_gguf.VOCAB, 40).tolist()
    own = kvcast.load(path, runtime="native", cache="fp32").score(tokens)
    exact = kvcast.load(path, runtime="native", quantize="none").score(tokens)
    # Activations are rounded; a matrix whose rows were mistaken would give other texts.
    assert np.abs(own - exact).mean() < 0.05 * np.abs(exact).std()


@pytest.mark.parametrize("kind", [*GRIDS, "IQ4_XS", "TQ1_0", "TQ2_0", "NVFP4"])
def test_a_file_is_one_of_its_numbers(kind: str, tmp_path: Path) -> None:
    kinds, factors = {"": kind}, kind == "NVFP4"
    path = write(tmp_path / "codes.gguf", kinds, factors=factors)
    floats = write(tmp_path / "floats.gguf", kinds, factors=factors, as_floats=True)
    arrays, expected = open_checkpoint(path).tensors, open_checkpoint(floats).tensors
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)
    exact, same = (kvcast.load(each, runtime="native", quantize="none") for each in (floats, path))
    tokens = np.random.default_rng(0).integers(0, tiny_gguf.VOCAB, 40).tolist()
    np.testing.assert_array_equal(same.score(tokens), exact.score(tokens))
    written = [model.generate("he", max_new_tokens=8, min_new_tokens=8) for model in (same, exact)]
    assert written[0].tokens == written[1].tokens
    own = kvcast.load(path, runtime="native", cache="fp32").score(tokens)
    assert np.abs(own - exact.score(tokens)).mean() < 0.05 * np.abs(exact.score(tokens)).std()


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        *((kind, "INT4 TABLE LARGE") for kind in GRIDS),
        ("TQ1_0", "INT4 TABLE"),
        ("TQ2_0", "INT4 TABLE"),
        ("NVFP4", "INT4 TABLE FINE"),
    ],
)
def test_an_examination_proves_types_of_few_bits(kind: str, held: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"token_embd": "Q8_0", "": kind}, factors=kind == "NVFP4")
    report = examine_model(str(path), prove=True)
    rows = {row["stored"]: row for row in report["weights"]}
    assert rows[kind]["held"] == held
    assert rows[kind]["kept"]
    assert report["proof"]["tokens_equal"] == report["proof"]["tokens"]


def test_an_embedding_may_have_a_factor(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"": "NVFP4"}, factors=True, tied=False)
    embedding = constants_of(path, BundlePrecision(quantize=OWN))["decoder.embedding.weight"]
    floats = write(tmp_path / "f.gguf", {"": "NVFP4"}, factors=True, tied=False, as_floats=True)
    expected = open_checkpoint(floats).tensors["decoder.embedding.weight"]
    np.testing.assert_array_equal(looked_up(Machine(1), embedding), expected)


def test_a_given_precision_is_what_it_was(tmp_path: Path) -> None:
    path = write(tmp_path / "q4.gguf", {"": "Q4_0"})
    for quantize, format_ in (("int8", Format.INT8_BLOCK), ("int4", Format.INT4_MIN)):
        matrices = constants_of(path, BundlePrecision(quantize=quantize))
        assert matrices["decoder.layers.0.attention.out.weight"].format == format_


def test_experts_of_one_type_keep_it(tmp_path: Path) -> None:
    arrays = tiny_gguf.tensors(experts=tiny_gguf.EXPERTS)
    path = tiny_gguf.write(
        tmp_path / "experts.gguf", "llama",
        tiny_gguf.sizes("llama", expert_count=tiny_gguf.EXPERTS, expert_used_count=2)
        | tiny_gguf.vocabulary(),
        arrays, {"exps.weight": "Q4_0"},
    )  # fmt: skip
    constants = constants_of(path, BundlePrecision(quantize=OWN))
    experts = constants["decoder.layers.0.feed_forward.gate_up"]
    assert isinstance(experts, Experts)
    assert experts.matrices[0].format == Format.INT4_TABLE


def test_only_the_pages_of_rows_that_were_read_are_let_go(tmp_path: Path) -> None:
    rows, page = 64, mmap.PAGESIZE
    path = tmp_path / "rows"
    path.write_bytes(np.arange(rows * page, dtype=np.uint32).astype(np.uint8).tobytes())
    mapped = map_file(path)
    given = FileRows.of(mapped, rows, page // 4, Encoding.F32)

    def resident() -> int:
        """Return the bytes of the file that count as this process's memory."""
        smaps = Path("/proc/self/smaps").read_text().split(str(path))[1]
        return 1024 * int(smaps.split("Rss:")[1].split()[0])

    machine = Machine(1)
    machine.pack_rows(Format.F32, given)
    before = resident()
    given.part(slice(8, 24)).release()
    assert resident() == before - 16 * page
    given.release()
    assert resident() == 0


@pytest.mark.slow
def test_a_billion_weights_open_within_1_3_gb(tmp_path: Path) -> None:
    """The file is mapped and let go of; the process's own memory is limited to what is packed."""
    path, limit = tmp_path / "1b.gguf", 1_300_000_000
    script = Path(__file__).parents[3] / "scripts" / "make_gguf.py"
    subprocess.run([sys.executable, script, "llama-1b", "q4_0", path], check=True)
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (1_000_000_000, 1_000_000_000))\n"
        "import kvcast\n"
        "model = kvcast.load(sys.argv[1], runtime='native', threads=2)\n"
        "model.generate('A', max_new_tokens=2, min_new_tokens=2)\n"
        "peak = open('/proc/self/status').read().split('VmHWM:')[1].split()[0]\n"
        "print(1024 * int(peak))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < limit
