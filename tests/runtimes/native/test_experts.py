"""Mixtures of experts: each token's are products that are tested elsewhere, and its alone."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcast.errors import KvcastError
from kvcast.runtimes.native.library import Format, Machine
from kvcast.runtimes.native.opcodes import Activation, Operation, bits
from runtimes.native.guarded import guarded
from runtimes.native.native_calls import (
    BUNDLE_FORMATS,
    Floats,
    Matrix,
    Rounded,
    address,
    all_instructions,
    call,
    flat,
    machine,
    multiply,
    rounded,
    strided,
    untouched,
)

formats = st.sampled_from(BUNDLE_FORMATS)


class Stack:
    """Random experts, packed for a machine; `read` are those whose tiles may be read."""

    def __init__(self, rng: np.random.Generator, format_: Format, count: int, *sizes: int) -> None:
        self.matrices = [Matrix(rng, format_, *sizes, bias=False) for _ in range(count)]
        self.format, self.sizes = format_, sizes

    def packed(self, runner: Machine, read: set[int]) -> list[NDArray[np.uint8]]:
        nothing = np.zeros(0, np.uint8)
        return [
            matrix.packed(runner) if i in read else guarded(nothing)
            for i, matrix in enumerate(self.matrices)
        ]


def stacks_of(
    rng: np.random.Generator, kinds: tuple[Format, Format], experts: int, width: int, inner: int
) -> tuple[Stack, Stack]:
    up = Stack(rng, kinds[0], experts, 2 * inner, width)
    return up, Stack(rng, kinds[1], experts, width, inner)


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighed, and the same of one token in NumPy."""

    sigmoid: bool = False
    normalised: bool = True
    groups: int = 1
    groups_each: int = 1
    best: int = 1
    epsilon: float = 0.0
    scale: float = 1.0
    bias: Floats | None = None
    scales: Floats | None = None

    def scores(self, logits: Floats) -> Floats:
        return 1 / (1 + np.exp(-logits)) if self.sigmoid else np.exp(logits) / np.exp(logits).sum()

    def choice(self, logits: Floats, each: int) -> NDArray[np.intp]:
        ranks = self.scores(logits) + (0 if self.bias is None else self.bias)
        of_groups = np.sort(ranks.reshape(self.groups, -1))[:, ::-1][:, : self.best].sum(-1)
        lost = np.argsort(-of_groups, kind="stable")[self.groups_each :]
        ranks.reshape(self.groups, -1)[lost] = -np.inf
        return np.argsort(-ranks, kind="stable")[:each]

    def shares(self, logits: Floats, chosen: NDArray[np.intp]) -> Floats:
        shares: Floats = self.scores(logits)[chosen]
        if self.normalised:
            shares = shares / (shares.sum() + self.epsilon)
        return shares * self.scale * (1 if self.scales is None else self.scales[chosen])


