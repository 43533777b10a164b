"""Greedy steps of models with random weights on one device, in several variants.

All variants of a model live in this process, so its weights lie on the device once. Time does not
depend on the values of weights and caches, so nothing is downloaded, encoded or prefilled. Does not
know how a step is compiled: the caller passes that in.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._inductor import select_algorithm
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import override

from kvcast.conditional.cross_attention import CachedCrossAttention
from kvcast.errors import KvcastError
from kvcast.families.blocks import project_cross_caches
from kvcast.families.programs import CacheLayers
from kvcast.families.table import family_with
from kvcast.inspect.roofline import best_of
from kvcast.inspect.work import ModelWork
from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.runtimes.aoti.precision import Precision
from kvcast.spec.program import Node, ProgramWriter
from kvcast_bench.backend import Backend, Tokens
from kvcast_bench.greedy_step import (
    GreedyState,
    StepFunction,
    captured,
    make_step,
    slots_for,
)
from kvcast_bench.machine import COPIED, device_facts, memory_rates, seconds_of
from kvcast_bench.probes import STEP
from kvcast_bench.recompute.programs import STATES, DecodeFromStates
from kvcast_bench.report import Benchmark, Floors, measure
from kvcast_bench.runner import Local, Runner
from kvcast_bench.turns import Trial
from kvcast_bench.workload import Table
from kvcast_bench.workloads.gpu import GpuSteps, TimedModel

_SEED = 0

Compile = Callable[[GraphModule, tuple[Any, ...]], StepFunction]

# Name, settings in words, program, whether a CUDA graph is replayed, products.
_VARIANTS = (
    ("recompute", "cross keys projected at every step", "recompute", False, "sums"),
    ("cond", "torch.cond on a flag, one program", "cond", False, "sums"),
    ("programs", "two programs", "cached", False, "sums"),
    ("graphs", "two programs, CUDA graphs", "cached", True, "sums"),
    ("graphs-library", "two programs, CUDA graphs, library products", "cached", True, "library"),
)


class RandomModel(NamedTuple):
    timed: TimedModel
    programs: TorchModel
    source: Tensor | None  # the encoder's output [1, t, width] behind cross-attention caches
    begun: GreedyState


@torch.no_grad()
def random_model(timed: TimedModel, dtype: torch.dtype, device: str) -> RandomModel:
    """Return a model on a device, whose caches hold `timed.prompt` positions."""
    dimensions, family = timed.dimensions, family_with(timed.dimensions)
    generator = torch.Generator(device).manual_seed(_SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    weights: dict[str, Tensor] = {}
    for name, shape in family.tensor_shapes(dimensions).items():
        if name.startswith("encoder."):
            continue
        # Every part of the model moves the logits.
        mean = 1 if name.endswith("norm.weight") else 0
        spread = 2 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2
        tensor = normal(*shape).mul_(spread).add_(mean)
        weights[name] = nn.Parameter(tensor, requires_grad=False)
    for name, array in family.constants(dimensions, {}).items():
        # Rotary tables get the weights' dtype, too.
        tensor = torch.from_numpy(array).to(device)
        weights[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    signature = family.programs(dimensions)["decode"]
    decode = TorchProgram(family.write_programs(dimensions)["decode"], signature.outputs, weights)
    caches, source, given = [], None, list[Tensor]()
    for part in family.caches(dimensions):
        if part.kind == "cross":
            source = normal(1, part.capacity, part.heads * part.head_dim)
            given = _projections(part, weights)(source)
        else:
            shape = (1, part.heads, part.capacity, part.head_dim)
            caches += [normal(*shape) for _ in range(2 * part.layers)]
    most = ModelWork(dimensions=dimensions).most_positions
    begun = GreedyState(
        token_rs=torch.ones((1, 1), dtype=torch.int64, device=device),
        lengths=torch.full((1,), timed.prompt, dtype=torch.int32, device=device),
        generated=torch.zeros(most + 1, dtype=torch.int64, device=device),
        caches=caches,
        given=given,
    )
    model = TorchModel(dimensions=dimensions, weights=weights, programs={"decode": decode})
    return RandomModel(timed, model, source, begun)


def _projections(cross: CacheLayers, weights: Mapping[str, Tensor]) -> TorchProgram:
    write, width = ProgramWriter([STATES]), cross.heads * cross.head_dim
    sizes = cross.layers, (2 * width, width), cross.heads
    projected = project_cross_caches(write, Node(STATES), *sizes, bias=True)
    return TorchProgram(write.program(**projected), list(projected), weights)


@dataclass(kw_only=True)
class GpuVariant(Backend):
    """Writes one text, over and over from where it had begun."""

    model: Any  # a RandomModel: there is no file
    of: str  # the model's name
    text: GreedyState  # generated by all variants of the model
    step: Callable[
        [int], StepFunction
    ]  # from slots to read to a call that takes a step of the text
    is_graph: bool  # whether a step is replayed, and not launched kernel by kernel
    settings: str = ""
    packages = ("torch",)

    @override
    def unfit(self) -> str | None:
        if self.is_graph and not self.text.lengths.is_cuda:
            return "CUDA graphs need a CUDA device"
        return None

    @override
    def takes(self, trial: Any) -> bool:
        return bool(trial["model"] == self.of)

    @override
    def load(self) -> None:
        if self.engine is None:
            ready, timed = cache(self._ready), self.model.timed
            capacity = max(cache.shape[2] for cache in self.text.caches)
            held = range(timed.prompt + 1, timed.prompt + timed.new + 1)
            self.engine = [ready(slots_for(positions, capacity)) for positions in held]

    def write(self) -> tuple[float, Tokens]:
        """Write the text from its beginning; return the device's seconds, and the tokens."""
        self._rewind()
        seconds = seconds_of(self._write, str(self.text.lengths.device))
        first = self.model.timed.prompt + 1
        tokens: Tokens = self.text.generated[first : first + len(self.engine)].tolist()
        return seconds, tokens

    def _write(self) -> None:
        for take in self.engine:
            take()

    def _ready(self, slots: int) -> StepFunction:
        """Return a step that has been taken once."""
        take = self.step(slots)
        if self.is_graph:
            take = captured(take, self._rewind)
        self._rewind()
        take()
        return take

    def _rewind(self) -> None:
        # Caches too: a ring's later positions evict positions that the earlier text needs.
        for own, earlier in zip(tree_leaves(self.text), tree_leaves(self.model.begun), strict=True):
            own.copy_(earlier)


