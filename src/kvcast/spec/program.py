"""Programs: what a model computes, as a list of operations with PyTorch's names.

A program has no size fixed that callers vary. Families write programs from dimensions
(`kvcast.families`), and runtimes compile, execute or translate them. An operation may have an
epilogue in its keywords: a product its activation, its gate and its residual. Knows no family, no
runtime, and no operation's meaning.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

_VERSION, _READ = 2, (1, 2)  # 1 has no products with gates
WRITES = frozenset(
    {"self_attention", "short_convolution", "delta_rule", "selective_scan", "rewrite"}
)
"""Operations that write to their arguments, so that they stay although nothing reads them."""


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
            if step.name in wanted or step.operation in WRITES:
                kept.append(step)
                wanted |= step.reads
        return kept[::-1]

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
        return cls(inputs=fields["inputs"], outputs=fields["outputs"], steps=steps)


def leaves(given: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists and mappings of arguments."""
    if isinstance(given, Mapping):
        given = list(given.values())
    if isinstance(given, list | tuple):
        for item in given:
            yield from leaves(item)
    else:
        yield given


def _fields(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "operation": step.operation,
        "arguments": list(step.arguments),
        "keywords": dict(step.keywords),
    }


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
