"""AOTInductor's code: caches written in place, no copies, weights kept outside the package."""

import re
import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import Mock, patch

import pytest
import sympy
import torch
from safetensors import safe_open
from torch import nn
from torch._inductor import config
from torch._inductor.codegen import cpp

from kit.dimensions import GEMMA3, LFM2, SHALLOW
from kit.marks import slow
from kit.models import bundle, random_programs
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.runtimes.aoti import inductor
from kvcast.runtimes.aoti import lowering as aoti
from kvcast.runtimes.aoti.inductor import (
    call_graph,
    compile_program,
    remembered_strides,
    short_loops_on_one_thread,
    trace,
    tracing,
)
from kvcast.runtimes.aoti.operators import kept
from kvcast.runtimes.aoti.precision import Precision
from kvcast.runtimes.aoti.runtime import open_programs
from kvcast.runtimes.lowering.torch_export import Signature, signatures_of
from runtimes.aoti.small_package import compiled_products, seal_graphs

# Operators that copy a tensor or concatenate two.
COPIES = re.compile(r"aoti_torch_(?:cpu_)?(?:copy_?|clone\w*|cat\w*|repeat\w*|expand_copy\w*)\(")


def written(module: nn.Module, arguments: tuple[Any, ...]) -> str:
    """The C++ of an exported program, which nobody compiles to native code."""
    with config.patch({"aot_inductor.package_cpp_only": True}):
        files, _ = compile_program(module, arguments)
    return "".join(Path(file).read_text() for file in files if file.endswith(".cpp"))


@pytest.fixture(scope="module")
def small_programs():
    return random_programs(SHALLOW)


@pytest.fixture(scope="module")
def compiled_small():
    return bundle(SHALLOW, runtime="aoti")


@pytest.fixture(scope="module")
def compiled():
    return compiled_products()


@dataclass(frozen=True)
class Step:
    """A `decode` in fp32.

    Attributes:
        weights: the names of those that it reads.
        operators: of the graph that Inductor lowers.
        written: the nodes that those operators write.
        source: its C++.

    """

    weights: tuple[str, ...]
    operators: tuple[Any, ...]
    written: tuple[tuple[str, str], ...]
    source: str

    @classmethod
    def lower(cls, signature: Signature) -> "Step":
        traced = aoti.trace_program(signature, Precision())
        module, arguments = aoti.export_program(traced, signature, Precision(), "decode")
        operators, written_nodes = [], []

        def record(*given: Any, **options: Any) -> Any:
            graph, inputs = trace(*given, **options)
            for node in graph.graph.nodes:
                operators.append(node.target)
                schema = getattr(node.target, "_schema", None)
                if schema and schema.is_mutable:
                    written_nodes.append((node.args[0].op, node.args[0].name))
            return graph, inputs

        with patch.object(inductor, "trace", record):
            source = written(module, arguments)
        weights = tuple(name for name, _ in module.named_parameters())
        return cls(weights, tuple(operators), tuple(written_nodes), source)


@pytest.fixture(scope="module")
def whisper_step(small_programs) -> Step:
    return Step.lower(signatures_of(small_programs)["decode"])


@pytest.fixture(scope="module")
def ring_step() -> Step:
    return Step.lower(signatures_of(random_programs(GEMMA3))["decode"])


@pytest.fixture(scope="module")
def convolution_step() -> Step:
    return Step.lower(signatures_of(random_programs(LFM2))["decode"])


@pytest.fixture(params=["whisper_step", slow("ring_step"), slow("convolution_step")])
def source(request):
    return request.getfixturevalue(request.param).source


def test_no_step_copies_a_cache(source):
    assert len(source) > 10_000
    assert not COPIES.findall(source)


@pytest.mark.slow
def test_a_steps_mask_lies_as_its_logits_do(ring_step):
    """Otherwise loops over both would transpose blocks, one value at a time for one token."""
    assert ".exp()" in ring_step.source
    assert "transpose_mxn" not in ring_step.source


