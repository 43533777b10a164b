"""Instructions of encoders of sound against PyTorch, in memory that ends where arrays end."""

import numpy as np
import pytest
import torch

from kvcast.models.ops.encoders import relative_scores
from kvcast.models.ops.operations import OPERATIONS
from kvcast.models.ops.states import channel_convolution
from kvcast.runtimes.native.opcodes import Activation, Operation
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import address, all_instructions, call, flat, machine, strided

CONVOLUTIONS = [
    # positions, bands, channels, length, breadth, stride, whether all channels are made of one
    (7, 5, 300, 3, 3, 2, False),
    (8, 6, 5, 3, 3, 2, True),
    (1, 1, 7, 9, 1, 1, False),
    (70, 1, 33, 5, 1, 1, False),
]


def numbers(shape, seed):
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return guarded(values)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("activation", [Activation.NONE, Activation.SILU])
def test_channels_are_convolved(case, activation):
    positions, bands, channels, length, breadth, stride, shared = case
    x = numbers((2, positions, bands, 1 if shared else channels), 0)
    kernel, bias = numbers((length, breadth, channels), 1), numbers((channels,), 2)
    tensors = [torch.from_numpy(np.array(array)) for array in (x, kernel, bias)]
    expected = channel_convolution(*tensors, stride)
    if activation == Activation.SILU:
        expected = torch.nn.functional.silu(expected)
    sizes = (2, positions, bands, channels, length, breadth, stride, shared)
    for name in all_instructions():
        for threads in (1, 3):
            out = guarded(np.full(expected.shape, np.nan, np.float32))
            given = address(x), address(kernel), address(bias), activation, address(out)
            call(machine(threads, name), Operation.CHANNEL_CONVOLUTION, *sizes, *given)
            np.testing.assert_allclose(out, expected.numpy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("positions", "head_dim"), [(1, 3), (33, 16), (64, 8), (65, 20), (150, 128)]
)
def test_scores_follow_distances(positions, head_dim):
    inputs, heads = 2, 3
    width = heads * head_dim
    generator = np.random.default_rng(0)
    query, key = (
        strided(generator.normal(size=(lines, width)).astype(np.float32), width + 3)
        for lines in (inputs * positions, 2 * positions)
    )
    expected = relative_scores(
        torch.from_numpy(np.array(query)).view(inputs, positions, width),
        torch.from_numpy(np.array(key)).view(2, positions, width),
        heads,
        0.5,
    ).numpy()
    for i, j in ((0, positions - 1), (positions - 1, 0), (positions // 2, positions // 2)):
        line = i - j if i >= j else positions + j - i
        product = query[positions + i, :head_dim] @ key[line, :head_dim]
        np.testing.assert_allclose(expected[1, 0, i, j], 0.5 * product, rtol=1e-4, atol=1e-4)
    for name in all_instructions():
        for threads in (1, 3):
            out = guarded(np.full(expected.shape, np.nan, np.float32))
            sizes = (inputs, positions, heads, head_dim)
            given = *flat(query), *flat(key), 0.5, address(out)
            call(machine(threads, name), Operation.RELATIVE_SCORES, *sizes, *given)
            np.testing.assert_allclose(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 42), (70, 348)])
def test_shares_of_a_line_are_its_softmax(rows, width):
    x = strided(np.random.default_rng(0).normal(0, 9, (rows, width)).astype(np.float32), width + 3)
    expected = torch.softmax(torch.from_numpy(np.array(x)), -1).numpy()
    for name in all_instructions():
        for threads in (1, 3):
            out = guarded(np.full((rows, width), np.nan, np.float32))
            call(machine(threads, name), Operation.SOFTMAX, rows, width, *flat(x), *flat(out))
            np.testing.assert_allclose(out, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 42), (70, 348)])
def test_moments_of_a_line(rows, width):
    x = strided(np.random.default_rng(0).normal(3, 9, (rows, width)).astype(np.float32), width + 3)
    expected = OPERATIONS["moments"](torch.from_numpy(np.array(x)))
    for name in all_instructions():
        for threads in (1, 3):
            out = guarded(np.full((rows, 3), np.nan, np.float32))
            call(machine(threads, name), Operation.MOMENTS, rows, width, *flat(x), *flat(out))
            np.testing.assert_allclose(out, expected.numpy(), atol=1e-5, rtol=1e-5)
