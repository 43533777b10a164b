"""Finds the first layer and position whose cache differs from the reference's.

Both models are fed the same tokens and compared after each call: the first difference was computed
by the layer before it, or by its own projection.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import ENCODED, CacheLayers
from kvcast.runtimes.base import Float32, Int64, Runtime

_LARGEST = {"float16": 65504.0}
"""The largest number of a dtype that models' numbers exceed."""
_CODES = "int8"
_CLEAN = 0.03
"""Share of a tolerance that is rounding for sure."""
_CHUNK = 8
"""Positions of a prompt that are fed at once, so that rings still have them all."""


@dataclass(frozen=True)
class CachedTensor:
    """The content of a tensor of a layer's cache: a row's, by position."""

    layer: int  # index among the layers with caches
    part: str  # of a latent's line its rotated channels are "key"
    dtype: str  # of the candidate, as NumPy spells it
    window: int | None  # None where all positions stay
    is_: Sequence[Float32]  # [heads, d] or a whole state for each position
    was: Sequence[Float32]

    @property
    def place(self) -> str:
        parts = "index keys" if self.part == "index" else f"{self.part.removesuffix('s')}s"
        return f"{parts} of layer {self.layer}"

    def errors_p(self) -> NDArray[np.float64]:
        """Return the largest relative difference of a head, by position; inf where not finite."""
        return np.array([_error(*both) for both in zip(self.is_, self.was, strict=True)])


@dataclass(frozen=True)
class Run:
    tensors: Sequence[CachedTensor]
    is_pv: Float32
    was_pv: Float32

    def logit_errors_p(self) -> NDArray[np.float64]:
        """Return the largest difference, in standard deviations of logits, by position."""
        if not np.isfinite(self.is_pv).all():
            return np.where(np.isfinite(self.is_pv).all(axis=1), 0.0, np.inf)
        off: NDArray[np.float64] = np.abs(self.is_pv - self.was_pv).max(axis=1) / self.was_pv.std()
        return off


def culprit(run: Run, tolerance: float) -> str:
    """Describe the first difference above a relative tolerance; empty if none."""
    before: CachedTensor | None = None
    for tensor in run.tensors:
        errors_p = tensor.errors_p()
        if (errors_p > tolerance).any():
            return _tensor_words(tensor, before, errors_p, run, tolerance)
        before = tensor
    errors_p = run.logit_errors_p()
    if not (errors_p > tolerance).any():
        return ""
    cause = "last feed-forward, norm or head"
    if before is not None and _begins(errors_p, tolerance):
        cause = _attention_of(before, errors_p, tolerance)
    return f"caches of all layers agree and logits differ{_from(errors_p, tolerance)}: {cause}"


def _tensor_words(
    tensor: CachedTensor,
    before: CachedTensor | None,
    errors_p: NDArray[np.float64],
    run: Run,
    tolerance: float,
) -> str:
    """Describe the first tensor that differs, and its possible cause."""
    first, differ = _first(errors_p, tolerance), f"differ{_from(errors_p, tolerance)}"
    is_, was = tensor.is_[first], tensor.was[first]
    if not np.isfinite(is_).all():
        return _not_finite(tensor, first, _from(errors_p, tolerance))
    if not is_.any():
        return f"{tensor.place} are zeros{_from(errors_p, tolerance)}: they were not written"
    beside = [other for other in run.tensors if other.layer == tensor.layer and other is not tensor]
    alone = all((other.errors_p() <= tolerance).all() for other in beside)
    if tensor.part == "key" and alone:
        is_even = is_.shape[-1] % 2 == 0
        if is_even and _error(_pair_lengths(is_), _pair_lengths(was)) <= tolerance:
            return f"{tensor.place} turn by other angles{_from(errors_p, tolerance)}: rotary base"
        return f"{tensor.place} {differ} and its values do not: projection of keys"
    if tensor.part == "value" and alone:
        return f"{tensor.place} {differ} and its keys do not: projection of values"
    if tensor.part == "latent" and alone:
        return f"{tensor.place} {differ} and its keys do not: projection or norm of latents"
    if before is None:
        return f"{tensor.place} {differ}: embedding, first norm or projection"
    fine = f"those of layer {before.layer} do not"
    if _begins(errors_p, tolerance):
        return f"{tensor.place} {differ}, {fine}: {_attention_of(before, errors_p, tolerance)}"
    return (
        f"{tensor.place} {differ}, {fine}: layer {before.layer} after its cache, or the projection "
        f"of layer {tensor.layer}"
    )


def _attention_of(layer: CachedTensor, errors_p: NDArray[np.float64], tolerance: float) -> str:
    """Describe the cause if only later positions differ."""
    first, window = _first(errors_p, tolerance), layer.window
    if window is not None and first in (window - 1, window):
        return f"attention of layer {layer.layer} sees other positions than its window of {window}"
    return f"attention of layer {layer.layer}: its bias, mask, rotation, query or index"


def _first(errors_p: NDArray[np.float64], tolerance: float) -> int:
    return int((errors_p > tolerance).argmax())


