"""A native bundle's weights: tiles hold the numbers that a file's codes stand for, or it fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from kvcast.checkpoints.gguf.dequantize import read_blocks
from kvcast.errors import KvcastError
from kvcast.runtimes.native.interpreter import planned
from kvcast.runtimes.native.library import Machine, aligned, instruction_sets
from kvcast.runtimes.native.matrices import Kind, searched, store_matrix
from kvcast.runtimes.native.weights import BundleWeights, packed_constants
from kvcast.runtimes.opening import naming
from kvcast.spec.program import Constant, Node, Program, Step
from kvcast.spec.stored_matrices import no_blocks, rounded

# A table that is looked up and multiplied, so that it is packed.
PROGRAM = Program(
    inputs=["ids"],
    outputs={"rows": "rows", "products": "products"},
    steps=[
        Step("rows", "embedding", [Constant("m"), Node("ids")]),
        Step("products", "linear", [Node("rows"), Constant("m")]),
    ],
)


def opened(path: Path) -> None:
    with naming(path):
        packed_constants(Machine(1), [PROGRAM], BundleWeights(path))


def rows_of(path: Path, shape: tuple[int, ...], instructions: str) -> NDArray[np.float32]:
    """Look up all rows of the matrix `m` in its tiles."""
    machine = Machine(2, instructions)
    constants = packed_constants(machine, [PROGRAM], BundleWeights(path))
    ids, rows = np.arange(shape[0]), np.empty(shape, np.float32)
    outputs = {"rows": rows, "products": np.empty((shape[0], shape[0]), np.float32)}
    plan = planned(PROGRAM, constants, {"ids": ids}, outputs)
    arena = aligned(plan.arena)
    plan.words[plan.in_arena] += arena.ctypes.data
    machine.run(plan.words)
    near = np.abs(outputs["products"] - rows @ rows.T).mean() / np.abs(rows @ rows.T).mean()
    assert near < 0.03  # activations are rounded
    return rows


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_files_own_codes_stay_what_they_were_bit_for_bit(kind: str, tmp_path: Path) -> None:
    blocks = GGMLQuantizationType[kind]
    shape = (150, 96)
    raw = quantize(np.random.default_rng(0).normal(size=shape).astype(np.float32), blocks)
    want = dequantize(raw, blocks)
    own = read_blocks(kind, raw.reshape(-1), shape)
    save_file(store_matrix("m", want, Kind.INT4, {"m": own}.get), tmp_path / "w")
    for instructions in instruction_sets():
        np.testing.assert_array_equal(rows_of(tmp_path / "w", shape, instructions), want)


@pytest.mark.parametrize("kind", [Kind.INT4, Kind.INT8_BLOCK])
def test_chosen_codes_are_what_was_chosen(kind: Kind, tmp_path: Path) -> None:
    matrix = np.random.default_rng(1).normal(size=(70, 160)).astype(np.float32)
    save_file(store_matrix("m", matrix, kind, no_blocks), tmp_path / "w")
    want = (searched if kind is Kind.INT4 else rounded)(matrix).dequantize()
    rows = rows_of(tmp_path / "w", matrix.shape, instruction_sets()[0])
    np.testing.assert_array_equal(rows, want)


PARTS = {
    Kind.INT4: ("codes", "scales", "least"),
    Kind.INT8_BLOCK: ("codes", "scales"),
    Kind.INT8: ("scales",),
}
CHANGES: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "fewer outputs": lambda array: array[:-1],
    "other axes": lambda array: array[:, : array.shape[1] // 2] if array.ndim > 1 else array[None],
    "another dtype": lambda array: array.astype(np.int32),
    "nothing": lambda array: array[:0],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind in PARTS for part in PARTS[kind]])
def test_parts_that_do_not_fit_are_one_line(
    kind: Kind, part: str, change: str, tmp_path: Path
) -> None:
    matrix = np.random.default_rng(2).normal(size=(6, 64)).astype(np.float32)
    tensors = store_matrix("m", matrix, kind, no_blocks)
    name = f"m.{part}"
    tensors[name] = np.ascontiguousarray(CHANGES[change](tensors[name]))
    save_file(tensors, tmp_path / "w")
    with pytest.raises(KvcastError, match="fit") as caught:
        opened(tmp_path / "w")
    assert "\n" not in str(caught.value)


def test_a_part_that_is_missing_is_one_line(tmp_path: Path) -> None:
    matrix = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)
    whole = store_matrix("m", matrix, Kind.INT4, no_blocks)
    for name in whole:
        save_file({other: whole[other] for other in whole if other != name}, tmp_path / "w")
        with pytest.raises(KvcastError) as caught:
            opened(tmp_path / "w")
        assert "\n" not in str(caught.value)