def test_a_step_allocates_nothing_of_a_caches_size(source):
    """Buffer sizes depend on new tokens and slots to read, never on a capacity."""
    arrays = dict(re.findall(r"const(?:expr)? int64_t (int_array_\d+)\[\] = \{([^}]*)\}", source))
    capacities = set(re.findall(r"int64_t (s\d+) = arg\d+_1_size\[2\]", source))
    allocated = re.findall(r"empty_strided\w*\(\d+, (int_array_\d+),", source)
    assert capacities
    assert len(allocated) > 3
    for name in allocated:
        assert capacities.isdisjoint(re.findall(r"s\d+", arrays[name]))


def test_cross_keys_are_projected_by_encode_alone(whisper_step):
    read = whisper_step.weights
    assert any("cross_attention.query" in name for name in read)
    assert not any("cross_attention.key_value" in name for name in read)


@pytest.mark.slow
def test_weights_are_kept_once_and_apart(compiled_small, small_programs):
    with safe_open(compiled_small / aoti.WEIGHTS, "pt") as weights:
        stored = list(weights.keys())
    parameters = dict(small_programs["decode"].named_parameters())
    parameters |= dict(small_programs["encode"].named_parameters())
    # Which channels are the alignment heads' is a constant of the program, too.
    constants = {*parameters, "aligned_channels"}
    assert {name.removeprefix("results.program.") for name in stored} == constants
    with zipfile.ZipFile(compiled_small / aoti.PACKAGE) as package:
        names = package.namelist()
    assert sum(name.endswith(".so") for name in names) == 2
    assert not any(name.endswith((".cpp", ".pt", ".pkl")) for name in names)


def test_nothing_in_the_package_names_a_folder_of_this_machine(compiled):
    with zipfile.ZipFile(compiled / aoti.PACKAGE) as package:
        content = b"".join(package.read(name) for name in package.namelist())
    assert str(Path(aoti.__file__).parents[2]).encode() not in content


@pytest.mark.parametrize("file", [aoti.PACKAGE, aoti.WEIGHTS])
@pytest.mark.parametrize("damage", ["changed", "truncated", "foreign"])
def test_a_damaged_package_is_refused_before_it_is_opened(compiled, file, damage, tmp_path):
    folder = copytree(compiled, tmp_path / "bundle")
    content = (folder / file).read_bytes()
    changed = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
    damages = {"changed": changed, "truncated": content[:-1], "foreign": b"PK\x03\x04"}
    (folder / file).write_bytes(damages[damage])
    with pytest.raises(KvcastError, match="was changed since the export"):
        read_bundle(folder)


def test_weights_without_a_checksum_are_refused(compiled):
    manifest = read_bundle(compiled)
    del manifest.files[aoti.WEIGHTS]
    with pytest.raises(KvcastError, match=r"no .*weights\.safetensors with a checksum"):
        open_programs(compiled, manifest, threads=1)


def test_operators_that_are_left_are_none_of_ours(whisper_step):
    assert not [operator for operator in whisper_step.operators if "kvcast" in str(operator)]
    assert torch.ops.aten.index_put.default in whisper_step.operators


def test_a_step_writes_its_caches_and_nothing_else(whisper_step):
    assert len(whisper_step.written) == len(set(whisper_step.written)) == 2
    assert {operator for operator, _ in whisper_step.written} == {"placeholder"}


@pytest.mark.slow
def test_layers_share_the_mask_of_their_window(ring_step):
    masks = ring_step.operators.count(torch.ops.prims.copy_strided.default)
    assert masks == len(set(GEMMA3.windows)) < GEMMA3.layers


class Branch(nn.Module):
    """Does something else for nine rows."""

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor]:
        return (rows * 2 if rows.shape[0] == 9 else rows,)


@pytest.mark.parametrize(("dynamic", "fits"), [((0,), False), ((), True)])
def test_a_program_that_only_fits_one_size_is_refused(dynamic, fits):
    module = call_graph(Branch(), [torch.ones(9, 4)], [dynamic], results=1)
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    refused = pytest.raises(RuntimeError, match=r"does not fit every size: Eq\(s\d+, 9\)")
    with tracing(), nullcontext() if fits else refused:
        graph, _ = trace(module, inputs)
        assert torch.ops.aten.mul.Tensor in {node.target for node in graph.graph.nodes}


def product(linear: nn.Linear) -> Signature:
    """A program of one matrix product."""
    return Signature(
        program=linear.requires_grad_(False),
        arguments=(torch.zeros(4, linear.in_features, dtype=linear.weight.dtype),),
        sizes=({0: torch.export.Dim("rows")},),
        inputs=["hidden"],
        outputs=["product"],
    )


