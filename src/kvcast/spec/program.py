"""Programs: a model's `encode` or `decode` graph, as a list of operations with PyTorch's names.

A program leaves open the sizes that callers vary. Families write programs from dimensions
(`kvcast.families`) with a `ProgramWriter`; runtimes compile, execute or translate them. An
operation may have an epilogue in its keywords: a product its activation, gate and residual.
`SelfAttention`, `SharedAttention` and `LatentAttention` are the operations that read caches, with
the arguments that runtimes pass on as tensors, interpreter values or graph nodes
(`kvcast.models.ops.attention`, `latents`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

_VERSION, _READ = 2, (1, 2)  # 1 has no products with gates
WRITES = frozenset(
    {
        *("self_attention", "latent_attention", "select_positions", "short_convolution"),
        *("delta_rule", "selective_scan", "gated_recurrence", "rewrite"),
    }
)
"""Operations that write to their arguments, so that they stay although nothing reads them."""


@dataclass(frozen=True)
class Node:
    name: str


@dataclass(frozen=True)
class Constant:
    """A tensor or, with its bias, a matrix."""

    name: str
    bias: str | None = None


@dataclass(frozen=True)
class Step:
    """One op: arguments are nodes, constants, scalars, strings, None and lists of these."""

    name: str
    operation: str
    arguments: Sequence[Any] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def reads(self) -> frozenset[str]:
        given = leaves((self.arguments, self.keywords))
        return frozenset(leaf.name for leaf in given if isinstance(leaf, Node))


@dataclass(frozen=True, kw_only=True)
class Program:
    inputs: Sequence[str]
    outputs: Mapping[str, str]  # nodes by the names that callers know
    steps: Sequence[Step]
    # shapes of the checkpoint's tensors that it reads or that its constants derive from, by
    # canonical name; empty for a program from a file
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    def constants(self) -> list[Constant]:
        given = (leaf for step in self.steps for leaf in leaves((step.arguments, step.keywords)))
        return list(dict.fromkeys(leaf for leaf in given if isinstance(leaf, Constant)))

    def matrices(self, operation: str) -> set[str]:
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
        """Return the steps that some results or a cache depend on."""
        wanted = {self.outputs.get(name, name) for name in outputs}
        kept = []
        for step in reversed(self.steps):
            if step.name in wanted or step.operation in WRITES:
                kept.append(step)
                wanted |= step.reads
        return kept[::-1]

    def write(self, path: Path) -> None:
        fields = {
            "version": _VERSION,
            "inputs": list(self.inputs),
            "outputs": dict(self.outputs),
            "steps": [_encoded(_fields(step)) for step in self.steps],
        }
        path.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Self:
        """ValueError for a file that `write` did not write."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or fields.get("version") not in _READ:
            raise ValueError("it is not of the version that this kvcast reads")
        steps = [Step(**_decoded(written)) for written in fields["steps"]]
        return cls(inputs=fields["inputs"], outputs=fields["outputs"], steps=steps)


def leaves(given: Any) -> Iterator[Any]:
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


T = TypeVar("T")


class SelfAttention(NamedTuple, Generic[T]):
    """A call of self-attention over a cache.

    Letters in shapes: r rows, s new positions, c capacity, h heads, d head_dim; b encoded inputs,
    of which row i reads input i // (r // b), and t their positions.
    """

    query: T  # [r, s, h * d]
    key: T  # [r, s, kv_heads * d]
    value: T  # like `key`
    key_cache: T  # [r, kv_heads, c, d], written at the new positions
    value_cache: T  # like `key_cache`
    lengths: T  # int32 [r], positions in each row's cache before the call
    scale: float  # factor on the products of queries and keys
    window: int = 0  # sliding window, the query's position included; 0: all
    softcap: float = 0.0  # c in c tanh(x / c), applied to the scaled products; 0: none
    cosines: T | None = None  # [positions, d / 2], for rotary embeddings; None: no rotation
    sines: T | None = None  # like `cosines`
    bias: T | None = None  # [r or 1, h or 1, s, c], added to scaled products; linear caches only
    causal: bool = True  # whether a position sees only positions up to itself
    sinks: T | None = None  # [h], attention sinks: a logit in each head's softmax without a value
    # [b, kv_heads, t, d], keys of encoded inputs, which all queries see in one softmax with the
    # cache; not rotated, without bias. None: none
    cross_key: T | None = None
    cross_value: T | None = None  # like `cross_key`
    cross_lengths: T | None = None  # int32 [b], valid positions of each input; None: all

    @property
    def crosses(self) -> bool:
        """Whether queries see an encoded input in one softmax with the cache."""
        return self.cross_key is not None


