"""The search for int4 blocks: how near they are."""

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcast.runtimes.native.matrices import searched
from kvcast.spec.stored_matrices import CodedMatrix


def in_whole_range(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the nearest of 16 even steps from a block's least number to its greatest."""
    blocks = matrix.reshape(-1, 32)
    least = blocks.min(-1, keepdims=True)
    step = np.maximum((blocks.max(-1, keepdims=True) - least) / 15, 1e-30)
    return (np.rint((blocks - least) / step) * step + least).reshape(matrix.shape)


def error(values: NDArray[np.float32], matrix: NDArray[np.float32]) -> float:
    return float(np.square(values - matrix).mean() / matrix.var())


@pytest.mark.parametrize(("shift", "tail"), [(0, 0.0), (3, 0.0), (0, 0.5)])
def test_the_search_beats_the_whole_range(shift: float, tail: float) -> None:
    generator = np.random.default_rng(0)
    matrix = generator.normal(shift, 1, (48, 96)) + tail * generator.standard_t(3, (48, 96))
    matrix = matrix.astype(np.float32)
    blocks = searched(matrix)
    assert blocks.codes.dtype == np.uint8
    assert blocks.codes.max() == 15
    assert error(blocks.dequantize(), matrix) < 0.9 * error(in_whole_range(matrix), matrix)


def test_even_steps_and_constant_blocks_are_exact() -> None:
    steps = np.random.default_rng(1).integers(0, 16, (8, 64)).astype(np.float32)
    steps[:, 0], steps[:, 1] = 0, 15
    matrix = (steps / 8 - 1).astype(np.float32)
    matrix[3], matrix[4], matrix[5] = 0, 0.5, -0.25
    np.testing.assert_array_equal(searched(matrix).dequantize(), matrix)


def test_errors_count_by_the_weights_of_their_inputs() -> None:
    generator = np.random.default_rng(2)
    matrix = generator.normal(size=(100, 96)).astype(np.float32)
    weights = np.exp(2 * generator.normal(size=96)).astype(np.float32)

    def weighted_error(blocks: CodedMatrix) -> float:
        return float((weights * np.square(blocks.dequantize() - matrix)).mean())

    assert weighted_error(searched(matrix, weights)) < 0.8 * weighted_error(searched(matrix))


def test_only_what_weights_are_to_each_other_in_a_block_matters() -> None:
    matrix = np.random.default_rng(3).normal(size=(20, 64)).astype(np.float32)
    weights = np.repeat(np.float32([1e-30, 1e30]), 32)
    blocks, expected = searched(matrix, weights), searched(matrix)
    np.testing.assert_array_equal(blocks.dequantize(), expected.dequantize())