def variants(
    name: str, model: RandomModel, compile_step: Compile, *, dtype: str
) -> Iterator[GpuVariant]:
    """Yield the variants of a model; variants that its device lacks have a reason."""
    text: GreedyState = tree_map(torch.clone, model.begun)
    decode = model.programs["decode"]
    programs: dict[str, tuple[nn.Module, GreedyState]] = {"cached": (decode, text)}
    if (source := model.source) is not None:
        from_source = text._replace(given=[source])
        recompute = DecodeFromStates(
            model.timed.dimensions, model.programs.weights, dtype=source.dtype
        )
        programs["recompute"] = (recompute, from_source)
        programs["cond"] = (Conditional(model.programs, source.shape[1]), from_source)

    # Variants that differ only in how steps are launched share them.
    @cache
    def step(program: str, products: str, slots: int) -> StepFunction:
        decode, taken = programs[program]
        module = make_step(decode, taken, slots, products)
        return partial(compile_step(module, tuple(taken)), *taken)

    for variant, settings, program, is_graph, products in _VARIANTS:
        if program in programs:
            yield GpuVariant(
                name=f"{name}-{variant}",
                dtype=dtype,
                precision=dtype,
                model=model,
                of=name,
                text=text,
                step=partial(step, program, products),
                is_graph=is_graph,
                settings=settings,
            )


