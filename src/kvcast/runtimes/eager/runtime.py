"""Encoder-decoder programs run by PyTorch as they are.

The model comes as an argument: this module knows its programs' signatures and no family.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from kvcast.families.caches import ENCODED, CacheLayers
from kvcast.families.table import family_with
from kvcast.runtimes.alignment import NumpyAligningRuntime
from kvcast.runtimes.base import Float32, Int64, Tokens
from kvcast.runtimes.cache import CachedRuntime, CacheHandle, Run
from kvcast.runtimes.memory import Layer, TurningRing, recurrent_layers


class Model(Protocol):
    """A model as eager runs it: `kvcast.models.executor.TorchModel`."""

    @property
    def dimensions(self) -> Any:
        """Sizes, the family's."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a program: a function of tensors, which writes caches in place."""


class TorchRuntime(CachedRuntime):
    """A runtime over torch tensors.

    Attributes:
        device: where caches are.

    """

    device = "cpu"

    @override
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


class TorchEncoderDecoder(TorchRuntime, NumpyAligningRuntime):
    """Programs over flat lists of tensors; a slot has encoded tensors and kept inputs.

    That begins with key and value of each layer, [inputs, heads, t, d].
    """

    def encode_source(self, *source: Tensor) -> Sequence[Tensor]:
        """Return the arguments of `decode_tokens` for inputs, each [inputs, ...]."""
        raise NotImplementedError

    def decode_tokens(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        own: Sequence[Tensor],
        encoded: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        """Return the results of the program `decode` but for caches, on the CPU.

        The first is the logits fp32 [rows, p, vocab]. The self caches `own` are written.
        """
        raise NotImplementedError

    @override
    @torch.inference_mode()
    def encode(
        self, cache: CacheHandle, slots: Sequence[int], *source: NDArray[Any]
    ) -> CacheHandle:
        cache.vacate(slots)
        # Copies: a cache keeps lengths, and the caller's arrays may become something else.
        first, *given = (torch.from_numpy(np.array(part, order="C")) for part in source)
        cache.memory.fill(slots, [*self.encode_source(first, *given), *self.kept(given)])
        return cache

    def kept(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the inputs of `encode` after the first that `decode` takes as well."""
        return given

    @override
    @torch.inference_mode()
    def run(
        self, tokens: Tokens, cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        plan = cache.plan(rows, tokens)
        logits = [self._results(tokens, cache, rows, positions, run)[0] for run in plan.runs]
        return plan.in_order([logits_rpv.numpy() for logits_rpv in logits])

    @override
    @torch.inference_mode()
    def query(
        self, tokens_s: Int64, cache: CacheHandle, row: int, positions: Sequence[int]
    ) -> tuple[Float32, Float32]:
        (run,) = cache.plan([row], [tokens_s]).runs
        logits, queries = self._results([tokens_s], cache, [row], positions, run)
        return logits[0].numpy(), queries[0].numpy()

    @override
    @torch.inference_mode()
    def cross_keys(self, cache: CacheHandle, row: int, layer: int, heads: Sequence[int]) -> Float32:
        slots = cache.memory.slots
        key_htd: Tensor = slots.parts[2 * layer][slots.places[cache.input_of(row)]]
        chosen: Float32 = key_htd[list(heads)].float().cpu().numpy()
        return chosen

    def _results(
        self,
        tokens: Tokens,
        cache: CacheHandle,
        rows: list[int],
        positions: Sequence[int],
        run: Run,
    ) -> Sequence[Tensor]:
        own, encoded = cache.memory.views(run.places, run.slots)
        return self.decode_tokens(
            torch.from_numpy(np.stack([tokens[i] for i in run.index])),
            torch.from_numpy(cache.lengths[[rows[i] for i in run.index]]),
            torch.from_numpy(np.asarray(positions, np.int64) % run.new),
            own,
            encoded,
        )


class EagerEncoderDecoder(TorchEncoderDecoder):
    """A cross cache's arrays are key and value of each layer, and what `encode` took beside."""

    def __init__(self, model: Model) -> None:
        self._model = model
        family = family_with(model.dimensions)
        self._runs = [run for run in family.caches(model.dimensions) if run.kind not in ENCODED]
        self._tensors = len(self.layers(1))
        self.longest = family.positions(model.dimensions)
        self.alignment_heads = getattr(model.dimensions, "alignment_heads", ())

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        return layers_of(self._runs, capacity)

    @override
    def kept(self, given: Sequence[Tensor]) -> Sequence[Tensor]:
        read = set(self._model["decode"].program.inputs)
        names = self._model["encode"].program.inputs[1:]
        return [part for name, part in zip(names, given, strict=True) if name in read]

    @override
    def encode_source(self, *source: Tensor) -> Sequence[Tensor]:
        cross_caches: Sequence[Tensor] = self._model["encode"](*source)
        return cross_caches

    @override
    def decode_tokens(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        own: Sequence[Tensor],
        encoded: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        results = self._model["decode"](tokens_rs, lengths, offsets, *own, *encoded)
        kept: Sequence[Tensor] = results[: len(results) - self._tensors]
        return kept


def layers_of(runs: Sequence[CacheLayers], capacity: int) -> list[Layer]:
    """Describe the tensors of layers in a cache for sequences of `capacity` positions."""
    return [layer for run in runs for _ in range(run.layers) for layer in _layers(run, capacity)]


def _layers(run: CacheLayers, capacity: int) -> list[Layer]:
    if layers := recurrent_layers(run, torch.float32):
        return layers
    slots = min(run.capacity if run.kind == "ring" else capacity, capacity)
    ring = TurningRing(run.capacity, slots) if run.kind == "ring" else None
    return [Layer((run.heads, slots, run.head_dim), torch.float32, ring)] * 2