def _begins(errors_p: NDArray[np.float64], tolerance: float) -> bool:
    """Return whether all positions before the first different one are equal but for rounding."""
    first = _first(errors_p, tolerance)
    return first > 0 and float(errors_p[:first].max()) <= tolerance * _CLEAN


def _from(errors_p: NDArray[np.float64], tolerance: float) -> str:
    first = _first(errors_p, tolerance)
    return f" from position {first} on" if first else ""


def _not_finite(tensor: CachedTensor, first: int, since: str) -> str:
    largest = float(np.abs(tensor.was[first]).max())
    most = _LARGEST.get(tensor.dtype, np.inf)
    if largest > most:
        return (
            f"{tensor.place} overflow{since}: they are up to {largest:.3g}, and "
            f"{tensor.dtype} holds {most:,.0f}"
        )
    return f"{tensor.place} are not finite{since}"


def run_both(
    candidate: Runtime,
    reference: Runtime,
    layers: Sequence[CacheLayers],
    source: tuple[NDArray[Any], ...],
    tokens_s: Int64,
    prompt: int,
) -> Run:
    """Feed both models the tokens of one row, `prompt` of them first (a prefix LM's source).

    Quantized tensors are left out: their codes depend on scales stored elsewhere.
    """
    whole = hasattr(candidate, "embed")  # a prefix model reads its source in one call
    is_, was = (
        list(_fed(runtime, source, tokens_s, prompt, whole=whole))
        for runtime in (candidate, reference)
    )
    tensors = []
    for i, (rotated, layer, part, dtype, ring) in enumerate(_named(layers)):
        if dtype != _CODES:
            held = ([parts[i] for _, parts in fed] for fed in (is_, was))
            tensors += _apart(CachedTensor(layer, part, dtype, ring, *held), rotated)
    logits = (np.stack([logits_v for logits_v, _ in fed]) for fed in (is_, was))
    return Run(tensors, *logits)


def _apart(tensor: CachedTensor, rotated: int) -> list[CachedTensor]:
    """Divide a latent's lines into latents and the rotated channels of keys."""
    if not rotated:
        return [tensor]
    spans = {tensor.part: slice(None, -rotated), "key": slice(-rotated, None)}
    return [
        replace(
            tensor,
            part=part,
            is_=[line[..., span] for line in tensor.is_],
            was=[line[..., span] for line in tensor.was],
        )
        for part, span in spans.items()
    ]


def _named(layers: Sequence[CacheLayers]) -> list[tuple[int, int, str, str, int | None]]:
    """Return how many channels are rotated keys, and the first fields, of each tensor."""
    each = [run for run in layers if run.kind not in ENCODED for _ in range(run.layers)]
    return [
        (
            run.rotated if part == "latent" else 0,
            *(i, part, run.dtype, run.capacity if run.kind == "ring" else None),
        )
        for i, run in enumerate(each)
        for part in run.parts
    ]


def _fed(
    runtime: Any, source: tuple[NDArray[Any], ...], tokens_s: Int64, prompt: int, *, whole: bool
) -> Iterator[tuple[Float32, list[Float32]]]:
    """Yield each position's logits [vocab], and its part of each tensor."""
    if source:
        cache = runtime.new_cache(1, len(tokens_s), inputs=1)
        cache = runtime.reset(runtime.encode(cache, [0], *source), [0], [0])
    else:
        cache = runtime.new_cache(1, len(tokens_s))
    first = 0
    while first < len(tokens_s):
        count = (prompt if whole else min(_CHUNK, prompt - first)) if first < prompt else 1
        compute = runtime.prefill if first < prompt else runtime.decode
        logits_1pv, cache = compute(
            [tokens_s[first : first + count]], cache, positions=range(count)
        )
        memory, stop = cache.memory, first + count
        held = [
            _by_position(memory.held(0, i, range(first, stop), stop), count)
            for i in range(len(memory.cells))
        ]
        for i in range(count):
            yield logits_1pv[0, i].copy(), [part[i] for part in held]
        first = stop


def _by_position(array: Any, count: int) -> Sequence[Float32]:
    """Return [heads, d] of each position (axes may be in another order), or a whole state."""
    values: Float32 = np.asarray(
        array.float().cpu() if hasattr(array, "cpu") else array, np.float32
    )
    if values.ndim == len("hnhd"):
        before, held, after, size = values.shape
        values = values.swapaxes(1, 2).reshape(before * after, held, size)
    if values.shape[1] != count:
        return [values] * count
    return [values[:, i] for i in range(count)]


def _error(is_: Float32, was: Float32) -> float:
    if not np.isfinite(is_).all():
        return np.inf
    axes = tuple(range(1, was.ndim))
    off = np.sqrt(np.square(is_ - was, dtype=np.float64).sum(axis=axes))
    size = np.sqrt(np.square(was, dtype=np.float64).sum(axis=axes))
    return float((off / np.maximum(size, 1e-6)).max())


def _pair_lengths(key_hd: Float32) -> Float32:
    return np.hypot(*np.split(key_hd, 2, axis=-1))