class Conditional(nn.Module):
    """The program over the same weights with torch.cond on a flag.

    Its cross-attention is `kvcast.conditional`'s, which takes an encoder's output [1, t, width] in
    place of a cross cache's key and value. The first call projects it and later ones read the
    result, so the next text needs the same source.
    """

    def __init__(self, model: TorchModel, positions: int) -> None:
        super().__init__()
        self.decode = model["decode"]
        layers = range(model.dimensions.decoder_layers)
        self.layers = nn.ModuleList(
            CachedCrossAttention(WhisperAttention(model, layer), rows=1, source_positions=positions)
            for layer in layers
        )

    def forward(self, *arguments: Tensor) -> list[Tensor]:
        """Take the program's arguments, with a source in place of all cross caches."""
        *given, source = arguments
        layers = iter(self.layers)

        def attend(query: Tensor, key: Tensor, *_: Any) -> Any:
            return next(layers)(query, key)[0]

        sources = [source] * (2 * len(self.layers))
        return self.decode.run([*given, *sources], cross_attention=attend)


class WhisperAttention(nn.Module):
    """A cross-attention's weights under the names that transformers has for them.

    The program itself projects queries and results.
    """

    def __init__(self, model: TorchModel, layer: int) -> None:
        super().__init__()
        name = f"decoder.layers.{layer}.cross_attention.key_value"
        parts = (model.weights[f"{name}.{part}"].chunk(2) for part in ("weight", "bias"))
        self.k_proj, self.v_proj = map(_linear, *parts)
        self.q_proj, self.out_proj = nn.Identity(), nn.Identity()
        self.num_heads = model.dimensions.decoder_heads
        self.scaling = model.dimensions.head_dim**-0.5


def _linear(weight_oi: Tensor, bias_o: Tensor) -> nn.Linear:
    outputs, inputs = weight_oi.shape
    made = nn.Linear(inputs, outputs, device="meta")
    # Copies, since the inputs of a branch of torch.cond must not overlap.
    made.load_state_dict({"weight": weight_oi.clone(), "bias": bias_o.clone()}, assign=True)
    return made.requires_grad_(requires_grad=False)


def measure_on(
    device: str,
    models: Mapping[str, TimedModel],
    compile_step: Compile,
    *,
    dtype: str,
    runs: int,
    copied: int = COPIED,
) -> tuple[dict[str, Any], Sequence[Table]]:
    """Measure models by name on "cuda" or, for tests, "cpu"; return the JSON object and tables.

    `compile_step` compiles the kernels of a step, `dtype` applies to weights and caches, and the
    memory bandwidth is measured with `copied` bytes. Raises KvcastError for models that do not fit
    the device.
    """
    workload = GpuSteps(models=models, dtype=dtype, device=device_facts(device))
    weights_dtype = Precision(dtype=dtype).torch_dtype
    try:
        # torch's notes for its developers would fill a terminal.
        with (
            patch.object(select_algorithm, "PRINT_AUTOTUNE", new=False),
            warnings.catch_warnings(action="ignore"),
            torch.no_grad(),
        ):
            backends = [
                variant
                for name, timed in models.items()
                for variant in variants(
                    name, random_model(timed, weights_dtype, device), compile_step, dtype=dtype
                )
            ]
            benchmark = Benchmark(
                name="gpu",
                model=" ".join(models),
                runner=Runner(workload=workload, threads=1, runs=runs, host=Local),
                backends=backends,
            )
            floors = _MemoryFloors(workload, device, copied)
            return measure(benchmark, floors), workload.tables()
    except torch.cuda.OutOfMemoryError:
        raise KvcastError(
            "the device has no room for these models: name one with --model"
        ) from None


class _MemoryFloors(Floors):
    """Bytes that a step reads over the rate of the device's memory."""

    def __init__(self, workload: GpuSteps, device: str, copied: int) -> None:
        read = {trial["model"]: workload.step_bytes(trial) for trial in workload.trials()}
        super().__init__(read, lambda _: memory_rates(device, copied))

    @override
    def least(self, backend: Backend, trial: Trial) -> Mapping[str, float]:
        rates = best_of(self._measured[trial["model"]])
        return {STEP: self._step_bytes[trial["model"]] / max(rates.values())}
