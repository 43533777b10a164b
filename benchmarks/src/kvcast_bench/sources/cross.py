"""A decode step with and without a cross-attention cache, in eager PyTorch.

Recomputing projects the encoder's output in every layer, as a stock export does; otherwise a step
reads the cached projections. Weights are random: time does not depend on them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from kvcast.inspect.work import ModelWork
from kvcast_bench.gpu import random_model
from kvcast_bench.recompute.programs import DecodeFromStates
from kvcast_bench.sources.figures import TIMES, Clock, Figures, spread, times
from kvcast_bench.sources.models import published
from kvcast_bench.workloads.gpu import TimedModel

POSITION = 100
SHAPES = ("whisper-tiny.en", "whisper-large-v3-turbo")


@dataclass(frozen=True)
class Step:
    """One token of one row.

    Attributes:
        take: recomputing or not, by name; returns logits.
        projections: operations that `kvcast inspect` counts for cross keys and values.

    """

    take: Mapping[str, Callable[[], Tensor]]
    projections: int


@torch.inference_mode()
def step(shape: str) -> Step:
    """Return a step of a model of this shape, in fp32."""
    dimensions = published(shape)
    timed = TimedModel(dimensions=dimensions, prompt=POSITION, new=1)
    model = random_model(timed, torch.float32, "cpu")
    begun, source = model.begun, model.source
    given = [begun.token_rs, begun.lengths, torch.zeros(1, dtype=torch.int64), *begun.caches]
    once = model.programs["decode"]
    recomputing = DecodeFromStates(dimensions, model.programs.weights)
    return Step(
        take={
            "computed once": lambda: once(*given, *begun.given)[0],
            "recomputed": lambda: recomputing(*given, source)[0],
        },
        projections=ModelWork(dimensions=dimensions).project().cross_keys_values,
    )


@torch.inference_mode()
def products(take: Callable[[], object]) -> int:
    """Return the operations of the matrix products that PyTorch runs, but for attention's."""
    with FlopCounterMode(display=False) as counter:
        take()
    return int(counter.get_total_flops())


@torch.inference_mode()
def measure(clock: Clock) -> Sequence[Figures]:
    """Return a table with two rows for each shape."""
    rows = []
    for shape in SHAPES:
        of = step(shape)
        once, recomputed = (of.take[name]() for name in ("computed once", "recomputed"))
        error = f"{float((once - recomputed).abs().max()):.1e}"
        seconds = clock.seconds(of.take)
        baseline = seconds["computed once"]
        rows += [
            [
                shape,
                name,
                f"{products(take) / 1e9:.3f}",
                f"{of.projections / 1e9 if name == 'recomputed' else 0:.3f}",
                spread(seconds[name]),
                times(seconds[name], baseline),
                error,
            ]
            for name, take in of.take.items()
        ]
    return [
        Figures(
            head=[
                "shape",
                "cross keys, values",
                "GFLOP of products that ran",
                "of these predicted for them",
                "ms a step",
                TIMES,
                "error",
            ],
            rows=rows,
            note=f"Random weights, fp32, eager PyTorch, one row, one token at position {POSITION}, "
            f"1,500 source positions, {clock.words}. Error: largest difference of any logit.",
        )
    ]