class StoppedError(Exception):
    """Ends a lowering before anything is compiled."""


def test_prefill_and_decode_are_two_forms_of_one_export(monkeypatch, tmp_path):
    programs = random_programs(replace(GEMMA3, windows=(5,)))
    traced, phases = [], []

    def trace(*arguments):
        traced.append(trace_program(*arguments))
        return traced[-1]

    def stop(*_, **__):
        raise StoppedError

    trace_program = aoti.trace_program
    monkeypatch.setattr(aoti, "trace_program", trace)
    monkeypatch.setattr(aoti, "compile_program", stop)
    precision = Precision(dtype="bf16", quantize="int8")
    with pytest.raises(StoppedError):
        aoti.lower(signatures_of(programs), precision, tmp_path, on_phase=phases.append)
    assert len(traced) == 1
    quantising = ["quantising decode", "quantising prefill"]
    assert phases == ["exporting decode", *quantising, "compiling decode"]


def test_no_stride_is_derived_twice():
    """A layer asks for more strides than Inductor's own caches hold, the next for the same."""
    x, size = sympy.symbols("x size", integer=True, positive=True)
    layer = [x * size + offset for offset in range(200)]
    simplify = Mock(wraps=sympy.simplify)
    with remembered_strides(), patch.object(sympy, "simplify", simplify):
        first = [cpp.stride_at_vec_range(index, x, 16) for index in layer]
        derived = simplify.call_count
        assert [cpp.stride_at_vec_range(index, x, 16) for index in layer] == first
    assert set(first) == {size}
    assert simplify.call_count == derived >= len(layer)


@pytest.mark.parametrize(("version", "replaced"), [(torch.__version__, True), ("2.99.0", False)])
def test_only_the_inductor_that_it_knows_is_changed(version, replaced, monkeypatch):
    used = []

    def stop(*_, **__):
        compile_fx = import_module("torch._inductor.compile_fx")
        used.append(compile_fx.aot_export_module)
        raise StoppedError

    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(inductor, "aot_compile", stop)
    with pytest.raises(StoppedError):
        compile_program(Mock(), ())
    assert (used == [trace]) == replaced
    assert import_module("torch._inductor.compile_fx").aot_export_module is not trace


class Loops(nn.Module):
    """A loop over few values, and one over many that uses the results of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, few: torch.Tensor, many: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.calls += 1
        total = kept(few * 2).sum()
        return total, many * total


def test_only_loops_over_many_numbers_take_all_threads():
    examples = torch.ones(64), torch.ones(1 << 20)
    loops = Loops()
    with short_loops_on_one_thread():
        code = written(call_graph(loops, examples, [(), ()], results=2), examples)
    assert loops.calls == 1, "Inductor traced it more than once"
    assert code.count("for(int64_t x0") > code.count("#pragma omp for") == 1


def test_programs_that_mean_different_weights_by_one_name_are_refused(tmp_path):
    """A program with another program's weights reads past their end: it does not check sizes."""
    wrong = {name: product(nn.Linear(8, 8, bias=False)) for name in ("encode", "pool")}
    with pytest.raises(RuntimeError, match="two programs have different weights named"):
        aoti.lower(wrong, Precision(), tmp_path)


@pytest.mark.slow
def test_a_tuned_program_finds_its_own_layout_of_its_weights_and_tells_nothing(tmp_path, capfd):
    linear = nn.Linear(64, 96, bias=False).bfloat16()
    graphs = aoti.lower({"encode": product(linear)}, Precision(), tmp_path, max_autotune=True)
    assert "AUTOTUNE" not in "".join(capfd.readouterr()).upper()
    manifest = seal_graphs(tmp_path, graphs, "none")
    hidden = torch.randn(3, 64).bfloat16()
    (result,) = open_programs(tmp_path, manifest, threads=1)["encode"]([hidden], {})
    torch.testing.assert_close(result, linear(hidden).float(), atol=0.02, rtol=0.02)
    with safe_open(tmp_path / aoti.WEIGHTS, "pt") as weights:
        assert any(name.startswith("encode/") for name in weights.keys())  # noqa: SIM118
