"""The traffic of calls on eager PyTorch, watched: each operator that PyTorch dispatches.

Programs run over tensors without memory; the kernels over caches, whose steps depend on lengths,
run in addition over zeros of the call's sizes. A cache is copied where an operator reads all of it
and is neither a product nor attention. Views do nothing and are not counted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from typing_extensions import override

from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.models.ops.attention import cross_attention, self_attention, shared_attention
from kvcast.models.ops.latents import latent_attention, select_positions
from kvcast.models.ops.states import convolve_and_keep
from kvcast.runtimes.eager.quantize import quantize_matrices
from kvcast.runtimes.traffic import (
    CacheTensor,
    CallSizes,
    ProgramTraffic,
    Tally,
    TrafficReader,
    caches_of,
    probed_shapes,
    shapes_of,
)
from kvcast.spec.runtimes import BundlePrecision

if TYPE_CHECKING:
    from kvcast.checkpoints.base import Checkpoint

_KERNELS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.kvcast.self_attention.default: self_attention._init_fn,
    torch.ops.kvcast.shared_attention.default: shared_attention._init_fn,
    torch.ops.kvcast.cross_attention.default: cross_attention._init_fn,
    torch.ops.kvcast.latent_attention.default: latent_attention._init_fn,
    torch.ops.kvcast.select_positions.default: select_positions._init_fn,
    torch.ops.kvcast.short_convolution.default: convolve_and_keep,
}
"""Operators over caches, and the functions that they run."""
_PRODUCTS = ("scaled_dot_product", "aten.bmm", "aten.mm", "aten.matmul")
_LOOKUPS = ("aten.embedding", "aten.index", "aten.index_select", "aten.gather")
_EXPERTS = torch.ops.kvcast.mixture_of_experts.default


class EagerTraffic(TrafficReader):
    @override
    def checkpoint(
        self, checkpoint: "Checkpoint", precision: BundlePrecision, sizes: CallSizes
    ) -> Sequence[ProgramTraffic]:
        family, dimensions = checkpoint.family, checkpoint.dimensions
        tensors, probed = family.tensor_shapes(dimensions), probed_shapes(family, dimensions)
        layers = family.caches(dimensions)
        constants = family.constants(dimensions, checkpoint.tensors)
        weights: dict[str, Tensor] = {
            name: nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False)
            for name, shape in tensors.items()
        }
        weights |= {name: _constant(part) for name, part in constants.items()}
        model = TorchModel.over(dimensions, weights)
        if precision.quantize != "none":
            for program in model.programs.values():
                quantize_matrices(program, precision.quantize)
        programs = []
        for name, signature in family.programs(dimensions).items():
            caches = caches_of(layers, sizes)
            filled = caches.keys() & set(signature.outputs)
            tally = Tally(name, tensors, caches, filled)
            shapes = shapes_of(signature, sizes, probed)
            dtypes = {argument.name: argument.dtype for argument in signature.arguments}
            arguments = {
                key: _empty(caches[key].shape, "float32")
                if key in caches
                else _empty(shapes[key], dtypes[key])
                for key in signature.inputs
            }
            results = _watched(model[name], arguments, tally, caches, sizes)
            for key, result in zip(signature.outputs, results, strict=True):
                if key in filled:
                    size = _bytes(result)
                    tally.cache(key, "result", size, written=size)
            programs.append(tally.traffic())
        return programs


def _constant(array: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(array)
    return (tensor.float() if tensor.is_floating_point() else tensor).to("meta")


def _empty(shape: Sequence[int], dtype: str) -> Tensor:
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


@torch.no_grad()
def _watched(
    program: TorchProgram,
    arguments: Mapping[str, Tensor],
    tally: Tally,
    caches: Mapping[str, CacheTensor],
    sizes: CallSizes,
) -> Sequence[Tensor]:
    held = {_storage(part): name for name, part in arguments.items() if name in caches}
    lines = {name: prod(cache.shape[:2]) * cache.shape[-1] for name, cache in caches.items()}
    watch = _Watch(tally, held, dict(_constants(program)), lines, sizes)
    with watch:
        return program(*arguments.values())


def _constants(program: TorchProgram) -> Iterator[tuple[int, str]]:
    for name, part in (*program.named_parameters(), *program.named_buffers()):
        path, _, leaf = name.rpartition(".")
        is_part = leaf in ("scales", "scales_and_zeros")
        yield _storage(part), f"{path}.weight.{leaf}" if is_part else name


class _Watch(TorchDispatchMode):
    """Counts operators; `caches` and `constants` are names by memory.

    `lines`: elements of a position of all rows of a cache, by name. Within an operator over caches
    (`inside`), only accesses to caches are counted.
    """

    def __init__(
        self,
        tally: Tally,
        caches: Mapping[int, str],
        constants: Mapping[int, str],
        lines: Mapping[str, int],
        sizes: CallSizes,
        inside: str = "",
    ) -> None:
        super().__init__()
        self._tally = tally
        self._caches = caches
        self._constants = constants
        self._lines = lines
        self._sizes = sizes
        self._inside = inside

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        memory = {_storage(part) for part in given}
        result = func(*args, **(kwargs or {}))
        results = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
        is_view = results and all(_storage(part) in memory for part in results)
        if is_view and not func._schema.is_mutable:
            return result
        name = str(func.overloadpacket)
        if not self._inside:
            read = [self._constants[_storage(x)] for x in given if _storage(x) in self._constants]
            self._tally.operator(name, read)
            self._count_weights(func, name, args, given, results)
        if func in _KERNELS:
            self._run_kernel(func, name, args, kwargs or {})
        else:
            self._count_caches(func, name, given, results)
        return result

    def _count_weights(
        self,
        func: Any,
        name: str,
        args: Any,
        given: Sequence[Tensor],
        results: Sequence[Tensor],
    ) -> None:
        for part in given:
            constant = self._constants.get(_storage(part))
            if constant is None:
                continue
            size = _bytes(part)
            if name in _LOOKUPS:
                size = min(size, sum(map(_bytes, results)))
            if func is _EXPERTS and part.dim() > 1:
                chosen = given[0].shape[0] * args[4]
                size = size // len(part) * min(len(part), chosen)
            self._tally.weight(constant, size)

    def _count_caches(
        self, func: Any, name: str, given: Sequence[Tensor], results: Sequence[Tensor]
    ) -> None:
        """Count an operator's writes to caches, and reads of caches or views of caches."""
        held = [part for part in given if _storage(part) in self._caches]
        for i, part in enumerate(held):
            cache, size = self._caches[_storage(part)], part.untyped_storage().nbytes()
            written = read = copied = 0
            if func._schema.is_mutable and i == 0 and part is given[0]:
                others = [x for x in given[1:] if x.is_floating_point()]
                written = max(map(_bytes, others), default=_bytes(part))
            elif any(product in name for product in _PRODUCTS):
                new = self._sizes.new * self._lines[cache] if cache.startswith("past_") else 0
                read = max(0, _bytes(part) - new * part.element_size())
            else:
                read = sum(map(_bytes, results)) if name in _LOOKUPS else size
                copied, read = (_bytes(part), 0) if read >= _bytes(part) else (0, read)
            by = self._inside or name
            self._tally.cache(cache, by, size, read=read, written=written, copied=copied)

    def _run_kernel(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        """Run the function of an operator over caches, with zeros for all tensors."""
        made: dict[int, Tensor] = {}

        def zeros(part: Tensor) -> Tensor:
            key = _storage(part)
            is_cache = key in self._caches
            if not is_cache or key not in made:
                made[key] = torch.zeros(part.shape, dtype=part.dtype)
            return made[key]

        given, options = tree_map_only(Tensor, zeros, (args, kwargs))
        held = {_storage(made[key]): cache for key, cache in self._caches.items() if key in made}
        for part in tree_leaves((given, options)):
            if isinstance(part, Tensor) and part.dtype == torch.int32:  # lengths
                part.fill_(self._sizes.length)
        with _Watch(self._tally, held, {}, self._lines, self._sizes, inside=name):
            _KERNELS[func](*given, **options)


def _storage(part: Tensor) -> int:
    return part.untyped_storage()._cdata


def _bytes(part: Tensor) -> int:
    return part.numel() * part.element_size()
