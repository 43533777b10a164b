"""Ways to write a text with the same weights: what each computes a step, and how it is launched."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves, tree_map
from typing_extensions import override

from kvcast.bench.backend import Backend, Tokens
from kvcast.bench.gpu.conditional import Conditional
from kvcast.bench.gpu.device import seconds_of
from kvcast.bench.gpu.models import LayerCache, RandomModel, Text
from kvcast.bench.gpu.steps import Step, arguments_of, captured, make_step, slots_for

Compile = Callable[[GraphModule, tuple[Any, ...]], Step]
Launch = Callable[[Step, tuple[Any, ...]], Callable[[], object]]
"""From a step and what it takes to a call that takes it."""


class Recompute(nn.Module):
    """Projects the cross keys and values of the whole source at every step, as stock exports do."""

    def __init__(self, decode: nn.Module) -> None:
        super().__init__()
        self.decode = decode

    def forward(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        caches: Sequence[LayerCache],
        source_btx: Tensor,
    ) -> Any:
        """Like `kvcast.programs.whisper.Decode`, from an encoder's output."""
        cross = self.decode.decoder.project_cross(source_btx)  # type: ignore[union-attr, operator]
        return self.decode(tokens_rs, lengths, offsets, caches, cross)


class Steps:
    """Steps, each made once: variants that differ only in how they are launched share them."""

    def __init__(self, compile_step: Compile) -> None:
        self._compile = compile_step
        self._made: dict[tuple[nn.Module, str, int], Step] = {}

    def step(
        self, program: nn.Module, given: tuple[Any, ...], text: Text, slots: int, products: str
    ) -> Step:
        """Return a step over texts with the shapes of this one."""
        key = (program, products, slots)
        if key not in self._made:
            module = make_step(program, text, given, slots, products)
            self._made[key] = self._compile(module, arguments_of(text, given))
        return self._made[key]


@dataclass(kw_only=True)
class GpuVariant(Backend):
    """Writes one text, over and over from where it had begun."""

    model: Any  # a RandomModel: there is no file
    of: str  # the model's name
    steps: Steps  # of all variants of the model
    new: int  # tokens to write
    program: Callable[[], nn.Module]  # makes what takes tokens, lengths, offsets, caches, `given`
    given: tuple[Any, ...]
    launch: Launch
    products: str = "sums"  # one of kvcast.bench.gpu.steps.PRODUCTS
    reason: str | None = None  # why it cannot be
    settings: str = ""
    packages = ("torch",)
    # By slots.
    _calls: dict[int, Callable[[], object]] = field(default_factory=dict, init=False)

    @override
    def unfit(self) -> str | None:
        return self.reason

    @override
    def takes(self, trial: Any) -> bool:
        return bool(trial["model"] == self.of)

    @override
    def load(self) -> None:
        if self.engine is None:
            self.engine = self.program()
            self._text: Text = tree_map(torch.clone, self.model.begun)
        for index in range(self.new):
            slots = self._slots(index)
            if slots not in self._calls:
                step = self.steps.step(self.engine, self.given, self._text, slots, self.products)
                self._calls[slots] = self.launch(step, arguments_of(self._text, self.given))
                self._calls[slots]()

    @property
    def step_bytes(self) -> float:
        """The bytes that a step must read, on average over the text.

        Every weight once, of self caches what is held (a ring holds no more than its slots), and
        the cross caches.
        """
        held = range(self.model.prompt, self.model.prompt + self.new)
        works = [self.model.counted.call(length, 1) for length in held]
        numbers = sum(one.weights + one.held + one.written + one.cross for one in works)
        mean: float = numbers / self.new * self.model.begun.caches[0][0].element_size()
        return mean

    def write(self) -> tuple[float, Tokens]:
        """Write the text from its beginning; return the device's seconds, and the tokens."""
        # Caches too: a ring's later positions displace those that the earlier text needs.
        for own, earlier in zip(
            tree_leaves(self._text), tree_leaves(self.model.begun), strict=True
        ):
            own.copy_(earlier)
        seconds = seconds_of(self._write, str(self._text.lengths.device))
        first = self.model.prompt + 1
        tokens: Tokens = self._text.written[first : first + self.new].tolist()
        return seconds, tokens

    def _write(self) -> None:
        for index in range(self.new):
            self._calls[self._slots(index)]()

    def _slots(self, index: int) -> int:
        capacity = max(key.shape[2] for key, _ in self._text.caches)
        return slots_for(self.model.prompt + index + 1, capacity)


def variants(
    name: str, model: RandomModel, compile_step: Compile, *, new: int, dtype: str
) -> Iterator[GpuVariant]:
    """Yield the ways to write a model's text; those that cannot be on its device say why."""
    source, everybodys = (
        model.source,
        {
            "of": name,
            "model": model,
            "steps": Steps(compile_step),
            "new": new,
            "dtype": dtype,
            "precision": dtype,
            "given": model.given,
            "launch": _called,
        },
    )

    def make(
        variant: str, settings: str, program: Callable[[], nn.Module], **how: Any
    ) -> GpuVariant:
        return GpuVariant(
            name=f"{name}-{variant}",
            settings=settings,
            program=program,
            **{**everybodys, **how},
        )

    if source is not None:
        projected = "cross keys projected at every step"
        yield make("recompute", projected, partial(Recompute, model.decode), given=(source,))
        yield make(
            "cond",
            "torch.cond on a flag, one program",
            partial(Conditional, model.decode, source),
            given=(source,),
            reason=None if find_spec("transformers") else "transformers is not installed",
        )
    reason = None if model.begun.lengths.is_cuda else "CUDA graphs need a CUDA device"
    graphs = {"launch": captured, "reason": reason}
    yield make("programs", "two programs", lambda: model.decode)
    yield make("graphs", "two programs, CUDA graphs", lambda: model.decode, **graphs)
    library = "two programs, CUDA graphs, library products"
    yield make("graphs-library", library, lambda: model.decode, **graphs, products="library")


def _called(step: Step, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return partial(step, *arguments)
