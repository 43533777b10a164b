"""Views of values are torch's, and none leaves its storage."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvcast.runtimes.native.values import Value, lines_of

SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def as_torch(value: Value, numbers: torch.Tensor) -> torch.Tensor:
    return numbers.flatten().as_strided(value.sizes, value.strides, value.offset)


def fresh(sizes: list[int]) -> tuple[Value, torch.Tensor]:
    numbers = torch.arange(float(np.prod(sizes))).reshape(sizes)
    return Value.of(numbers.numpy()), numbers


@given(data=st.data(), sizes=SIZES)
def test_views_are_torchs(data: st.DataObject, sizes: list[int]) -> None:
    value, given_numbers = fresh(sizes)
    expected = given_numbers
    for _ in range(data.draw(st.integers(1, 4))):
        axes = st.integers(0, expected.dim() - 1)
        match data.draw(st.sampled_from(["transpose", "part", "unsqueeze", "unflatten"])):
            case "transpose":
                first, second = data.draw(axes), data.draw(axes)
                value = value.transposed(first, second)
                expected = expected.transpose(first, second)
            case "part":
                axis = data.draw(axes)
                first = data.draw(st.integers(0, expected.shape[axis] - 1))
                size = data.draw(st.integers(1, expected.shape[axis] - first))
                value, expected = value.part(axis, first, size), expected.narrow(axis, first, size)
            case "unsqueeze":
                axis = data.draw(axes)
                value, expected = value.unsqueezed(axis), expected.unsqueeze(axis)
            case _:
                axis = data.draw(axes)
                parts = [expected.shape[axis], 1]
                value, expected = value.unflattened(axis, parts), expected.unflatten(axis, parts)
    assert value.sizes == tuple(expected.shape)
    assert torch.equal(as_torch(value, given_numbers), expected)
    flat = value.flattened(0, -1)
    if flat is not None:
        assert torch.equal(as_torch(flat, given_numbers), expected.flatten())
    else:
        assert not expected.is_contiguous()
    strided = lines_of(value)
    if strided is not None:
        shape, strides = (strided.rows, strided.width), (strided.stride, 1)
        lines = given_numbers.flatten().as_strided(shape, strides, strided.value.offset)
        assert torch.equal(lines.flatten(), expected.flatten())


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda x: x.part(1, 2, 2), "does not fit into its storage"),
        (lambda x: x.viewed((3, 3), (3, 1), 1), "does not fit into its storage"),
        (lambda x: x.viewed((2,), (-1,), 1), "does not fit into its storage"),
        (lambda x: x.unflattened(0, [2, 2]), "cannot be divided"),
        (lambda x: x.unflattened(0, [2, -1]), "cannot be divided"),
        (lambda x: x.broadcast([3, 4]), "cannot be repeated"),
        (lambda x: x.broadcast([3]), "cannot be repeated"),
    ],
)
def test_no_view_leaves_its_storage(view, message: str) -> None:
    value = Value.of(np.zeros((3, 3), np.float32))
    with pytest.raises(ValueError, match=message):
        view(value)
