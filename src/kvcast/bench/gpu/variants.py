"""Ways to write a text with the same weights: what each computes a step, and how it is launched."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import override

from kvcast.bench.backend import Backend, Tokens
from kvcast.bench.gpu.models import RandomModel
from kvcast.conditional.cross_attention import CachedCrossAttention
from kvcast.lowering.greedy_step import Step, Text, captured, make_step, slots_for
from kvcast.machine.device import seconds_of
from kvcast.nn.attention import CrossAttention

Compile = Callable[[GraphModule, tuple[Any, ...]], Step]

# Name, settings in words, program, whether a CUDA graph is replayed, products.
_VARIANTS = (
    ("recompute", "cross keys projected at every step", "recompute", False, "sums"),
    ("cond", "torch.cond on a flag, one program", "cond", False, "sums"),
    ("programs", "two programs", "cached", False, "sums"),
    ("graphs", "two programs, CUDA graphs", "cached", True, "sums"),
    ("graphs-library", "two programs, CUDA graphs, library products", "cached", True, "library"),
)


@dataclass(kw_only=True)
class GpuVariant(Backend):
    """Writes one text, over and over from where it had begun."""

    model: Any  # a RandomModel: there is no file
    of: str  # the model's name
    text: Text  # that is written, by all variants of the model
    step: Callable[[int], Step]  # from slots to read to a call that takes a step of the text
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
            capacity = max(key.shape[2] for key, _ in self.text.caches)
            held = range(timed.prompt + 1, timed.prompt + timed.new + 1)
            self.engine = [ready(slots_for(positions, capacity)) for positions in held]

    def write(self) -> tuple[float, Tokens]:
        """Write the text from its beginning; return the device's seconds, and the tokens."""
        self._rewind()
        seconds = seconds_of(self._write, str(self.text.lengths.device))
        first = self.model.timed.prompt + 1
        tokens: Tokens = self.text.written[first : first + len(self.engine)].tolist()
        return seconds, tokens

    def _write(self) -> None:
        for take in self.engine:
            take()

    def _ready(self, slots: int) -> Step:
        """Return a step that has been taken once."""
        take = self.step(slots)
        if self.is_graph:
            take = captured(take, self._rewind)
        self._rewind()
        take()
        return take

    def _rewind(self) -> None:
        # Caches too: a ring's later positions displace those that the earlier text needs.
        for own, earlier in zip(tree_leaves(self.text), tree_leaves(self.model.begun), strict=True):
            own.copy_(earlier)


def variants(
    name: str, model: RandomModel, compile_step: Compile, *, dtype: str
) -> Iterator[GpuVariant]:
    """Yield the ways to write a model's text; those that cannot be on its device say why."""
    text: Text = tree_map(torch.clone, model.begun)
    programs = {"cached": (model.decode, text)}
    if (source := model.source) is not None:
        from_source = text._replace(given=([(source,)] * len(text.caches),))
        conditional = partial(_conditional, positions=source.shape[1])
        programs["recompute"] = (_with_cross_attention(model.decode, _recomputing), from_source)
        programs["cond"] = (_with_cross_attention(model.decode, conditional), from_source)

    # Variants that differ only in how steps are launched share them.
    @cache
    def step(program: str, products: str, slots: int) -> Step:
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


def _with_cross_attention(
    decode: nn.Module, exchange: Callable[[CrossAttention], nn.Module]
) -> nn.Module:
    """Return a `kvcast.programs.whisper.Decode` over the same weights, with other attentions.

    They take an encoder's output [1, t, width] in place of a cross cache's key and value.
    """
    decode = copy.deepcopy(decode, {id(weight): weight for weight in decode.parameters()})
    layers: Any = decode.get_submodule("decoder.layers")
    for layer in layers:
        layer.cross_attention = exchange(layer.cross_attention)
    return decode


def _recomputing(cross: CrossAttention) -> nn.Module:
    """Project keys and values of the whole source at every step, as stock exports do."""
    cross.register_forward_pre_hook(lambda _, given: (given[0], *cross.project(given[1])))
    return cross


def _conditional(cross: CrossAttention, positions: int) -> nn.Module:
    """Return `kvcast.conditional`'s cross-attention: one program, torch.cond on a flag.

    The first call projects the source and later ones read what it left, so a text after another
    needs the same source.
    """
    cached = CachedCrossAttention(WhisperAttention(cross), rows=1, source_positions=positions)
    cached.register_forward_hook(lambda _module, _given, results: results[0])
    return cached


class WhisperAttention(nn.Module):
    """A cross-attention's weights under the names that transformers has for them."""

    def __init__(self, cross: CrossAttention) -> None:
        super().__init__()
        weights, biases = cross.key_value.weight.chunk(2), cross.key_value.bias.chunk(2)
        self.k_proj, self.v_proj = map(_linear, weights, biases)
        self.q_proj, self.out_proj = cross.query, cross.out
        self.num_heads, self.scaling = cross.heads.count, cross.heads.scale


def _linear(weight_oi: Tensor, bias_o: Tensor) -> nn.Linear:
    outputs, inputs = weight_oi.shape
    made = nn.Linear(inputs, outputs, device="meta")
    # Copies, since what a branch of torch.cond is given must not overlap.
    made.load_state_dict({"weight": weight_oi.clone(), "bias": bias_o.clone()}, assign=True)
    return made.requires_grad_(requires_grad=False)
