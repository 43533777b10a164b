"""Executes programs with PyTorch, op by op, for eager and for torch.export.

A matrix is a linear layer, so that layers can be hooked or replaced by quantized ones. Parameters
have the names of the checkpoint's tensors, buffers the names of programs' other constants.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kvcast.errors import KvcastError
from kvcast.families.table import family_with
from kvcast.models.ops.attention import packed_self_attention, shared_attention
from kvcast.models.ops.latents import packed_latent_attention, packed_select_positions
from kvcast.models.ops.operations import OPERATIONS, Operation, activated
from kvcast.models.ops.states import (
    delta_rule,
    packed_short_convolution,
    packed_states,
    selective_scan,
)
from kvcast.spec.program import (
    Constant,
    LatentAttention,
    Node,
    PositionSelection,
    Program,
    SelfAttention,
    SharedAttention,
)

_PRODUCTS = frozenset({"linear", "conv1d", "conv2d"})
"""Operations whose matrix is a layer, with its bias."""


class TorchProgram(nn.Module):
    def __init__(
        self, program: Program, outputs: Sequence[str], weights: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.program = program
        self._results = [
            program.outputs.get(name, name.replace("present_", "past_", 1)) for name in outputs
        ]
        self._calls = list(_calls(program, self._results))
        self._places: dict[str, tuple[nn.Module, str]] = {}
        for name in program.matrices("linear"):
            rows, columns = weights[name].shape
            layer = nn.Linear(columns, rows, bias=False, device="meta")
            self._owner(name.rpartition(".")[0], layer)
        for constant in program.constants():
            for name in filter(None, (constant.name, constant.bias)):
                self._hold(name, weights[name])

    def _owner(self, path: str, layer: nn.Module | None = None) -> nn.Module:
        """Return the submodule at a path; create `layer` or an empty one if missing."""
        if not path:
            return self
        before, _, leaf = path.rpartition(".")
        parent = self._owner(before)
        if leaf not in parent._modules:
            parent.add_module(leaf, layer or nn.Module())
        return parent.get_submodule(leaf)

    def _hold(self, name: str, tensor: Tensor) -> None:
        path, _, leaf = name.rpartition(".")
        owner = self._owner(path)
        if isinstance(tensor, nn.Parameter):
            owner.register_parameter(leaf, tensor)
        else:
            owner.register_buffer(leaf, tensor, persistent=False)
        self._places[name] = owner, leaf

    def matrix(self, name: str) -> nn.Module:
        return self._places[name][0]

    def replace_matrix(self, name: str, layer: nn.Module) -> None:
        path, _, leaf = name.rpartition(".")
        self.set_submodule(path, layer)
        self._places[name] = layer, leaf

    def forward(self, *arguments: Tensor) -> list[Tensor]:
        return self.run(arguments)

    def run(self, arguments: Sequence[Tensor], **others: Operation) -> list[Tensor]:
        """Run with other functions for some operations, by name."""
        device = arguments[0].device
        operations = {**OPERATIONS, **others}
        values: dict[str, Any] = dict(zip(self.program.inputs, arguments, strict=True))
        for call in self._calls:
            given = call.arguments.copy()
            for i, name in call.nodes:
                given[i] = values[name]
            for i in call.lists:
                given[i] = [values[x.name] if type(x) is Node else x for x in given[i]]
            for i, name in call.constants:
                owner, leaf = self._places[name]
                given[i] = owner if call.operation in _PRODUCTS else getattr(owner, leaf)
            keywords = {k: self._given(x, values) for k, x in call.keywords}
            if call.operation == "arange":
                keywords["device"] = device
            values[call.name] = operations[call.operation](*given, **keywords)
            for name in call.unread:
                del values[name]
        return [values[name] for name in self._results]

    def _given(self, keyword: Any, values: Mapping[str, Any]) -> Any:
        if type(keyword) is Node:
            return values[keyword.name]
        if type(keyword) is Constant:
            owner, leaf = self._places[keyword.name]
            return getattr(owner, leaf)
        return keyword

    def packed(
        self,
        tokens_n: Tensor,  # int64 [n], the new tokens of these rows, concatenated
        rows: list[int],  # the rows of the caches that take part
        counts: list[int],  # the number of new tokens of each
        lengths: Tensor,  # int32 [rows of the caches], positions in the caches before this call
        offsets: Tensor,  # int64 [m], indices of the n positions whose logits are returned
        caches: Sequence[Tensor],  # each [rows, ...], written in place
    ) -> Tensor:  # Logits fp32 [m, vocab]
        """Run `decode` of a decoder-only model on rows with any number of new tokens each.

        Only attention, convolutions and positions depend on rows; nothing else sees padding.
        """

        def attend(*arguments: Any) -> Tensor:
            call = SelfAttention[Any](*arguments)
            mixed_nx: Tensor = packed_self_attention(
                call.query[0],
                call.key[0],
                call.value[0],
                call.key_cache,
                call.value_cache,
                rows,
                counts,
                lengths,
                call.scale,
                call.window,
                call.softcap,
                call.cosines,
                call.sines,
                call.sinks,
            )
            return mixed_nx[None]

        def attend_elsewhere(*arguments: Any) -> Tensor:
            call, first = SharedAttention[Any](*arguments), 0
            mixed = torch.empty_like(call.query)
            for row, count in zip(rows, counts, strict=True):
                own = (offsets >= first) & (offsets < first + count)
                part = call._replace(
                    query=call.query[:, own],
                    key_cache=call.key_cache[row : row + 1],
                    value_cache=call.value_cache[row : row + 1],
                    lengths=lengths[row : row + 1],
                    offsets=offsets[own] - first,
                )
                if len(part.offsets):
                    mixed[:, own] = shared_attention(*part)
                first += count
            return mixed

        def attend_latents(*arguments: Any, **options: Any) -> Tensor:
            call = LatentAttention[Any](*arguments, **options)._replace(lengths=lengths)
            return packed_latent_attention(call, rows, counts)[None]

        def select(*arguments: Any, **options: Any) -> Tensor:
            call = PositionSelection[Any](*arguments, **options)._replace(lengths=lengths)
            return packed_select_positions(call, rows, counts)[None]

        def positions(*_: Tensor) -> Tensor:
            each = [
                lengths[row].long() + torch.arange(count, device=lengths.device)
                for row, count in zip(rows, counts, strict=True)
            ]
            return torch.cat(each)[None]

        @activated
        def convolve(
            x: Tensor, kernel: Tensor, bias: Tensor | None, past: Tensor, _: Tensor
        ) -> Tensor:
            return packed_short_convolution(x[0], kernel, bias, past, rows, counts, lengths)[None]

        def rewriting(operation: Operation, of_positions: int) -> Operation:
            def rewrite(*arguments: Any, **options: Any) -> Tensor:
                *given, state, _, heads = arguments
                parts = [part[0] for part in given[:of_positions]]
                held = state, rows, counts, lengths, heads
                own = partial(operation, **options)
                return packed_states(own, parts, given[of_positions:], *held)[None]

            return rewrite

        given = (tokens_n[None], lengths[:1], offsets, *caches)
        others: dict[str, Operation] = {
            "shared_attention": attend_elsewhere,
            "latent_attention": attend_latents,
            "select_positions": select,
            "short_convolution": convolve,
            "delta_rule": rewriting(delta_rule, 3),
            "selective_scan": rewriting(selective_scan, 2),
            "positions": positions,
        }
        return self.run(given, self_attention=attend, **others)[0][0]


class _Call(NamedTuple):
    """A step, taken apart once, which takes most of the time of small models."""

    name: str
    operation: str
    arguments: list[Any]  # of the step; nodes and constants have to be put into a copy
    nodes: list[tuple[int, str]]  # places of the nodes among them, and their names
    constants: list[tuple[int, str]]
    lists: list[int]  # places of the lists, which nodes may be in
    keywords: list[tuple[str, Any]]
    unread: list[str]


def _calls(program: Program, results: Sequence[str]) -> Iterator[_Call]:
    last: dict[str, int] = {}
    for i, step in enumerate(program.steps):
        last |= dict.fromkeys((*step.reads, step.name), i)
    unread: list[list[str]] = [[] for _ in program.steps]
    for name in last.keys() - set(results):
        unread[last[name]].append(name)
    for step, names in zip(program.steps, unread, strict=True):
        parts = list(enumerate(step.arguments))
        yield _Call(
            name=step.name,
            operation=step.operation,
            arguments=list(step.arguments),
            nodes=[(i, part.name) for i, part in parts if isinstance(part, Node)],
            constants=[(i, part.name) for i, part in parts if isinstance(part, Constant)],
            lists=[i for i, part in parts if isinstance(part, list | tuple)],
            keywords=list(step.keywords.items()),
            unread=names,
        )


@dataclass(frozen=True, kw_only=True)
class TorchModel:
    dimensions: Any
    weights: dict[str, Tensor]  # parameters by tensor name, and the programs' other constants
    programs: Mapping[str, TorchProgram]

    @classmethod
    def from_tensors(cls, dimensions: Any, tensors: Mapping[str, NDArray[np.generic]]) -> Self:
        family = family_with(dimensions)
        arrays = {name: np.array(tensor, np.float32) for name, tensor in tensors.items()}
        _check(family.tensor_shapes(dimensions), arrays)
        weights: dict[str, Tensor] = {
            name: nn.Parameter(torch.from_numpy(array), requires_grad=False)
            for name, array in arrays.items()
        }
        constants = family.constants(dimensions, arrays)
        weights |= {name: torch.from_numpy(array) for name, array in constants.items()}
        return cls.over(dimensions, weights)

    @classmethod
    def over(cls, dimensions: Any, weights: dict[str, Tensor]) -> Self:
        """Over all tensors that the programs read, of any dtype and device."""
        family = family_with(dimensions)
        signatures = family.programs(dimensions)
        programs = {
            name: TorchProgram(program, signatures[name].outputs, weights).eval()
            for name, program in family.write_programs(dimensions).items()
        }
        return cls(dimensions=dimensions, weights=weights, programs=programs)

    def __getitem__(self, name: str) -> TorchProgram:
        return self.programs[name]

    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Run a program over the weights; caches among the inputs are written in place.

        It fills `outputs`: results of the program, or of its steps by their names.
        """
        for name, result in self.results(program, inputs, list(outputs)).items():
            outputs[name][...] = result

    @torch.inference_mode()
    def results(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[Any]]:
        """As `run`, but returns the results by name."""
        executed = TorchProgram(program, names, self.weights)
        results = executed(*(torch.from_numpy(inputs[name]) for name in program.inputs))
        return {name: part.numpy() for name, part in zip(names, results, strict=True)}


def _check(
    shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, NDArray[np.float32]]
) -> None:
    for name in sorted(shapes.keys() | tensors.keys()):
        if name not in tensors or name not in shapes:
            kind = "unknown" if name in tensors else "missing"
            raise KvcastError(f"the weights do not fit the model: {name} is {kind}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise KvcastError(
                f"the weights do not fit the model: {name} is {tensors[name].shape}, not {shape}"
            )
