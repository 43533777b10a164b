"""Opens a model by any recipe without repacking, and compares its tokens with fp32's.

Each matrix is packed once in each precision; a recipe only selects which one a program reads.
So all packings are in memory at once: 1.4 times the size of fp32.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint
from kvcast.families.programs import CacheLayers
from kvcast.quantizing.calibration_samples import CalibrationSample
from kvcast.runtimes.base import Float32, Int64
from kvcast.runtimes.native.bundles import cache_layers, manifest_of
from kvcast.runtimes.native.bundles import open_checkpoint as open_native
from kvcast.runtimes.native.interpreter import Interpreter
from kvcast.runtimes.native.library import Machine
from kvcast.runtimes.native.matrices import choices, roles_of
from kvcast.runtimes.native.opcodes import SCALE_BYTES
from kvcast.runtimes.native.plan_builder import Experts, Matrix
from kvcast.runtimes.native.weights import CheckpointWeights, packed_constants
from kvcast.runtimes.target import TARGETS
from kvcast.spec.program import Constant
from kvcast.spec.recipes import MATRICES, RECIPE, Recipe
from kvcast.spec.runtimes import BundlePrecision, OnPhase

SELF_CACHE, CROSS_CACHE = "self_cache", "cross_cache"
"""Targets of a recipe besides matrices."""
_AT_ONCE = 64  # positions whose logits lie in memory together
_LIKELIEST = 64  # tokens of fp32 over which probabilities are compared


@dataclass(frozen=True, kw_only=True)
class Difference:
    flips: int
    positions: int
    # Kullback-Leibler divergence from fp32 over its 64 likeliest tokens, in nats, the mean of all
    # positions
    divergence: float

    @property
    def share(self) -> float:
        return self.flips / self.positions


@dataclass(frozen=True)
class _Expected:
    best_n: Int64
    tokens_nk: Int64
    scores_nk: NDArray[np.float64]


class Trials:
    """A checkpoint in fp32 and in every other precision.

    `choices`: precisions that a recipe may give to each matrix; `packed`: constants by precision.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,  # the model's
        exact: Interpreter,  # the model in fp32, whose matrices and machine are used
        samples: Sequence[CalibrationSample],  # sequences to compare on, one or more
        threads: int,  # of programs with separate matrices
        on_phase: OnPhase,  # called as matrices are packed
    ) -> None:
        self.family = checkpoint.family
        self.samples = samples
        self.programs = self.family.write_programs(checkpoint.dimensions)
        self.choices = choices({name: roles_of(each) for name, each in self.programs.items()})
        self.machine: Machine = exact.machine
        self._checkpoint, self._threads = checkpoint, threads
        # In fp32 streams have separate programs.
        wanted = {part for each in self.programs.values() for part in each.constants()}
        whole = {part: packed for part, packed in exact.constants.items() if part in wanted}
        self.packed: Mapping[str, Mapping[Constant, Any]] = {
            MATRICES[0]: whole,
            **{precision: self._pack(precision, whole, on_phase) for precision in MATRICES[1:]},
        }
        self._expected = [
            [_expect(logits_nv) for logits_nv in self._predictions(self.exact_runtime, i)]
            for i in range(len(samples))
        ]
        self._encoded: dict[int, Sequence[NDArray[Any]]] = {}
        encoding = [each for name, each in self.programs.items() if name != "decode"]
        self._of_encoder = {part.name for each in encoding for part in each.constants()}

    def uniform(self, precision: str) -> Mapping[str, str]:
        """Return the precision of each matrix, or the next larger one that it may have."""
        rank = MATRICES.index
        return {
            name: max((one for one in allowed if rank(one) <= rank(precision)), key=rank)
            for name, allowed in self.choices.items()
        }

    @cached_property
    def exact_runtime(self) -> Any:
        matrices = self.uniform(MATRICES[0])
        return self.runtime(Recipe(model="fp32", sha256="", matrices=matrices))

    def runtime(self, recipe: Recipe, *, exact: bool | None = None) -> Any:
        """`exact`: encoder attention is fp32 even if matrices are not; None: if all are."""
        constants = {
            part: self.packed[recipe.matrices.get(part.name, MATRICES[0])][part]
            for part in self.packed[MATRICES[0]]
        }
        precision = BundlePrecision(
            quantize="none" if recipe.exact else RECIPE, cache=recipe.self_cache, recipe=recipe
        )
        interpreter = Interpreter(
            self.machine,
            self.programs,
            constants,
            lambda _: Path(self._checkpoint.source),
            exact=recipe.exact if exact is None else exact,
        )
        manifest = manifest_of(self._checkpoint, self.programs, precision)
        return TARGETS["native"].runtimes()[self.family.interface](manifest, interpreter)

    def plain(self, precision: BundlePrecision) -> tuple[Any, int]:
        """Return the model in a precision that is no recipe, and its bytes as `bytes_of`."""
        manifest, interpreter = open_native(self._checkpoint, precision, self._threads)
        runtime = TARGETS["native"].runtimes()[self.family.interface](manifest, interpreter)
        weights = sum(map(_bytes, interpreter.constants.values()))
        return runtime, weights + self._cache_bytes(manifest.cache)

    def alone(self, recipe: Recipe, target: str, most: int) -> Difference:
        """Compare a recipe in which one target differs from fp32, on the first sequences.

        No sequence is begun after `most` positions. Encoder attention stays in fp32, and targets
        outside of the encoder use fp32's encoded inputs.
        """
        shared = target != CROSS_CACHE and target not in self._of_encoder
        return self.difference(self.runtime(recipe, exact=True), most, encoded=shared)

    def difference(
        self, runtime: Any, most: int | None = None, *, encoded: bool = False
    ) -> Difference:
        """Compare with fp32 on the first sequences: none is begun after `most` positions.

        `encoded`: use fp32's encoded sources instead of encoding them again.
        """
        flips, positions, divergence = 0, 0, 0.0
        for i, expected in enumerate(self._expected):
            if most is not None and positions >= most:
                break
            predicted = self._predictions(runtime, i, encoded=encoded)
            for logits_nv, whole in zip(predicted, expected, strict=True):
                flips += int((logits_nv.argmax(axis=-1) != whole.best_n).sum())
                positions += len(logits_nv)
                divergence += _divergence(whole, logits_nv)
        return Difference(flips=flips, positions=positions, divergence=divergence / positions)

    def bytes_of(self, recipe: Recipe) -> int:
        """Bytes of the weights, and of caches of a row of the longest sequence."""
        weights = sum(
            _bytes(self.packed[recipe.matrices.get(part.name, MATRICES[0])][part])
            for part in self.packed[MATRICES[0]]
        )
        precision = BundlePrecision(quantize=RECIPE, cache=recipe.self_cache, recipe=recipe)
        layers = cache_layers(self.family, self._checkpoint.dimensions, precision)
        return weights + self._cache_bytes(layers)

    @cached_property
    def source_positions(self) -> int:
        if not (source := self.samples[0].source):
            return 0
        given = dict(zip(self.programs["encode"].inputs, source, strict=True))
        sizes = self.exact_runtime.interpreter.sizes("encode", given)
        return int(next(iter(sizes.values()))[2])

    def _predictions(self, runtime: Any, i: int, *, encoded: bool = False) -> Iterator[Float32]:
        """Logits [n, vocab], valid until the next: after the prompt and each target token."""
        sample = self.samples[i]
        cache = ready_cache(runtime, sample, self._encoded_by_fp32(i) if encoded else ())
        logits_rsv, cache = runtime.prefill([sample.prompt], cache)
        yield logits_rsv[0]
        at_once = 1 if self.family.one_by_one else _AT_ONCE
        for first in range(0, len(sample.target), at_once):
            fed = sample.target[first : first + at_once]
            logits_rsv, cache = runtime.decode([fed], cache, positions=range(len(fed)))
            yield logits_rsv[0]

    def _encoded_by_fp32(self, i: int) -> Sequence[NDArray[Any]]:
        """Each [1, ...]; empty without a source."""
        if not self.samples[i].source:
            return ()
        if i not in self._encoded:
            slots = ready_cache(self.exact_runtime, self.samples[i]).memory.slots
            self._encoded[i] = [part[slots.places[0]][None].copy() for part in slots.parts]
        return self._encoded[i]

    def _cache_bytes(self, layers: Sequence[CacheLayers]) -> int:
        longest = max(sample.length for sample in self.samples)
        return sum(_run_bytes(run, longest, self.source_positions) for run in layers)

    def _pack(
        self, precision: str, whole: Mapping[Constant, Any], on_phase: OnPhase
    ) -> dict[Constant, Any]:
        checkpoint, dimensions = self._checkpoint, self._checkpoint.dimensions
        recipe = Recipe(model="", sha256="", matrices=self.uniform(precision))
        weights = CheckpointWeights(
            self.programs,
            checkpoint.tensors,
            self.family.tensor_shapes(dimensions),
            checkpoint.tensors.rows_of,
            self.family.constants(dimensions, checkpoint.tensors),
            BundlePrecision(quantize=RECIPE, recipe=recipe),
            checkpoint.tensors.blocks_of,
        )
        packed = packed_constants(self.machine, list(self.programs.values()), weights, on_phase)
        return {part: packed[part] if part.name in self.choices else whole[part] for part in whole}


