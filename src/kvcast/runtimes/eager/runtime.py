"""Runs programs of every interface in eager PyTorch; PyTorch's thread settings."""

import ctypes
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from kvcast.families.base import Interface
from kvcast.families.programs import ENCODED, CacheLayers
from kvcast.families.table import family_with
from kvcast.runtimes.alignment import NumpyAligningRuntime
from kvcast.runtimes.base import Float32, Int64, Tokens
from kvcast.runtimes.cache import CachedRuntime, CacheHandle
from kvcast.runtimes.calls import Run
from kvcast.runtimes.memory import Layer, TurningRing, recurrent_layers
from kvcast.runtimes.prefix import EmbeddingRuntime
from kvcast.runtimes.text_encoder import TextEncoderRuntime
from kvcast.spec.ring import neighbours


class Model(Protocol):
    """A model as eager runs it: `kvcast.models.executor.TorchModel`."""

    @property
    def dimensions(self) -> Any:
        """Sizes, the family's."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a program: a function of tensors, which writes caches in place."""


class TorchRuntime(CachedRuntime):
    device = "cpu"

    @override
    def make(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)


class TorchEncoderDecoder(TorchRuntime, NumpyAligningRuntime):
    """Programs over flat lists of tensors; a slot's begins with key and value [n, heads, t, d]."""

    def encode_source(self, *source: Tensor) -> Sequence[Tensor]:
        raise NotImplementedError

    def decode_tokens(
        self,
        tokens_rs: Tensor,
        lengths: Tensor,
        offsets: Tensor,
        own: Sequence[Tensor],
        encoded: Sequence[Tensor],
    ) -> Sequence[Tensor]:
        """Run `decode` on the CPU, writing `own`; return logits fp32 [rows, p, vocab] first."""
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
    """A slot has each layer's cross key and value, and arguments of `encode`."""

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
    return [layer for run in runs for _ in range(run.layers) for layer in _layers(run, capacity)]


def _layers(run: CacheLayers, capacity: int) -> list[Layer]:
    if layers := recurrent_layers(run, torch.float32):
        return layers
    slots = min(run.capacity if run.kind == "ring" else capacity, capacity)
    ring = TurningRing(run.capacity, slots) if run.kind == "ring" else None
    return [Layer((heads, slots, size), torch.float32, ring) for heads, _, size in run.sizes]


class TorchDecoderOnly(TorchRuntime):
    """A program over flat lists of tensors; the new tokens of all rows come concatenated."""

    def decode_packed(
        self,
        tokens_n: Tensor,
        rows: list[int],
        counts: list[int],
        lengths: Tensor,
        offsets: Tensor,
        caches: Sequence[Tensor],
    ) -> Tensor:
        """Return logits fp32 [m, vocab] on the CPU, and write caches.

        `tokens_n` int64 [n] are the new tokens of `rows`, ascending, `counts` of each; `lengths`
        int32 [rows of the caches] the positions before the call; `offsets` int64 [m] the indices of
        the positions whose logits are returned, equally many per row.
        """
        raise NotImplementedError

    @override
    @torch.inference_mode()
    def run(
        self, tokens: Tokens, cache: CacheHandle, rows: list[int], positions: Sequence[int]
    ) -> Float32:
        plan = cache.plan(rows, tokens)
        order = [i for run in plan.runs for i in run.index]
        counts = [len(tokens[i]) for i in order]
        ends = np.cumsum(counts)
        offsets = [
            end - new + position % new
            for end, new in zip(ends.tolist(), counts, strict=True)
            for position in positions
        ]
        lengths = np.empty_like(cache.lengths)
        lengths[cache.memory.places] = cache.lengths
        logits = self.decode_packed(
            torch.from_numpy(np.concatenate([tokens[i] for i in order]).astype(np.int64)),
            [place for run in plan.runs for place in run.places],
            counts,
            torch.from_numpy(lengths),
            torch.tensor(offsets),
            cache.memory.cells,
        )
        logits_rpv: Float32 = logits.unflatten(0, (len(tokens), -1)).numpy()
        if isinstance(plan.places, slice):
            return logits_rpv
        return logits_rpv[np.argsort(order)]


