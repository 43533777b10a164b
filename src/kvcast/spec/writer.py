"""Writes programs, an operation after the other. Knows no family."""

from collections.abc import Sequence
from typing import Any

from kvcast.spec.program import Constant, Node, Program, Step
from kvcast.spec.self_attention import SelfAttention


class ProgramWriter:
    """A program so far.

    Each method adds an operation and returns its result. Matrices, norms and tables are named by
    their module in the checkpoint, without `.weight` and `.bias`. Steps' names are numbered, from
    `first` on.

    Attributes:
        steps: in order.

    """

    def __init__(self, inputs: Sequence[str], first: int = 0) -> None:
        self._inputs = list(inputs)
        self._first = first
        self.steps: list[Step] = []

    def step(self, operation: str, *arguments: Any, **keywords: Any) -> Node:
        """Add any operation."""
        node = Node(f"{operation}_{self._first + len(self.steps)}")
        self.steps.append(Step(node.name, operation, list(arguments), keywords))
        return node

    def program(self, **outputs: Node) -> Program:
        """Return the program that gives these results."""
        names = {name: node.name for name, node in outputs.items()}
        return Program(inputs=self._inputs, outputs=names, steps=self.steps)

    def linear(self, x: Node, name: str, *, bias: bool = False, **epilogue: Any) -> Node:
        """[..., inputs] to [..., outputs], by a matrix [outputs, inputs].

        The epilogue is an `activation`, by its name, and then a `residual` of the result's shape
        that is added; or a `gate`, the activation of the first half of the results, which the
        second half is multiplied by.
        """
        matrix = Constant(f"{name}.weight", f"{name}.bias" if bias else None)
        return self.step("linear", x, matrix, **epilogue)

    def conv1d(
        self,
        x: Node,
        name: str,
        *,
        stride: int,
        padding: int | list[int],
        bias: bool = True,
        **epilogue: Any,
    ) -> Node:
        """[batch, channels, positions] to [batch, outputs, positions / stride].

        `padding` is of both ends, or a list of that before and that after.
        """
        matrix = Constant(f"{name}.weight", f"{name}.bias" if bias else None)
        return self.step("conv1d", x, matrix, stride, padding, **epilogue)

    def channel_convolution(self, x: Node, name: str, *, stride: int, **epilogue: Any) -> Node:
        """[batch, positions, bands, channels] to fewer positions and bands by the stride."""
        kernel, shift = Constant(f"{name}.kernel"), Constant(f"{name}.shift")
        return self.step("channel_convolution", x, kernel, shift, stride, **epilogue)

    def conv2d(self, x: Node, name: str, *, stride: int, padding: int, **epilogue: Any) -> Node:
        """[batch, rows, columns, channels] to [batch, rows / stride, columns / stride, outputs]."""
        matrix = Constant(f"{name}.weight", f"{name}.bias")
        return self.step("conv2d", x, matrix, stride, padding, **epilogue)

    def layer_norm(self, x: Node, name: str, epsilon: float) -> Node:
        """[..., width] to the same shape."""
        weight, bias = Constant(f"{name}.weight"), Constant(f"{name}.bias")
        return self.step("layer_norm", x, weight, bias, epsilon)

    def rms_norm(self, x: Node, name: str, epsilon: float) -> Node:
        """[..., width] to the same shape."""
        return self.step("rms_norm", x, Constant(f"{name}.weight"), epsilon)

    def embedding(self, table: str, ids: Node) -> Node:
        """Rows of a tensor [rows, width] at ids of any shape [...], as [..., width]."""
        return self.step("embedding", Constant(table), ids)

    def chunk(self, x: Node, count: int) -> list[Node]:
        """Parts of the last axis, equally wide."""
        whole = self.step("chunk", x, count, -1)
        return [self.step("getitem", whole, i) for i in range(count)]

    def split(self, x: Node, widths: Sequence[int]) -> list[Node]:
        """Parts of the last axis, of these widths."""
        whole = self.step("split", x, list(widths), -1)
        return [self.step("getitem", whole, i) for i in range(len(widths))]

    def size(self, x: Node, axis: int) -> Node:
        """Return the size of an axis, a number."""
        return self.step("size", x, axis)

    def self_attention(self, call: SelfAttention[Any]) -> Node:
        """Self-attention over a cache, which it writes: [rows, new, heads * head_dim]."""
        return self.step("self_attention", *call)
