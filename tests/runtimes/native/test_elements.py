"""Elementwise operations and gathering against NumPy; arrays end where memory ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.native.opcodes import Activation, Dtype, Element, Operation
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import activated, address, all_instructions, call, machine

Array = NDArray[Any]

TYPES: dict[Dtype, Any] = {
    Dtype.F32: np.float32,
    Dtype.F16: np.float16,
    Dtype.I32: np.int32,
    Dtype.I64: np.int64,
    Dtype.BOOL: np.bool_,
}
INTEGERS = (Dtype.I32, Dtype.I64)
EXACT: dict[Element, Callable[..., Array]] = {
    Element.COPY: lambda a: a,
    Element.ADD: np.add,
    Element.SUB: np.subtract,
    Element.MUL: np.multiply,
    Element.MAXIMUM: np.maximum,
    Element.MINIMUM: np.minimum,
    Element.LT: np.less,
    Element.GE: np.greater_equal,
    Element.EQ: np.equal,
    Element.WHERE: lambda a, b, c: np.where(a != 0, b, c),
}
ACTIVATIONS = {
    Element.TANH: Activation.TANH,
    Element.GELU: Activation.GELU,
    Element.GELU_TANH: Activation.GELU_TANH,
    Element.SILU: Activation.SILU,
    Element.RELU: Activation.RELU,
}


def laid_out(data: st.DataObject, values: Array) -> Array:
    """Return values in guarded memory with their axes in any order."""
    order = data.draw(st.permutations(range(values.ndim)))
    return guarded(np.ascontiguousarray(values.transpose(order))).transpose(np.argsort(order))


def drawn(data: st.DataObject, dtype: Dtype, shape: tuple[int, ...]) -> Array:
    """Return numbers whose sums and products are exact; some are the same along an axis."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    axis = data.draw(st.integers(0, 2 * len(shape)))
    once = tuple(1 if i == axis else size for i, size in enumerate(shape))
    quarters = rng.integers(-39, 40, once) / 4
    return np.broadcast_to(laid_out(data, quarters.astype(TYPES[dtype])), shape)


def run(
    threads: int, instructions: str, operation: Element, out: tuple[Dtype, Array], *inputs: Any
) -> None:
    def words(dtype: Dtype, array: Array) -> list[int]:
        return [address(array), dtype, *(stride // array.itemsize for stride in array.strides)]

    given = [word for operand in inputs for word in words(*operand)]
    shape = out[1].shape
    runner = machine(threads, instructions)
    call(runner, Operation.ELEMENTS, operation, *shape, *words(*out), len(inputs), *given)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_elements_are_numpys(data: st.DataObject) -> None:
    sizes = st.tuples(*[st.integers(1, 6)] * 4)
    shape = data.draw(st.one_of(sizes, st.sampled_from([(2, 1, 3, 40), (3, 2, 90, 64)])))
    operation = data.draw(st.sampled_from([*EXACT]))
    count = {Element.COPY: 1, Element.WHERE: 3}.get(operation, 2)
    kinds = [data.draw(st.sampled_from([*TYPES])) for _ in range(count)]
    if operation == Element.WHERE:
        kinds[0] = Dtype.BOOL
    kind = data.draw(st.sampled_from([*TYPES]))
    inputs = [drawn(data, dtype, shape) for dtype in kinds]
    expected = EXACT[operation](*(operand.astype(np.float64) for operand in inputs))
    if kind in INTEGERS:
        expected = np.trunc(expected)
    given = list(zip(kinds, inputs, strict=True))
    for instructions in all_instructions():
        out = laid_out(data, np.zeros(shape, TYPES[kind]))
        run(data.draw(st.integers(1, 3)), instructions, operation, (kind, out), *given)
        np.testing.assert_array_equal(out, expected.astype(TYPES[kind]))


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([Element.DIV, *ACTIVATIONS]))
def test_quotients_and_activations_are_numpys(data: st.DataObject, operation: Element) -> None:
    x = drawn(data, Dtype.F32, (2, 3, 4, data.draw(st.integers(1, 40))))
    given, margin = [(Dtype.F32, x)], 1e-6
    if operation == Element.DIV:
        divisors = np.where(x == 0, np.float32(3), x).astype(np.float16)
        given.append((Dtype.F16, laid_out(data, divisors)))
        expected, margin = x / divisors.astype(np.float32), 0
    else:
        expected = activated(ACTIVATIONS[operation], x.astype(np.float64))
    for instructions in all_instructions():
        out = laid_out(data, np.zeros(x.shape, np.float32))
        run(2, instructions, operation, (Dtype.F32, out), *given)
        np.testing.assert_allclose(out, expected, rtol=margin, atol=margin)


@pytest.mark.parametrize("kind", INTEGERS)
def test_floats_become_the_nearest_integers_towards_zero(kind: Dtype) -> None:
    """On every processor, whatever its own conversion does with what does not fit."""
    limits = np.iinfo(TYPES[kind])
    cases = {1.75: 1, -1.75: -1, np.nan: 0, np.inf: limits.max, -np.inf: limits.min}
    cases |= {1e30: limits.max, -1e30: limits.min, float(limits.min): limits.min}
    x = guarded(np.array([[[[*cases]]]], np.float32))
    for instructions in all_instructions():
        out = guarded(np.zeros(x.shape, TYPES[kind]))
        run(1, instructions, Element.COPY, (kind, out), (Dtype.F32, x))
        assert out.ravel().tolist() == [*cases.values()]


def gather(threads: int, instructions: str, x: Array, index: Array, out: Array, limit: int) -> None:
    strides = [[stride // 4 for stride in array.strides] for array in (x, out)]
    words = [*out.shape, address(index), limit, address(x), *strides[0], address(out), *strides[1]]
    call(machine(threads, instructions), Operation.GATHER, *words)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 300)))
def test_gathering_is_numpys(data: st.DataObject, shape: tuple[int, int, int]) -> None:
    x = drawn(data, Dtype.F32, shape)
    index = guarded(np.array(data.draw(st.lists(st.integers(0, shape[1] - 1), max_size=80)), int))
    expected = x[:, index]
    for instructions in all_instructions():
        out = laid_out(data, np.zeros(expected.shape, np.float32))
        gather(data.draw(st.integers(1, 3)), instructions, x, index, out, shape[1])
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("wrong", [-1, 4, 2**40])
def test_an_index_past_its_axis_is_told(wrong: int) -> None:
    x, index = np.zeros((2, 4, 3), np.float32), np.array([0, wrong, 1])
    out = np.ones((2, 3, 3), np.float32)
    for instructions in all_instructions():
        with pytest.raises(KvcastError, match="past its axis"):
            gather(1, instructions, x, index, out, 4)
    assert (out == 1).all()
