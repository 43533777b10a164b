"""GGUF files opened as they are: matrices stay in their own codes, of mixed types too."""

import mmap
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

import kvcast
from kit import tiny_gguf
from kvcast.checkpoints.base import map_file
from kvcast.checkpoints.source import open_checkpoint
from kvcast.loading.examination import examine_model
from kvcast.runtimes.native.bundles import open_checkpoint as opened_on_native
from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.plan_builder import Experts, Joined, Matrix
from kvcast.spec.runtimes import OWN, RUNTIMES, BundlePrecision, PrecisionRequest
from kvcast.spec.stored_matrices import Encoding, FileRows

WIDTH, INNER, HEADS, KEY_HEADS, HEAD_DIM, LAYERS = 256, 512, 4, 2, 64, 2
MIXED = {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "": "Q4_K"}
QKV = "decoder.layers.0.attention.qkv.weight"


def raw(rows: int, width: int, kind: str, seed: int) -> NDArray[np.uint8]:
    """Return random blocks [rows, bytes] whose numbers keep the size of what they multiply."""
    random = np.random.default_rng(seed)
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (rows, width // numbers, size), np.uint8)
    first, divisors = {
        "Q4_0": (0, [4.6]),
        "Q4_1": (0, [4.6, -0.61]),
        "Q8_0": (0, [73.0]),
        "Q4_K": (0, [4.6 * 32, 4.6 * 32 / 7.5]),
        "Q5_K": (0, [9.2 * 32, 9.2 * 32 / 15.5]),
        "Q6_K": (208, [18 * 73.0]),
    }[kind]
    halves = np.array([width**-0.5 / divisor for divisor in divisors], np.float16)
    blocks[..., first : first + halves.nbytes] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path: Path, kinds: Mapping[str, str], *, tied: bool = True, bias: bool = False) -> Path:
    """Write a small Llama; `kinds` maps parts of tensors' names to types, the first that fits."""
    writer = gguf.GGUFWriter(path, "llama")
    values = tiny_gguf.sizes(
        "llama", block_count=LAYERS, embedding_length=WIDTH, feed_forward_length=INNER,
        attention__head_count=HEADS, attention__head_count_kv=KEY_HEADS,
        attention__key_length=HEAD_DIM, attention__value_length=HEAD_DIM,
    )  # fmt: skip
    for name, value in (values | tiny_gguf.vocabulary()).items():
        tiny_gguf.add_value(writer, name, value)
    shapes = {"token_embd": (tiny_gguf.VOCAB, WIDTH)}
    if not tied:
        shapes["output"] = (tiny_gguf.VOCAB, WIDTH)
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q": (HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_k": (KEY_HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_v": (KEY_HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_output": (WIDTH, HEADS * HEAD_DIM),
            f"blk.{i}.ffn_gate": (INNER, WIDTH),
            f"blk.{i}.ffn_up": (INNER, WIDTH),
            f"blk.{i}.ffn_down": (WIDTH, INNER),
        }
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(WIDTH, np.float32))
        for part, heads in {"q": HEADS, "k": KEY_HEADS, "v": KEY_HEADS}.items() if bias else ():
            added = np.random.default_rng(heads).normal(size=heads * HEAD_DIM).astype(np.float32)
            writer.add_tensor(f"blk.{i}.attn_{part}.bias", added)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for seed, (name, shape) in enumerate(shapes.items()):
        kind = next(kind for part, kind in kinds.items() if part in name)
        writer.add_tensor(
            f"{name}.weight", raw(*shape, kind, seed), raw_dtype=GGMLQuantizationType[kind]
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    ],
    ids=["Q4_K and Q6_K", "Q4_0", "a gate of two types", "three types"],
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
