"""Writes ONNX graphs node by node."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from kit.foreign_models import Tensors

OPSET, IR = 18, 9


class Graph:
    """Nodes of a graph, or of a branch, whose names begin with `prefix`."""

    def __init__(self, tensors: Tensors, prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, NDArray[Any]] = {}
        self.tensors, self.prefix = tensors, prefix

    def op(self, kind: str, *inputs: str, outputs: int = 1, name: str = "", **about: Any) -> Any:
        """Add a node; return its output's name, or a list of several."""
        names = [name or f"{self.prefix}{kind}_{len(self.nodes)}"]
        names += [f"{names[0]}_{i}" for i in range(1, outputs)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name=f"n_{names[0]}", **about)
        )
        return names if outputs > 1 else names[0]

    def named(self, value: str, name: str) -> str:
        """Call a node's output by another name."""
        for node in self.nodes:
            node.output[:] = [name if output == value else output for output in node.output]
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c_{self.prefix}{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def weight(self, name: str) -> str:
        """Return a matrix [in, out], whose name all branches share."""
        self.constants[name] = self.tensors[name].T.copy()
        return name

    def linear(self, x: str, name: str) -> str:
        return self.op("MatMul", x, self.weight(f"{name}.weight"))

    def norm(self, x: str, name: str, eps: float) -> str:
        square = self.op("ReduceMean", self.op("Mul", x, x), self.ints(-1))
        root = self.op("Sqrt", self.op("Add", square, self.constant(eps)))
        return self.op("Mul", self.op("Div", x, root), self.weight(f"{name}.weight"))

    def size(self, x: str, axis: int) -> str:
        """Return one size, int64 [1]."""
        return self.op("Gather", self.op("Shape", x), self.ints(axis))

    def heads(self, x: str, heads: int, size: int) -> str:
        """[b, s, heads * size] -> [b, heads, s, size]."""
        split = self.op("Reshape", x, self.ints(0, 0, heads, size))
        return self.op("Transpose", split, perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, mask: str, scale: float, mixed: int) -> str:
        """Return [b, s, mixed]."""
        turned = self.op("Transpose", k, perm=[0, 1, 3, 2])
        scores = self.op("Mul", self.op("MatMul", q, turned), self.constant(scale))
        scores = self.op("Add", scores, mask) if mask else scores
        out = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        joined = self.op("Transpose", out, perm=[0, 2, 1, 3])
        return self.op("Reshape", joined, self.ints(0, 0, mixed))

    def initializers(self) -> list[onnx.TensorProto]:
        return [numpy_helper.from_array(array, name) for name, array in self.constants.items()]


def embedding(g: Graph, name: str) -> str:
    g.constants[f"{name}_table"] = g.tensors[name]
    return f"{name}_table"


def write_graph(
    g: Graph, path: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any], *,
    external: bool = False,
) -> None:  # fmt: skip
    graph = helper.make_graph(
        g.nodes,
        "main",
        [value_info(name, shape) for name, shape in inputs.items()],
        [value_info(name, shape) for name, shape in outputs.items()],
        g.initializers(),
    )
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=IR)
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 64}
    onnx.save(model, path, **(about if external else {}))


_INTEGERS = ("input_ids", "attention_mask", "position_ids", "encoder_attention_mask")


def value_info(name: str, shape: list[Any]) -> onnx.ValueInfoProto:
    dtype = TensorProto.INT64 if name in _INTEGERS else TensorProto.FLOAT
    dtype = TensorProto.BOOL if name == "use_cache_branch" else dtype
    return helper.make_tensor_value_info(name, dtype, shape)
