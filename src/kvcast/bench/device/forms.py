"""Ways to write a text with the same weights: what each computes a step, and how it is launched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.fx import GraphModule

from kvcast.bench.device import conditional
from kvcast.bench.device.conditional import Conditional
from kvcast.bench.device.steps import Step, arguments_of, captured, make_step, slots_for
from kvcast.bench.device.subjects import LayerCache, Subject, Text

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


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a form is made of.

    Attributes:
        program: takes tokens, lengths, offsets, caches and `given`.
        given: what else it takes.
        products: one of `kvcast.bench.device.steps.PRODUCTS`.
        launch: how a step is taken.

    """

    program: nn.Module
    given: tuple[Any, ...]
    products: str
    launch: Launch


class Steps:
    """Steps, each made once: forms that differ only in how they are launched share them."""

    def __init__(self, compile_step: Compile) -> None:
        self._compile = compile_step
        self._made: dict[tuple[nn.Module, str, int], Step] = {}

    def step(self, way: Way, text: Text, slots: int) -> Step:
        """Return a step over texts with the shapes of this one."""
        key = (way.program, way.products, slots)
        if key not in self._made:
            module = make_step(way.program, text, way.given, slots, way.products)
            self._made[key] = self._compile(module, arguments_of(text, way.given))
        return self._made[key]


class Writer:
    """Writes one text, over and over from where it had begun."""

    def __init__(self, subject: Subject, way: Way, steps: Steps) -> None:
        self._subject = subject
        self._way = way
        self._made = steps
        self._text = subject.begun.copied()
        self._steps: dict[int, Callable[[], object]] = {}  # by slots

    def prepare(self, new: int) -> None:
        """Compile and warm up all that a text of `new` more tokens takes."""
        for index in range(new):
            slots = self._slots(index)
            if slots not in self._steps:
                step = self._made.step(self._way, self._text, slots)
                arguments = arguments_of(self._text, self._way.given)
                self._steps[slots] = self._way.launch(step, arguments)
                self._steps[slots]()
        self.begin()

    def begin(self) -> None:
        """Go back to the text's beginning."""
        self._text.take_back(self._subject.begun)

    def write(self, new: int) -> None:
        """Write so many tokens more; returns before the device is done."""
        for index in range(new):
            self._steps[self._slots(index)]()

    def tokens(self, new: int) -> list[int]:
        """Return the tokens that were written; waits for the device."""
        first = self._subject.prompt + 1
        written: list[int] = self._text.written[first : first + new].tolist()
        return written

    def _slots(self, index: int) -> int:
        capacity = max(key.shape[2] for key, _ in self._text.caches)
        return slots_for(self._subject.prompt + index + 1, capacity)


def _called(step: Step, arguments: tuple[Any, ...]) -> Callable[[], object]:
    return partial(step, *arguments)


def ways(subject: Subject) -> tuple[dict[str, Way], dict[str, str]]:
    """Return the forms that a subject can be written in on its device, and why not in others."""
    found: dict[str, Way] = {}
    absent: dict[str, str] = {}
    if subject.source is not None:
        by_host = partial(Way, given=(subject.source,), products="sums", launch=_called)
        found["recompute"] = by_host(program=Recompute(subject.decode))
        if reason := conditional.unfit():
            absent["cond"] = reason
        else:
            found["cond"] = by_host(program=Conditional(subject.decode, subject.source))
    two = partial(Way, program=subject.decode, given=subject.given)
    found["programs"] = two(products="sums", launch=_called)
    if subject.begun.lengths.is_cuda:
        found["graphs"] = two(products="sums", launch=captured)
        found["graphs-library"] = two(products="library", launch=captured)
    else:
        absent |= dict.fromkeys(("graphs", "graphs-library"), "CUDA graphs need a CUDA device")
    return found, absent
