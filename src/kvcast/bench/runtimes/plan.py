"""What a family of models brings to the measurement. Knows no family."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from kvcast.bench.cost import Cost
from kvcast.bench.runtimes.contenders import Cached
from kvcast.bench.runtimes.forms import Form


class Plan(Protocol):
    """A model, and what its forms are to do."""

    @property
    def contestant(self) -> str:
        """Name the far side, "module:class", whose `take` is given a `measure`."""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """Of the contestant, beside the contender's name and the task."""

    @property
    def kinds(self) -> Sequence[type[Cached]]:
        """Kinds of contenders that each form has."""

    @property
    def figures(self) -> Mapping[str, str]:
        """What is shown, and which measure's answers have it under that name, in seconds."""

    @property
    def step(self) -> str:
        """The figure that is of one call of the decoder for one token."""

    @property
    def work(self) -> Mapping[str, str]:
        """What is done in the time of each figure, in words."""

    @property
    def widest(self) -> tuple[int, int]:
        """Tokens and width of the largest product."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the document says of the plan."""

    def costs(self, form: Form, *, recomputes: bool) -> Mapping[str, Cost]:
        """Count the least work of some figures."""

    def facts(self, figure: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is said of a figure beside its time, from the last run's answer."""


def in_form(form: Form, cost: Cost) -> Cost:
    """Charge a cost that was counted for fp32 outside of quantised matrices.

    Numbers of bf16 are half as long. Nobody measures their rate: int8's is no lower, and a floor
    must not be too high.
    """
    if form.precision == "bf16":
        cost = replace(cost, bytes=cost.bytes / 2)
    if form.precision in form.of.bf16:
        cost = replace(cost, int8=cost.int8 + cost.fp32, fp32=0.0)
    return cost