class SharedAttention(NamedTuple, Generic[T]):
    """A call of attention over the cache of an earlier layer; the rest as in `SelfAttention`."""

    query: T  # [r, a, h * d], of some of the new positions
    key_cache: T  # [r, kv_heads, c, d], linear: nothing was evicted
    value_cache: T  # like `key_cache`
    lengths: T  # as in `SelfAttention`
    offsets: T  # int64 [a], the queries' indices among the new positions, in every row
    scale: float  # as in `SelfAttention`, and so are the others
    window: int = 0  # positions that a query sees; 0: all
    softcap: float = 0.0
    cosines: T | None = None
    sines: T | None = None  # like `cosines`
    sinks: T | None = None  # [h]


class LatentAttention(NamedTuple, Generic[T]):
    """A call of attention to latents (MLA, DeepSeek-V2, arXiv:2405.04434, section 2.1).

    A head's key at a position is `key_b` times its latent, then the rotated key, which all heads
    share; its value is `value_b` times the latent. Further letters: n channels of a head that
    latents give, p rotated ones, v a head's values; the rest as in `SelfAttention`.
    """

    query: T  # [r, s, h * (n + p)]
    latent: T | None  # [r, s, rank], normed; None: an earlier layer wrote the cache
    key: T | None  # [r, s, p], before rotation; None: likewise, or p is 0
    cache: T  # [r, 1, c, rank + p], linear, written at the new positions
    lengths: T
    key_b: T  # [h, n, rank], for prompts: gives keys
    absorb: T  # [h, rank, n], the same transposed, for steps: takes queries to latents
    value_b: T  # [h, v, rank]
    scale: float
    cosines: T | None = None  # [positions, p / 2]; None: no rotation
    sines: T | None = None  # like `cosines`
    selected: T | None = None  # [r, s, most], positions to read (`PositionSelection`); None: all


class PositionSelection(NamedTuple, Generic[T]):
    """A call that chooses the positions that attention reads (DSA, DeepSeek-V3.2's indexer).

    A position's score is the sum over index heads of weights times the products, no less than 0, of
    a query and the position's one key. Of equal scores the first positions are chosen, so a chunk
    chooses what its steps do. Letters: g index heads, e their size; the first channels turn.
    """

    query: T  # [r, s, g * e]
    key: T  # [r, s, e], normed, before rotation
    weights: T  # [r, s, g]
    cache: T  # [r, 1, c, e], linear, written at the new positions
    lengths: T
    most: int  # number of positions that a query reads; all while there are fewer
    cosines: T | None = None
    sines: T | None = None


