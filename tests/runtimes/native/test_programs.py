"""Programs: what is planned computes what torch does, wherever results and inputs lie."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.dimensions import SMALL
from kit.models import bundle, speech
from kvcast.bundle.manifest import read_bundle
from kvcast.errors import KvcastError
from kvcast.runtimes.native.interpreter import planned
from kvcast.runtimes.native.library import Format, Machine, aligned
from kvcast.runtimes.native.opcodes import Operation
from kvcast.runtimes.native.operations import OPERATIONS
from kvcast.runtimes.native.plan_builder import Builder, Matrix
from kvcast.runtimes.target import TARGETS
from kvcast.spec.program import Constant, Node, Program, Step
from runtimes.native.native_calls import Matrix as RandomMatrix

UNARY = {"tanh": torch.tanh, "silu": torch.nn.functional.silu, "relu": torch.relu}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "maximum": torch.maximum}


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(2)


def matrix_of(
    machine: Machine, rng: np.random.Generator, format_: Format, outputs: int, inputs: int
) -> Matrix:
    matrix = RandomMatrix(rng, format_, outputs, inputs, bias=True)
    return Matrix(format_, outputs, inputs, matrix.packed(machine))


def run(machine: Machine, program: Program, constants: Any, inputs: Any, outputs: Any) -> None:
    plan = planned(program, constants, inputs, outputs)
    arena = aligned(plan.arena)
    arena[:] = 0xFF  # NaN: nothing may be read before it is written
    words = plan.words.copy()
    words[plan.in_arena] += arena.ctypes.data
    machine.run(words)


@settings(deadline=None)
@given(data=st.data())
def test_random_programs_are_torchs(machine: Machine, data: st.DataObject) -> None:
    """Results are read at once, late or never, so places in the arena are used again."""
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=3, max_size=3)))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    inputs = {name: generator.normal(size=shape).astype(np.float32) for name in ("x", "y")}
    expected = {name: torch.from_numpy(array) for name, array in inputs.items()}
    steps = []
    for i in range(data.draw(st.integers(1, 12))):
        operation = data.draw(st.sampled_from([*UNARY, *BINARY, "transpose"]))
        left, right = (data.draw(st.sampled_from(list(expected))) for _ in range(2))
        name = f"step_{i}"
        if operation == "transpose":
            arguments: list[Any] = [Node(left), 1, 2]
            result = expected[left].transpose(1, 2)
        elif operation in UNARY:
            arguments, result = [Node(left)], UNARY[operation](expected[left])
        else:
            if expected[left].shape != expected[right].shape:
                continue
            arguments = [Node(left), Node(right)]
            result = BINARY[operation](expected[left], expected[right])
        steps.append(Step(name, operation, arguments))
        expected[name] = result
    if not steps:
        return
    last = steps[-1].name
    program = Program(inputs=["x", "y"], outputs={"result": last}, steps=steps)
    actual = np.full(tuple(expected[last].shape), np.nan, np.float32)
    run(machine, program, {}, inputs, {"result": actual})
    np.testing.assert_allclose(actual, expected[last].numpy(), rtol=1e-5, atol=1e-6)


def test_a_program_survives_its_file(tmp_path: Path) -> None:
    steps = [
        Step("a", "clamp", [Node("x"), -1, 2.5]),
        Step("b", "where", [Node("a"), 0.0, float("-inf")]),
        Step("c", "linear", [Node("b"), Constant("w", "bias")], {"activation": "gelu"}),
        Step("d", "cat", [[Node("c"), Node("c")], -1]),
    ]
    program = Program(inputs=["x"], outputs={"y": "d"}, steps=steps)
    program.write(tmp_path / "program.json")
    assert Program.read(tmp_path / "program.json") == program


@pytest.mark.parametrize("inner", [64, 128, 5, 96])
@pytest.mark.parametrize("format_", [Format.F32, Format.INT8_BLOCK])
def test_a_product_with_a_gate_gives_what_both_give_one_after_the_other(
    machine: Machine, inner: int, format_: Format
) -> None:
    rng = np.random.default_rng(1)
    matrix, last = (
        matrix_of(machine, rng, format_, outputs, inputs)
        for outputs, inputs in ((2 * inner, 70), (40, inner))
    )
    constants = {Constant("w"): matrix, Constant("v"): last}
    x = rng.normal(size=(3, 50, 70)).astype(np.float32)
    results = []
    for joined in (False, True):
        steps = [
            Step("a", "linear", [Node("x"), Constant("w")]),
            Step("b", "chunk", [Node("a"), 2, -1]),
            Step("c", "getitem", [Node("b"), 0]),
            Step("d", "getitem", [Node("b"), 1]),
            Step("f", "gated", [Node("c"), Node("d")], {"activation": "gelu_tanh"}),
        ]
        if joined:
            steps = [Step("f", "linear", [Node("x"), Constant("w")], {"gate": "gelu_tanh"})]
        steps.append(Step("g", "linear", [Node("f"), Constant("v")]))
        outputs = {
            "gates": np.full((3, 50, inner), np.nan, np.float32),
            "result": np.full((3, 50, 40), np.nan, np.float32),
        }
        names = {"gates": "f", "result": "g"}
        for wanted in (["result"], ["gates", "result"]):
            chosen, arrays = ({name: each[name] for name in wanted} for each in (names, outputs))
            program = Program(inputs=["x"], outputs=chosen, steps=steps)
            run(machine, program, constants, {"x": x}, arrays)
            results.append(outputs["result"].copy())
        results.append(outputs["gates"])
    assert np.isfinite(results[0]).all()
    for first, other in ((0, 1), (0, 3), (0, 4), (2, 5)):
        assert np.array_equal(results[first], results[other])


ROTATED = ["x", "x", "x", "cache", "cache", "lengths", 1.0, 0, 0.0]
ANGLES = np.ones((8, 2), np.float32)


@pytest.mark.parametrize(
    ("operation", "arguments", "keywords"),
    [
        ("linear", ["x", "matrix"], {}),
        ("layer_norm", ["x", np.ones(3, np.float32), np.ones(4, np.float32), 1e-5], {}),
        ("layer_norm", ["x", np.ones(4, np.float32), np.ones(4, np.float64), 1e-5], {}),
        ("rms_norm", ["x", np.ones(5, np.float32), 1e-5], {}),
        ("add", ["x", np.ones(3, np.float32)], {}),
        ("unflatten", ["x", -1, [3, 2]], {}),
        ("getitem", [[1, 2], 7], {}),
        ("encoder_attention", ["x", "x", "x", 3, 1.0], {}),
        ("self_attention", [*ROTATED, ANGLES.astype(np.float16), ANGLES], {}),
        ("self_attention", [*ROTATED, ANGLES, ANGLES[0]], {}),
        ("self_attention", [*ROTATED, ANGLES, None], {}),
        ("self_attention", [*ROTATED, ANGLES, "x"], {}),
    ],
)
def test_sizes_that_do_not_fit_are_found(operation: str, arguments: Any, keywords: Any) -> None:
    builder = Builder()
    known = {
        "x": builder.outer(np.zeros((1, 2, 4), np.float32)),
        "matrix": Matrix(Format.F32, 3, 5, np.zeros(1, np.uint8)),
        "cache": builder.outer(np.zeros((1, 1, 8, 4), np.float32)),
        "lengths": builder.outer(np.zeros(1, np.int32)),
    }
    given_ = [known[argument] if isinstance(argument, str) else argument for argument in arguments]
    with pytest.raises((ValueError, IndexError)):
        OPERATIONS[operation](builder, *given_, **keywords)


def test_tables_of_angles_that_fit_are_taken() -> None:
    builder = Builder()
    x = builder.outer(np.zeros((1, 2, 4), np.float32))
    cache = builder.outer(np.zeros((1, 1, 8, 4), np.float32))
    lengths = builder.outer(np.zeros(1, np.int32))
    rotated = [x, x, x, cache, cache, lengths, *ROTATED[6:], ANGLES, ANGLES]
    assert OPERATIONS["self_attention"](builder, *rotated).sizes == x.sizes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.update(version=99), "it is not of the version"),
        (lambda fields: fields["steps"][0].update(operation="system"), "unknown operations"),
        (lambda fields: fields["steps"].pop(3), "cannot be run here"),
        (lambda fields: fields["inputs"].append("more"), "does not fit bundle.json"),
    ],
)
def test_a_damaged_program_is_one_line(tmp_path: Path, change: Any, message: str) -> None:
    folder = shutil.copytree(bundle(SMALL, runtime="native"), tmp_path / "bundle")
    manifest = read_bundle(folder)
    path = folder / "native/encode.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))

    with pytest.raises(KvcastError, match=message) as caught:  # noqa: PT012
        runtime = TARGETS["native"].open("whisper", folder, manifest, 1)
        runtime.encode(runtime.new_cache(1, 8, 1), [0], *speech(1, 0))
    assert "encode.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_number_past_32_bits_is_refused_rather_than_cut() -> None:
    words = np.array([int(Operation.CROSS_ATTENTION), 1, (1 << 32) + 1], np.int64)
    with pytest.raises(KvcastError, match="too large"):
        Machine(1).run(words)
