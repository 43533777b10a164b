"""Programs as bundles hold them, and their plans for calls of given sizes.

A program is a list of operations (`kvcast/runtimes/native/operations.py`) over inputs and
constants, with no size fixed that callers vary. It is written by
`kvcast/runtimes/native/lowering.py`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from kvcast.runtimes.native.building import Builder, Plan
from kvcast.runtimes.native.instructions import Dtype, Element
from kvcast.runtimes.native.operations import OPERATIONS, stored
from kvcast.runtimes.native.values import Value

WEIGHTS = "weights.safetensors"
"""The file beside programs with their constants."""

_VERSION, _READ = 2, (1, 2)  # 1 has no products with gates
_WRITES = frozenset({"self_attention"})


@dataclass(frozen=True)
class Node:
    """The result of an earlier operation, or an input, by its name."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A tensor or, with the bias that belongs to it, a matrix."""

    name: str
    bias: str | None = None


@dataclass(frozen=True)
class Step:
    """One operation: arguments are nodes, constants, numbers, strings, None and lists of these."""

    name: str
    operation: str
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The nodes among the arguments: each plan asks for them."""
        given = leaves((self.arguments, self.keywords))
        return frozenset(leaf.name for leaf in given if isinstance(leaf, Node))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program; `outputs` are nodes by the names that callers know."""

    inputs: Sequence[str]
    outputs: Mapping[str, str]
    steps: Sequence[Step]

    def constants(self) -> list[Constant]:
        """Return the constants that it reads, each once."""
        given = (leaf for step in self.steps for leaf in leaves((step.arguments, step.keywords)))
        return list(dict.fromkeys(leaf for leaf in given if isinstance(leaf, Constant)))

    def matrices(self, operation: str) -> set[str]:
        """Return the names of the matrices and tables of all operations of a kind."""
        steps = (step for step in self.steps if step.operation == operation)
        return {
            part.name for step in steps for part in step.arguments if isinstance(part, Constant)
        }

    def last_product(self, output: str) -> Step:
        """Return the product that makes an output; ValueError if there is none."""
        by_name = {step.name: step for step in self.steps}
        step = by_name.get(self.outputs[output])
        while step is not None and step.operation != "linear":
            first = next(leaves(step.arguments), None)
            step = by_name.get(first.name) if isinstance(first, Node) else None
        if step is None:
            raise ValueError(f"{output} is no product")
        return step

    def needed(self, outputs: Sequence[str]) -> list[Step]:
        """Return the steps without which some results, or a cache, would not be written."""
        wanted = {self.outputs.get(name, name) for name in outputs}
        kept = []
        for step in reversed(self.steps):
            if step.name in wanted or step.operation in _WRITES:
                kept.append(step)
                wanted |= step.reads
        return kept[::-1]

    def plan(
        self,
        constants: Mapping[Constant, Any],
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
    ) -> Plan:
        """Return the instructions of a call that reads these arrays and fills those.

        Outputs are the program's, or results of steps by their names. The caller keeps the arrays,
        which are the plan's arguments in their order, alive.
        """
        builder = Builder()
        known: dict[str, Any] = {name: builder.argument(array) for name, array in inputs.items()}

        def resolved(given: Any) -> Any:
            if isinstance(given, Node):
                return known[given.name]
            if isinstance(given, Constant):
                return constants[given]
            return [resolved(item) for item in given] if isinstance(given, list) else given

        for step in self.needed(list(outputs)):
            keywords = {name: resolved(item) for name, item in step.keywords.items()}
            operation = OPERATIONS[step.operation]
            known[step.name] = operation(builder, *map(resolved, step.arguments), **keywords)
        for name, array in outputs.items():
            _put(builder, known[self.outputs.get(name, name)], builder.argument(array))
        return builder.plan()

    def write(self, path: Path) -> None:
        """Write a file."""
        fields = {
            "version": _VERSION,
            "inputs": list(self.inputs),
            "outputs": dict(self.outputs),
            "steps": [_encoded(_fields(step)) for step in self.steps],
        }
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that `write` wrote; ValueError for another."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or fields.get("version") not in _READ:
            raise ValueError("it is not of the version that this kvcast reads")
        steps = [Step(**_decoded(written)) for written in fields["steps"]]
        unknown = {step.operation for step in steps} - set(OPERATIONS)
        if unknown:
            raise ValueError(f"it has unknown operations: {', '.join(sorted(unknown))}")
        return cls(inputs=fields["inputs"], outputs=fields["outputs"], steps=steps)


def _fields(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "operation": step.operation,
        "arguments": list(step.arguments),
        "keywords": dict(step.keywords),
    }


def _put(builder: Builder, result: Value, wanted: Value) -> None:
    """Let a result lie where the caller wants it, as codes if that is a cache of them."""
    if wanted.dtype == Dtype.INT8:
        stored(builder, result, wanted)
        return
    if result.sizes != wanted.sizes:
        raise ValueError(f"a result is {list(result.sizes)} and not {list(wanted.sizes)}")
    whole = result.fills_storage and result.storage.address is None
    if whole and wanted.is_contiguous and result.dtype == wanted.dtype:
        builder.let_lie(result.storage, wanted.storage)
    else:
        builder.elements(Element.COPY, wanted, result)


def leaves(given: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists and mappings of arguments."""
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for item in given:
            yield from leaves(item)
    else:
        yield given


def _encoded(given: Any) -> Any:
    match given:
        case Node(name):
            return {"node": name}
        case Constant():
            return {"constant": asdict(given)}
        case float() if given in (float("inf"), float("-inf")):
            return {"float": str(given)}
        case list() | tuple():
            return [_encoded(item) for item in given]
        case dict():
            return {name: _encoded(item) for name, item in given.items()}
    return given


def _decoded(given: Any) -> Any:
    match given:
        case {"node": str(name)}:
            return Node(name)
        case {"constant": {"name": str(name), "bias": bias}}:
            return Constant(name, bias)
        case {"float": str(text)}:
            return float(text)
        case list():
            return [_decoded(item) for item in given]
        case dict():
            return {name: _decoded(item) for name, item in given.items()}
    return given