def decode_neighbours(
    decode: Callable[..., Sequence[Tensor]],
    tokens_n: Tensor,
    rows: list[int],
    counts: list[int],
    lengths: Tensor,
    offsets: Tensor,
    caches: Sequence[Tensor],
) -> Tensor:
    """As `decode_packed`, with a program of equal rows: adjacent ones share a call on views."""
    offsets_rp = offsets.view(len(rows), -1)
    logits, first, row = [], 0, 0
    for part, count in neighbours(rows, counts):
        size = part.stop - part.start
        tokens_rs = tokens_n[first : first + size * count].view(size, count)
        views = [cache[part] for cache in caches]
        results = decode(tokens_rs, lengths[part], offsets_rp[row] - first, *views)
        logits.append(results[0].flatten(0, 1))
        first, row = first + size * count, row + size
    return torch.cat(logits)


class EagerDecoderOnly(TorchDecoderOnly):
    """A ring has exactly the window's slots."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @override
    def layers(self, capacity: int) -> Sequence[Layer]:
        dimensions = self._model.dimensions
        return layers_of(family_with(dimensions).caches(dimensions), capacity)

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        logits_mv: Tensor = self._model["decode"].packed(*arguments)
        return logits_mv


class EagerPrefix(EagerDecoderOnly, EmbeddingRuntime):
    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.width: int = model.dimensions.width
        self.max_positions: int = model.dimensions.max_positions

    @override
    def decode_packed(self, *arguments: Any) -> Tensor:
        return decode_neighbours(self._model["decode"], *arguments)

    @override
    @torch.inference_mode()
    def first_hidden(self, tokens_s: Int64) -> Float32:
        empty, first = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        caches = self.new_cache(1, len(tokens_s)).memory.cells
        given = (torch.from_numpy(tokens_s)[None], empty, first, *caches)
        _, hidden, *_ = self._model["decode"](*given)
        first_x: Float32 = hidden[0, 0].numpy()
        return first_x

    @override
    @torch.inference_mode()
    def pool(self, hidden_nx: Float32) -> Float32:
        if not self._model.dimensions.pooled:
            return hidden_nx
        # A copy in torch's alignment, on which the order of additions may depend.
        (pooled,) = self._model["pool"](torch.from_numpy(hidden_nx).clone())
        pooled_nx: Float32 = pooled.numpy()
        return pooled_nx


class EagerTextEncoder(TextEncoderRuntime):
    def __init__(self, model: Model) -> None:
        inputs = family_with(model.dimensions).programs(model.dimensions)
        super().__init__(
            asdict(model.dimensions), {name: each.inputs for name, each in inputs.items()}
        )
        self._model = model

    @override
    @torch.inference_mode()
    def run(
        self, program: str, given: Mapping[str, NDArray[Any]], shape: tuple[int, ...]
    ) -> Float32:
        # Copies in torch's alignment, on which the order of additions may depend.
        [result] = self._model[program](*(torch.from_numpy(x).clone() for x in given.values()))
        values: Float32 = result.numpy()
        return values


_RUNTIMES: Mapping[Interface, Any] = {
    "decoder-only": EagerDecoderOnly,
    "encoder-decoder": EagerEncoderDecoder,
    "prefix": EagerPrefix,
    "encoder": EagerTextEncoder,
}


def eager_runtime(model: Model) -> Any:
    return _RUNTIMES[family_with(model.dimensions).interface](model)


# mallopt(3)'s parameter ids in glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# More than one call of a program needs; and glibc's maximum.
_KEPT_BYTES, _LARGEST_BLOCK = 1 << 30, 32 << 20


def use_threads(threads: int) -> None:
    """Compute with this many threads, and keep freed memory for the next call.

    glibc unmaps large free blocks: 100 of 250 ms of a prefill of 512 tokens were page faults. Peak
    memory is unchanged. A user's malloc settings take precedence.
    """
    torch.set_num_threads(threads)
    if platform.libc_ver()[0] == "glibc" and not _is_set_by_user():
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST_BLOCK)


def _is_set_by_user() -> bool:
    named = any(name.startswith("MALLOC_") for name in os.environ)
    return named or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
