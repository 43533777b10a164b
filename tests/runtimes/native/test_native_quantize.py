"""Matrices as kvcast's own kernels read them: their codes, and which matrices become what."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcast.runtimes.native.matrices import Kind, kinds, roles_of, searched, store_matrix
from kvcast.spec.program import Constant, Node, Program, Step
from kvcast.spec.stored_matrices import CodedMatrix, joined, no_blocks, rounded
from runtimes.lowering.test_block_search import error


def test_numbers_too_great_for_halves_stay_finite() -> None:
    matrix = np.full((2, 32), 1e30, np.float32)
    matrix[1, 7] = -1e30
    for blocks in (searched(matrix), rounded(matrix)):
        assert np.isfinite(blocks.dequantize()).all()


def test_rounded_blocks_are_within_half_a_step() -> None:
    matrix = np.random.default_rng(2).normal(size=(5, 96)).astype(np.float32)
    matrix[2, :32] = 0
    blocks = rounded(matrix)
    steps = np.repeat(blocks.scales.astype(np.float32), 32, axis=1)
    # A scale as a half may be a little too small for the greatest number.
    assert (np.abs(blocks.dequantize() - matrix) <= steps * (0.5 + 127 / 2048)).all()


def test_joined_matrices_of_one_kind_keep_their_codes_and_others_get_eight_bits() -> None:
    matrix = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)
    four, eight = searched(matrix[:4]), rounded(matrix[4:])
    both = joined([four, searched(matrix[4:])])
    assert both.least is not None
    np.testing.assert_array_equal(both.dequantize()[:4], four.dequantize())
    mixed = joined([four, eight])
    assert mixed.least is None
    np.testing.assert_array_equal(mixed.codes[4:], eight.codes)
    assert error(mixed.dequantize()[:4], four.dequantize()) < 1e-4


def linear(name: str, x: str) -> Step:
    return Step(name, "linear", [Node(x), Constant(f"{name}.weight")])


def program(output: str, steps: Sequence[Step]) -> Program:
    return Program(inputs=["tokens", "hidden"], outputs={output: steps[-1].name}, steps=steps)


def test_tables_heads_and_what_many_tokens_share_keep_eight_bits() -> None:
    embedding = Step("table", "embedding", [Constant("tied.weight"), Node("tokens")])
    read = Step("read", "cross_attention", [Node("shared")])
    middle = [linear("shared", "table"), read, linear("up", "read")]
    capped = [linear("head", "up"), Step("capped", "tanh", [Node("head")])]
    steps = {
        "encode": program("cross", [linear("shared", "hidden"), linear("cross", "shared")]),
        "decode": program("logits", [embedding, *middle, *capped]),
        "score": program("logits", [embedding, linear("tied", "table")]),
        "pool": program("pooled", [linear("pooler", "hidden")]),
    }
    programs = {name: roles_of(program_steps) for name, program_steps in steps.items()}
    assert kinds(programs, "int4") == {
        "shared.weight": Kind.INT4,
        "cross.weight": Kind.INT8,
        "up.weight": Kind.INT4,
        "head.weight": Kind.TABLE,
        "tied.weight": Kind.TABLE,
        "pooler.weight": Kind.INT8,
    }
    assert set(kinds(programs, "int8").values()) == {Kind.INT8}
    alone = {"decode": programs["decode"]}
    assert set(kinds(alone, "int8").values()) == {Kind.INT8_BLOCK}
    of_audio = {
        "encode": roles_of(program("cross", [linear("cross", "hidden")])),
        "decode": roles_of(program("logits", [embedding, *middle[:1], linear("up", "shared")])),
    }
    assert kinds(of_audio, "int8") == {
        "cross.weight": Kind.INT8,
        "shared.weight": Kind.INT8_BLOCK,
        "up.weight": Kind.INT8_BLOCK,
    }
    assert set(kinds(programs, "none").values()) == {Kind.EXACT}


@pytest.mark.parametrize("kind", [Kind.INT4, Kind.INT8_BLOCK, Kind.TABLE])
def test_inputs_that_are_no_multiple_of_a_block_become_int8(kind: Kind) -> None:
    matrix = np.random.default_rng(4).normal(size=(3, 40)).astype(np.float32)
    tensors = store_matrix("m", matrix, kind, no_blocks)
    dtypes = {name: array.dtype for name, array in tensors.items()}
    assert dtypes == {"m.codes": np.int8, "m.scales": np.float32}


@pytest.mark.parametrize("kind", list(Kind)[1:])
def test_a_checkpoints_codes_are_kept_but_four_bits_where_int8_is_asked_for(kind: Kind) -> None:
    matrix = np.random.default_rng(5).normal(size=(3, 64)).astype(np.float32)

    def files(own: CodedMatrix) -> dict[str, NDArray[np.generic]]:
        return store_matrix("m", matrix, kind, {"m": own}.get)

    np.testing.assert_array_equal(files(rounded(2 * matrix))["m.codes"], rounded(2 * matrix).codes)
    four = searched(2 * matrix)
    tensors = files(four)
    if kind in (Kind.INT8, Kind.INT8_BLOCK):
        assert tensors["m.codes"].dtype == np.int8
    else:
        low, high = tensors["m.codes"] & 15, tensors["m.codes"] >> 4
        np.testing.assert_array_equal(np.stack([low, high], -1).reshape(3, 64), four.codes)
        np.testing.assert_array_equal(tensors["m.least"], four.least)


@pytest.mark.parametrize("kind", [Kind.INT8, Kind.INT4, Kind.INT8_BLOCK])
def test_experts_are_matrices_of_their_own(kind: Kind) -> None:
    matrices = np.random.default_rng(6).normal(size=(2, 3, 64)).astype(np.float32)
    tensors = store_matrix("m", matrices, kind, no_blocks)
    for i, matrix in enumerate(matrices):
        for name, array in store_matrix("m", matrix, kind, no_blocks).items():
            np.testing.assert_array_equal(tensors[name][i], array)
    flat = rounded(matrices.reshape(6, 64))
    own = store_matrix("m", matrices, kind, {"m": flat}.get)
    np.testing.assert_array_equal(own["m.codes"], flat.codes.reshape(matrices.shape))


def test_a_router_stays_as_it_is() -> None:
    mixed = [Node("tokens"), Node("router"), Constant("gate_up"), Constant("down"), 2]
    steps = [
        linear("router", "tokens"),
        Step("mixed", "mixture_of_experts", mixed),
        linear("head", "mixed"),
    ]
    expected = {"gate_up": Kind.INT4, "down": Kind.INT4, "head.weight": Kind.TABLE}
    assert kinds({"decode": roles_of(program("logits", steps))}, "int4") == expected