def drawn_routing(data: st.DataObject, rng: np.random.Generator, experts: int) -> Routing:
    """With distinct biases, or none, so that rounding decides no choice."""
    groups = data.draw(st.sampled_from([n for n in range(1, experts + 1) if experts % n == 0]))
    sigmoid, factors = data.draw(st.booleans()), data.draw(st.booleans())
    return Routing(
        sigmoid=sigmoid,
        normalised=data.draw(st.booleans()),
        groups=groups,
        groups_each=data.draw(st.integers(1, groups)),
        best=data.draw(st.integers(1, experts // groups)),
        epsilon=0.25 if sigmoid else 0.0,
        scale=data.draw(st.sampled_from([1.0, 2.5])),
        bias=rng.normal(size=experts).astype(np.float32) if data.draw(st.booleans()) else None,
        scales=rng.normal(size=experts).astype(np.float32) if factors else None,
    )


def mixed(
    runner: Machine,
    x: Floats,
    logits: Floats,
    stacks: tuple[Stack, Stack],
    each: int,
    pad: int = 0,
    *,
    routing: Routing = Routing(),
    clamp: tuple[float, float] = (0.0, 0.0),
    biases: tuple[Floats, Floats] | None = None,
) -> Floats:
    chosen = {int(i) for row in logits for i in routing.choice(row, each)}
    tiles = [stack.packed(runner, chosen) for stack in stacks]
    addresses = [guarded(np.array([tile.ctypes.data for tile in of])) for of in tiles]
    is_float = stacks[0].format == Format.F32
    floats, codes = (strided(x, x.shape[1] + pad), None) if is_float else (None, rounded(x))
    apart = strided(logits, logits.shape[1] + pad)
    out = strided(np.zeros_like(x), x.shape[1] + pad)
    words: list[int] = [*logits.shape, each, *flat(apart)]
    for stack, of in zip(stacks, addresses, strict=True):
        words += [stack.format, *stack.sizes, address(of)]
    words += [*flat(floats), address(codes.data if codes else None), Activation.SILU]
    factors = [None if part is None else guarded(part) for part in (routing.bias, routing.scales)]
    words += [routing.sigmoid, routing.normalised, routing.groups, routing.groups_each]
    words += [routing.best, bits(routing.epsilon), bits(routing.scale), *map(address, factors)]
    kept = [None, None] if biases is None else [guarded(bias) for bias in biases]
    words += [*map(bits, clamp), *map(address, kept), *flat(out)]
    call(runner, Operation.MIXTURE, *words)
    assert not pad or untouched(out)
    return out.copy()


def product(runner: Machine, matrix: Matrix, row: Floats) -> Floats:
    out = np.empty((1, matrix.shape[0]), np.float32)
    given = row if matrix.format == Format.F32 else rounded(row)
    multiply(runner, matrix, matrix.packed(runner), given, out=out)
    return out


def answer(runner: Machine, up: Matrix, down: Matrix, row: Floats) -> Floats:
    """Return one expert's result for a token."""
    hidden, inner = product(runner, up, row), down.shape[1]
    gated = np.empty((1, inner), np.float32)
    halves = (address(hidden), 2 * inner, address(hidden[:, inner:]), 2 * inner)
    codes = Rounded(1, inner)
    words = (*halves, 1, inner, Activation.SILU, *flat(gated), address(codes.data))
    call(runner, Operation.GATED, *words)
    out = np.empty((1, down.shape[0]), np.float32)
    given = gated if down.format == Format.F32 else codes
    multiply(runner, down, down.packed(runner), given, out=out)
    return out


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    kinds=st.tuples(formats, formats),
    tokens=st.integers(1, 12),
    experts=st.integers(1, 12),
    width=st.integers(1, 150),
    inner=st.integers(1, 150),
    pad=st.integers(0, 40),
    data=st.data(),
)
def test_a_token_goes_through_its_best_experts_whatever_is_beside_it(
    seed: int,
    kinds: tuple[Format, Format],
    tokens: int,
    experts: int,
    width: int,
    inner: int,
    pad: int,
    data: st.DataObject,
) -> None:
    """Experts that nobody chose have no memory, so reading them would end the process."""
    rng = np.random.default_rng(seed)
    routing = drawn_routing(data, rng, experts)
    each = data.draw(st.integers(1, routing.groups_each * experts // routing.groups))
    x = rng.normal(size=(tokens, width)).astype(np.float32)
    # Equally high ones too, but no two sums of different sigmoids.
    logits = (rng.integers(-3, 3, (tokens, experts)) + 0.3).astype(np.float32)
    stacks = stacks_of(rng, kinds, experts, width, inner)
    for name in all_instructions():
        runner = machine(1, name)
        options: dict[str, Any] = {"routing": routing}
        actual = mixed(runner, x, logits, stacks, each, pad, **options)
        others = mixed(machine(3, name), x, logits, stacks, each, **options)
        np.testing.assert_array_equal(others, actual)
        token = data.draw(st.integers(0, tokens - 1))
        row = x[token : token + 1]
        own = logits[token : token + 1]
        alone = mixed(machine(2, name), row, own, stacks, each, **options)
        np.testing.assert_array_equal(alone[0], actual[token])
        best = routing.choice(logits[token], each)
        answers = np.concatenate(
            [answer(runner, stacks[0].matrices[i], stacks[1].matrices[i], row) for i in best]
        )
        expected = routing.shares(logits[token], best) @ answers
        error = 1e-5 * np.abs(answers).max(initial=1e-6)
        np.testing.assert_allclose(actual[token], expected, atol=error, rtol=1e-5)


def test_a_token_goes_through_no_more_experts_than_there_are() -> None:
    rng = np.random.default_rng(0)
    stacks = stacks_of(rng, (Format.F32, Format.F32), 2, 4, 4)
    x, logits = np.ones((1, 4), np.float32), np.zeros((1, 2), np.float32)
    for each in (0, 3):
        with pytest.raises(KvcastError, match="a token goes through"):
            mixed(machine(1, "plain"), x, logits, stacks, each)
    for groups in (Routing(groups=2), Routing(groups=2, groups_each=3), Routing(best=3)):
        with pytest.raises(KvcastError, match="a token's groups"):
            mixed(machine(1, "plain"), x, logits, stacks, 2, routing=groups)


def test_gates_may_be_clamped_and_matrices_have_biases() -> None:
    """Beside the plain rule, in fp32, all experts for each token."""
    rng, (tokens, experts, width, inner) = np.random.default_rng(1), (5, 3, 40, 24)
    x = rng.normal(size=(tokens, width)).astype(np.float32)
    logits = rng.normal(size=(tokens, experts)).astype(np.float32)
    stacks = stacks_of(rng, (Format.F32, Format.F32), experts, width, inner)
    biases = [rng.normal(size=(experts, n)).astype(np.float32) for n in (2 * inner, width)]
    alpha, limit = 1.7, 2.0
    expected = np.zeros((tokens, width))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for expert in range(experts):
        up, down = (stack.matrices[expert] for stack in stacks)
        runner = machine(1, "plain")
        hidden = np.concatenate([product(runner, up, row[None]) for row in x]) + biases[0][expert]
        gate, other = hidden[:, :inner].clip(None, limit), hidden[:, inner:].clip(-limit, limit)
        inside = (gate / (1 + np.exp(-alpha * gate)) * (other + 1)).astype(np.float32)
        answers = np.concatenate([product(runner, down, row[None]) for row in inside])
        expected += shares[:, expert, None] * (answers + biases[1][expert])
    for name in all_instructions():
        options: dict[str, Any] = {"clamp": (alpha, limit), "biases": tuple(biases)}
        actual = mixed(machine(2, name), x, logits, stacks, experts, **options)
        np.testing.assert_allclose(actual, expected, atol=1e-4 * np.abs(expected).max())
