"""T5 and RoFormer-Sim with and without a cache, by eager PyTorch, token for token.

Without a cache each token processes the whole text so far, and a T5 projects its cross keys and
values again; the encoder runs once either way, as in `kvcast inspect cost`. A RoFormer-Sim has no
encoder: its source is read again, too. Weights are random, so texts mean nothing and must be equal.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from kvcast.families.blocks import project_cross_caches
from kvcast.families.table import family_with
from kvcast.inspect.cost import CostQuery, document, open_work
from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.spec.program import Node, ProgramWriter
from kvcast_bench.recompute.programs import STATES, encoded_states
from kvcast_bench.sources.cross import products
from kvcast_bench.sources.figures import TIMES, Clock, Figures, prefixed, spread, times
from kvcast_bench.sources.models import CONFIGS, call, published, random_model, self_caches


class Writer(Protocol):
    """Writes a greedy text of `new` tokens after one source."""

    new: int

    @abstractmethod
    def cached(self) -> list[int]:
        """Return the text, of which each call computes new positions alone."""

    @abstractmethod
    def recomputed(self) -> list[int]:
        """Return the text, of which each call computes everything."""


class T5Writer(Writer):
    def __init__(self, model: TorchModel, source: Sequence[int], new: int) -> None:
        self._decode, self.new = model["decode"], new
        self._start = model.dimensions.start_token
        self._caches = self_caches(model, new)
        self._lengths = torch.tensor([len(source)], dtype=torch.int32)
        write = ProgramWriter([STATES])
        of = model.dimensions
        sizes = of.decoder_layers, (2 * of.mixed, of.width), of.heads
        parts = project_cross_caches(write, Node(STATES), *sizes, bias=False)
        self._project = TorchProgram(write.program(**parts), list(parts), model.weights)
        encode = TorchProgram(
            encoded_states(family_with(of).write_programs(of)["encode"]), [STATES], model.weights
        )
        (self._states,) = encode(torch.tensor([source]), self._lengths)

    def _crossed(self) -> list[Tensor]:
        return [*self._project(self._states), self._lengths]

    @override
    def cached(self) -> list[int]:
        crossed, tokens = self._crossed(), [self._start]
        for length in range(self.new):
            logits = call(self._decode, tokens[-1:], length, self._caches, crossed)
            tokens.append(int(logits.argmax()))
        return tokens[1:]

    @override
    def recomputed(self) -> list[int]:
        tokens = [self._start]
        for _ in range(self.new):
            logits = call(self._decode, tokens, 0, self._caches, self._crossed())
            tokens.append(int(logits.argmax()))
        return tokens[1:]


class UnilmWriter(Writer):
    """A model with one cache for source and target."""

    def __init__(self, model: TorchModel, source: Sequence[int], new: int) -> None:
        self._decode, self.new, self._source = model["decode"], new, list(source)
        self._caches = self_caches(model, len(source) + new)

    def _read(self) -> Tensor:
        return call(self._decode, self._source, 0, self._caches, [])

    @override
    def cached(self) -> list[int]:
        tokens = [int(self._read().argmax())]
        while len(tokens) < self.new:
            length = len(self._source) + len(tokens) - 1
            logits = call(self._decode, tokens[-1:], length, self._caches, [])
            tokens.append(int(logits.argmax()))
        return tokens

    @override
    def recomputed(self) -> list[int]:
        tokens = [int(self._read().argmax())]
        while len(tokens) < self.new:
            # Two calls, because the first one's positions see each other in both directions.
            self._read()
            logits = call(self._decode, tokens, len(self._source), self._caches, [])
            tokens.append(int(logits.argmax()))
        return tokens


@dataclass(frozen=True)
class Case:
    shape: str
    writer: type[Any]
    source: int
    new: int

    def make(self, dimensions: Any) -> Writer:
        rng = np.random.default_rng(0)
        source = rng.integers(5, dimensions.vocab_size, self.source).tolist()
        writer: Writer = self.writer(random_model(dimensions), source, self.new)
        return writer

    def predicted(self) -> Mapping[str, int]:
        """Return the operations of products with weights, by `kvcast inspect cost`."""
        is_t5 = self.writer is T5Writer
        model = open_work(str(CONFIGS / self.shape), source=self.source if is_t5 else None)
        query = CostQuery(prompt=1 if is_t5 else self.source, new=self.new)
        every = document(self.shape, model, query, None)["calls"]["all"]
        return {
            way: sum(
                every[way]["flop"][part]
                for part in ("cross_keys_values", "keys_values", "linear", "head")
            )
            for way in ("cached", "recomputed")
        }


CASES = (
    Case("t5-small", T5Writer, source=128, new=16),
    Case("roformer-sim-base", UnilmWriter, source=30, new=8),
)


@torch.inference_mode()
def measure(clock: Clock) -> Sequence[Figures]:
    """Return a table with two rows for each model."""
    rows = []
    for case in CASES:
        writer, predicted = case.make(published(case.shape)), case.predicted()
        ways = {"cached": writer.cached, "recomputed": writer.recomputed}
        texts = {name: write() for name, write in ways.items()}
        same = sum(a == b for a, b in zip(*texts.values(), strict=True))
        seconds = clock.seconds(ways)
        for name, write in ways.items():
            each = [second / case.new for second in seconds[name]]
            rows.append(
                [
                    f"{case.shape}, {case.source} + {case.new} tokens",
                    name,
                    prefixed(products(write)),
                    prefixed(predicted[name]),
                    spread(each),
                    times(seconds[name], seconds["cached"]),
                    f"{same} of {case.new}",
                ]
            )
    return [
        Figures(
            head=[
                "shape",
                "",
                "FLOP of products that ran",
                "predicted",
                "ms a token",
                TIMES,
                "tokens equal",
            ],
            rows=rows,
            note=f"Random weights, fp32, eager PyTorch, one row, greedy, {clock.words}. "
            "Predicted by `kvcast inspect cost`: products with weights; attention is in neither "
            "count.",
        )
    ]