def ready_cache(
    runtime: Any, sample: CalibrationSample, encoded: Sequence[NDArray[Any]] = ()
) -> Any:
    """Return a cache for a sequence, with its source, which is encoded unless given."""
    if not sample.source:
        return runtime.new_cache(1, sample.length)
    cache = runtime.new_cache(1, sample.length, inputs=1)
    if encoded:
        cache.memory.fill([0], list(encoded))
    else:
        cache = runtime.encode(cache, [0], *sample.source)
    return runtime.reset(cache, [0], [0])


def with_precision(recipe: Recipe, target: str, precision: str) -> Recipe:
    if target == SELF_CACHE:
        return replace(recipe, self_cache=precision)
    if target == CROSS_CACHE:
        return replace(recipe, cross_cache=precision)
    return replace(recipe, matrices={**recipe.matrices, target: precision})


def _expect(logits_nv: Float32) -> _Expected:
    most = min(_LIKELIEST, logits_nv.shape[1])
    tokens_nk = np.argpartition(-logits_nv, most - 1, axis=-1)[:, :most]
    return _Expected(logits_nv.argmax(axis=-1), tokens_nk, _scores(logits_nv, tokens_nk))


def _scores(logits_nv: Float32, tokens_nk: Int64) -> NDArray[np.float64]:
    logits_nk = np.take_along_axis(logits_nv, tokens_nk, axis=-1).astype(np.float64)
    logits_nk = logits_nk - logits_nk.max(axis=-1, keepdims=True)
    sums_n1 = np.exp(logits_nk).sum(axis=-1, keepdims=True)
    scores_nk: NDArray[np.float64] = logits_nk - np.log(sums_n1)
    return scores_nk


def _divergence(expected: _Expected, logits_nv: Float32) -> float:
    scores_nk = _scores(logits_nv, expected.tokens_nk)
    return float((np.exp(expected.scores_nk) * (expected.scores_nk - scores_nk)).sum())


def _bytes(packed: Any) -> int:
    match packed:
        case Matrix():
            return packed.tiles.nbytes
        case Experts(matrices=matrices):
            return sum(matrix.tiles.nbytes for matrix in matrices)
        case np.ndarray():
            return packed.nbytes
    return 0


def _run_bytes(run: CacheLayers, target: int, source: int) -> int:
    """Keys and values for `positions`; other caches never change."""
    line = run.head_dim * np.dtype(run.dtype).itemsize + SCALE_BYTES * (run.dtype == "int8")
    positions = {"linear": target, "ring": min(target, run.capacity), "cross": source}
    return 2 * run.layers * run.heads * positions.get(run.kind, 0) * line