class ProgramWriter:
    """A program so far. Methods add an operation and return its result.

    They declare the tensors that it reads. Matrices, norms and tables are named by their module in
    the checkpoint, without `.weight` and `.bias`. Steps' names are numbered, from `first` on.
    """

    def __init__(self, inputs: Sequence[str], first: int = 0) -> None:
        self._inputs = list(inputs)
        self._first = first
        self.steps: list[Step] = []
        self.tensors: dict[str, tuple[int, ...]] = {}

    def tensor(self, name: str, *shape: int) -> Constant:
        self.tensors[name] = shape
        return Constant(name)

    def _matrix(self, name: str, shape: tuple[int, ...], *, bias: bool) -> Constant:
        self.tensors[f"{name}.weight"] = shape
        if bias:
            self.tensors[f"{name}.bias"] = shape[:1]
        return Constant(f"{name}.weight", f"{name}.bias" if bias else None)

    def step(self, operation: str, *arguments: Any, **keywords: Any) -> Node:
        node = Node(f"{operation}_{self._first + len(self.steps)}")
        self.steps.append(Step(node.name, operation, list(arguments), keywords))
        return node

    def program(self, **outputs: Node) -> Program:
        names = {name: node.name for name, node in outputs.items()}
        return Program(inputs=self._inputs, outputs=names, steps=self.steps, tensors=self.tensors)

    def linear(
        self, x: Node, name: str, shape: tuple[int, int], *, bias: bool = False, **epilogue: Any
    ) -> Node:
        """[..., inputs] to [..., outputs], by a matrix of shape [outputs, inputs].

        The epilogue: an `activation`, then a `residual` of the result's shape; or a `gate`, the
        activation of the first half of the results, by which the second half is multiplied.
        """
        return self.step("linear", x, self._matrix(name, shape, bias=bias), **epilogue)

    def conv1d(
        self,
        x: Node,
        name: str,  # of the kernel, and of its bias
        shape: tuple[int, int, int],  # [outputs, channels, length]
        *,
        stride: int,  # positions between two results
        padding: int | list[int],  # symmetric, or [left, right]
        bias: bool = True,
        **epilogue: Any,
    ) -> Node:
        """[batch, channels, positions] to [batch, outputs, positions / stride]."""
        matrix = self._matrix(name, shape, bias=bias)
        return self.step("conv1d", x, matrix, stride, padding, **epilogue)

    def channel_convolution(
        self, x: Node, name: str, shape: tuple[int, int, int], *, stride: int, **epilogue: Any
    ) -> Node:
        """[batch, positions, bands, channels], both axes strided."""
        kernel = self.tensor(f"{name}.kernel", *shape)
        shift = self.tensor(f"{name}.shift", shape[-1])
        return self.step("channel_convolution", x, kernel, shift, stride, **epilogue)

    def conv2d(
        self,
        x: Node,
        name: str,
        shape: tuple[int, int, int, int],
        *,
        stride: int,
        padding: int,
        **epilogue: Any,
    ) -> Node:
        """[batch, rows, columns, channels], by a kernel [outputs, channels, rows, columns]."""
        matrix = self._matrix(name, shape, bias=True)
        return self.step("conv2d", x, matrix, stride, padding, **epilogue)

    def layer_norm(
        self, x: Node, name: str, width: int, epsilon: float, *, zeros: str = ""
    ) -> Node:
        """[..., width] to the same shape; `zeros` is a constant in place of a bias."""
        weight = self.tensor(f"{name}.weight", width)
        bias = Constant(zeros) if zeros else self.tensor(f"{name}.bias", width)
        return self.step("layer_norm", x, weight, bias, epsilon)

    def rms_norm(self, x: Node, name: str, width: int, epsilon: float) -> Node:
        """[..., width] to the same shape."""
        return self.step("rms_norm", x, self.tensor(f"{name}.weight", width), epsilon)

    def embedding(self, table: str, ids: Node, shape: tuple[int, int]) -> Node:
        """Rows of a tensor of shape [rows, width] at ids of shape [...], as [..., width]."""
        return self.step("embedding", self.tensor(table, *shape), ids)

    def chunk(self, x: Node, count: int) -> list[Node]:
        whole = self.step("chunk", x, count, -1)
        return [self.step("getitem", whole, i) for i in range(count)]

    def split(self, x: Node, widths: Sequence[int]) -> list[Node]:
        whole = self.step("split", x, list(widths), -1)
        return [self.step("getitem", whole, i) for i in range(len(widths))]

    def size(self, x: Node, axis: int) -> Node:
        return self.step("size", x, axis)

    def self_attention(self, call: SelfAttention[Any]) -> Node:
        """Self-attention over a cache, which it writes: [rows, new, heads * head_dim]."""
        return self.step("self_attention", *call)
