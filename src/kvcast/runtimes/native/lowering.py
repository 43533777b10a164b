"""Lowers programs to kvcast's own interpreter: one file of operations for each, and their weights.

A program is exported with dynamic sizes, nodes that depend on constants alone are folded, and a
table names the operation of each remaining operator (`kvcast/runtimes/native/operations.py`).
Matrices are quantised; they are packed for the processor when a bundle is opened. Knows no model.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from kvcast.bundle.manifest import Graph
from kvcast.errors import KvcastError
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.runtimes.native.fusion import fused
from kvcast.runtimes.native.planning import WEIGHTS
from kvcast.runtimes.native.quantize import Kind, kinds, roles_of, stored
from kvcast.spec.blocks import BlocksOf, no_blocks
from kvcast.spec.phases import OnPhase
from kvcast.spec.program import Constant, Node, Program, Step

FOLDER = "native"
_DTYPES = {torch.float32: "float32", torch.int32: "int32", torch.int64: "int64"}

aten, kvcast_ops = torch.ops.aten, torch.ops.kvcast

Call = tuple[str, Sequence[Any], Mapping[str, Any]]
"""An operation's name, arguments and keywords; arguments are still the exported graph's."""


def _same(name: str) -> Callable[..., Call]:
    return lambda *arguments, **keywords: (name, arguments, keywords)


def _gelu(x: Any, *, approximate: str = "none") -> Call:
    return "gelu" if approximate == "none" else "gelu_tanh", (x,), {}


def _arange(count: Any, *, dtype: Any = torch.int64, **_: Any) -> Call:
    return "arange", (count,), {"dtype": _DTYPES[dtype]}


# Every operator that programs have. Those of nn have sizes among their arguments that are known.
_TABLE: Mapping[Any, Callable[..., Call]] = {
    aten.linear.default: lambda x, weight, bias=None: ("linear", (x, (weight, bias)), {}),
    aten.conv1d.default: lambda x, weight, bias, stride, padding: (
        "conv1d",
        (x, (weight, bias), stride[0], padding[0]),
        {},
    ),
    aten.layer_norm.default: lambda x, _, gain, bias, epsilon, *__: (
        "layer_norm",
        (x, gain, bias, epsilon),
        {},
    ),
    aten.rms_norm.default: lambda x, _, gain, epsilon: ("rms_norm", (x, gain, epsilon), {}),
    aten.embedding.default: _same("embedding"),
    aten.index_select.default: _same("index_select"),
    aten.gelu.default: _gelu,
    aten.silu.default: _same("silu"),
    aten.relu.default: _same("relu"),
    aten.tanh.default: _same("tanh"),
    aten.add.Tensor: _same("add"),
    aten.sub.Tensor: _same("sub"),
    aten.mul.Tensor: _same("mul"),
    aten.div.Tensor: _same("div"),
    aten.maximum.default: _same("maximum"),
    aten.clamp.default: _same("clamp"),
    aten.lt.Tensor: _same("lt"),
    aten.ge.Tensor: _same("ge"),
    aten.eq.Scalar: _same("eq"),
    aten.where.ScalarSelf: _same("where"),
    aten.where.Scalar: _same("where"),
    aten.arange.default: _arange,
    aten.cat.default: _same("cat"),
    aten.to.dtype: lambda x, dtype: ("to", (x, _DTYPES[dtype]), {}),
    aten.contiguous.default: _same("contiguous"),
    aten.transpose.int: _same("transpose"),
    aten.unsqueeze.default: _same("unsqueeze"),
    aten.unflatten.int: _same("unflatten"),
    aten.flatten.using_ints: _same("flatten"),
    aten.view.default: _same("view"),
    aten.slice.Tensor: _same("slice"),
    aten.split_with_sizes.default: _same("split"),
    aten.chunk.default: _same("chunk"),
    aten.sym_size.int: _same("size"),
    operator.getitem: _same("getitem"),
    kvcast_ops.self_attention.default: _same("self_attention"),
    kvcast_ops.cross_attention.default: _same("cross_attention"),
    kvcast_ops.encoder_attention.default: _same("encoder_attention"),
    kvcast_ops.mixture_of_experts.default: _same("mixture_of_experts"),
}
_DROPPED = {aten._assert_tensor_metadata.default}


def lower(
    signatures: Mapping[str, Signature],
    quantize: str,
    folder: Path,
    on_phase: OnPhase,
    blocks_of: BlocksOf = no_blocks,
) -> dict[str, Graph]:
    """Write `native/NAME.json` for each program and `native/weights.safetensors` under `folder`.

    Args:
        signatures: programs by the names that the runtime looks up.
        quantize: "none", "int8" or "int4", of matrices.
        folder: an existing folder.
        on_phase: called as each phase begins.
        blocks_of: the codes that the checkpoint has for a matrix, which are kept.

    Returns:
        The manifest's entries for the programs.

    Raises:
        KvcastError: a program has an operator that the interpreter does not know.

    """
    (folder / FOLDER).mkdir()
    graphs = {}
    programs: dict[str, Program] = {}
    constants: dict[str, NDArray[Any]] = {}
    for name, signature in signatures.items():
        on_phase(f"exporting {name}")
        program, tensors = _translated(name, signature, exact=quantize == "none")
        programs[name] = program
        constants |= tensors
        file = f"{FOLDER}/{name}.json"
        program.write(folder / file)
        graphs[name] = Graph(
            file=file,
            inputs=tuple(program.inputs),
            outputs=tuple(program.outputs),
            aliases={},
        )
    on_phase("writing weights")
    save_file(_stored(programs, constants, quantize, blocks_of), folder / FOLDER / WEIGHTS)
    return graphs


def _translated(
    name: str, signature: Signature, *, exact: bool
) -> tuple[Program, dict[str, NDArray[Any]]]:
    """Return a program, without caches among its outputs, and its constants as they are."""
    module = signature.export().module(check_guards=False)
    if not isinstance(module, GraphModule):
        raise TypeError("torch.export gave no graph module")
    translation = _Translation(name, module, signature, exact=exact)
    return translation.program(), translation.constants


class _Translation:
    """An exported graph, operator by operator."""

    def __init__(
        self, name: str, module: GraphModule, signature: Signature, *, exact: bool
    ) -> None:
        self._name = name
        self._module = module
        self._signature = signature
        self._exact = exact
        self._shared = signature.program.state_dict().keys()
        self.constants: dict[str, NDArray[Any]] = {}
        self._folded: dict[FxNode, torch.Tensor] = {}
        self._names: dict[FxNode, str] = {}
        self._steps: list[Step] = []

    def program(self) -> Program:
        inputs = iter(self._signature.inputs)
        outputs: dict[str, str] = {}
        for node in self._module.graph.nodes:
            if node.op == "placeholder":
                self._names[node] = next(inputs)
            elif node.op == "get_attr":
                self._folded[node] = _attribute(self._module, node.target)
            elif node.op == "call_function":
                self._add(node)
            elif node.op == "output":
                results, _ = torch.utils._pytree.tree_flatten(node.args[0])
                outputs = {
                    name: self._names[result]
                    for name, result in zip(self._signature.outputs, results, strict=True)
                    if not name.startswith("present_")
                }
        steps = fused(self._steps, self._sizes(), outputs.values())
        return Program(inputs=list(self._signature.inputs), outputs=outputs, steps=steps)

    def _add(self, node: FxNode) -> None:
        if node.target in _DROPPED:
            return
        arguments = [*node.args, *node.kwargs.values()]
        given = list(torch.utils._pytree.tree_leaves(arguments))
        read = [leaf for leaf in given if isinstance(leaf, FxNode)]
        if read and all(leaf in self._folded for leaf in read):
            self._fold(node)
            return
        if node.target not in _TABLE:
            raise KvcastError(
                f"kvcast's own runtime does not know {node.target} yet: use another --runtime"
            )
        name, call, keywords = _TABLE[node.target](*node.args, **node.kwargs)
        if name == "encoder_attention":
            keywords = {**keywords, "exact": self._exact}
        self._names[node] = node.name
        step = Step(
            node.name,
            name,
            [self._argument(item) for item in call],
            {key: self._argument(item) for key, item in keywords.items()},
        )
        self._steps.append(step)

    def _fold(self, node: FxNode) -> None:
        arguments, keywords = torch.fx.node.map_arg(
            (node.args, node.kwargs), self._folded.__getitem__
        )
        with torch.no_grad():
            self._folded[node] = node.target(*arguments, **keywords)  # type: ignore[operator]

    def _argument(self, given: Any) -> Any:
        if isinstance(given, FxNode):
            if given in self._folded:
                return Constant(self._constant(given))
            return Node(self._names[given])
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], FxNode):
            weight, bias = given  # a matrix and its bias
            return Constant(self._constant(weight), None if bias is None else self._constant(bias))
        if isinstance(given, list | tuple):
            return [self._argument(item) for item in given]
        return given

    def _constant(self, node: FxNode) -> str:
        name = str(node.target) if node.op == "get_attr" else node.name
        if name not in self._shared:  # export names each program's own constants alike: numpy_t
            name = f"{self._name}.{name}"
        self.constants[name] = self._folded[node].detach().contiguous().numpy()
        return name

    def _sizes(self) -> dict[str, tuple[Any, ...]]:
        sizes = {}
        for node, name in self._names.items():
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                sizes[name] = tuple(value.shape)
        return sizes


def _attribute(module: torch.nn.Module, path: str) -> torch.Tensor:
    owner: Any = module
    for part in path.split("."):
        owner = getattr(owner, part)
    return owner  # type: ignore[no-any-return]


def _stored(
    programs: Mapping[str, Program],
    constants: Mapping[str, NDArray[Any]],
    quantize: str,
    blocks_of: BlocksOf,
) -> dict[str, NDArray[Any]]:
    """Return the tensors of programs' constants in the weights' file."""
    convolved = {name for program in programs.values() for name in program.matrices("conv1d")}
    read = {constant for program in programs.values() for constant in program.constants()}
    names = {constant.name for constant in read} | {
        constant.bias for constant in read if constant.bias is not None
    }
    chosen = kinds({name: roles_of(program) for name, program in programs.items()}, quantize)
    tensors: dict[str, NDArray[Any]] = {}
    for name in sorted(names):
        array, of = constants[name], blocks_of
        if name in convolved:  # [outputs, size * channels], as its windows lie in memory
            array = np.ascontiguousarray(array.transpose(0, 2, 1)).reshape(len(array), -1)
            of = no_blocks
        tensors |= stored(name, array, chosen.get(name, Kind.EXACT), of)
    return tensors
