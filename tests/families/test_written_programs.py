"""The programs that families write are those that PyTorch traces from the modules."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from families.traced_programs import traced
from kit.dimensions import CROSS_BIASED_T5, DECODERS, LLAMA, SMALL, SMALL_T5, UNILMS
from kit.models import random_programs, random_tensors
from kvcast.families.programs import CacheArgument, ProgramSignature, Shape
from kvcast.families.table import family_with
from kvcast.runtimes.lowering.signatures import signatures_of
from kvcast.spec.program import WRITES, Constant, Node, Program
from kvcast.spec.self_attention import SelfAttention

CASES = [
    SMALL,
    replace(SMALL, encoder_layers=2, decoder_layers=1, alignment_heads=()),
    SMALL_T5,
    CROSS_BIASED_T5,
    replace(SMALL_T5, gated=False, activation="silu", logit_scale=0.125),
    *DECODERS,
    replace(LLAMA, out_bias=True, qkv_bias=True),
    *UNILMS,
]
QUICK = [SMALL, CROSS_BIASED_T5, *DECODERS[-2:], UNILMS[1]]
_ALL = (1 << 63) - 1


class Canonical:
    """A program as expressions of its inputs and constants, whatever its steps are called."""

    def __init__(
        self,
        program: Program,
        signature: ProgramSignature,
        constants: Mapping[str, NDArray[Any]],
    ) -> None:
        self._program = program
        self._shapes = dict(zip(signature.inputs, shapes_of(signature), strict=True))
        self._constants = constants
        self._steps = {step.name: step for step in program.steps}
        self._known: dict[str, Any] = {}

    def form(self) -> Any:
        outputs = {name: self._node(node) for name, node in self._program.outputs.items()}
        written = [self._node(s.name) for s in self._program.steps if s.operation in WRITES]
        return list(self._program.inputs), outputs, written

    def _node(self, name: str) -> Any:
        if name not in self._steps:
            return name
        step = self._steps[name]
        if step.operation == "slice" and list(step.arguments[1:]) in ([0, 0, _ALL], [1, 0, _ALL]):
            return self._part(step.arguments[0])
        if name not in self._known:
            self._known[name] = hash(self._expression(name))
        return self._known[name]

    def _expression(self, name: str) -> Any:
        step = self._steps[name]
        arguments, keywords = list(step.arguments), dict(step.keywords)
        if step.operation == "flatten" and arguments[1:] == [0, -2]:
            arguments[2] = 1  # of three axes
        if step.operation == "size":  # that several inputs may have
            return self._shapes[arguments[0].name][arguments[1]]
        if step.operation == "self_attention":
            arguments = list(SelfAttention(*arguments))
        if step.operation in ("add", "maximum"):  # whose arguments may change places
            arguments.sort(key=lambda argument: hash(self._part(argument)))
        parts = [self._part(argument) for argument in arguments]
        named = sorted((key, self._part(value)) for key, value in keywords.items())
        return step.operation, tuple(parts), tuple(named)

    def _part(self, given: Any) -> Any:
        if isinstance(given, Node):
            return self._node(given.name)
        if isinstance(given, Constant):
            return self._content(given.name), given.bias and self._content(given.bias)
        if isinstance(given, list | tuple):
            return tuple(map(self._part, given))
        return given

    def _content(self, name: str) -> Any:
        array = np.ascontiguousarray(self._constants[name])
        return array.shape, str(array.dtype), array.tobytes()


def shapes_of(signature: ProgramSignature) -> list[Shape]:
    """Return the shape of each flattened argument."""
    return [
        shape
        for argument in signature.arguments
        for shape in argument.shapes
        for _ in range(2 if isinstance(argument, CacheArgument) else 1)
    ]


@pytest.mark.parametrize(
    "dimensions",
    [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
    ids=str,
)
def test_written_programs_are_the_traced_ones(dimensions):
    family = family_with(dimensions)
    tensors = random_tensors(dimensions)
    constants = tensors | family.constants(dimensions, tensors)
    written = family.written(dimensions)
    signatures = signatures_of(random_programs(dimensions))
    assert written.keys() == signatures.keys()
    for name, signature in signatures.items():
        expected, expected_constants = traced(name, signature)
        described = family.programs(dimensions)[name]
        form = Canonical(expected, described, expected_constants).form()
        assert Canonical(written[name], described, constants).form() == form
