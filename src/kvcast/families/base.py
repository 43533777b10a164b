"""The record of a model family: all its differences from other families.

Exporting, loading, lowering, proofs and counting ask it, so that none of them lists families. Parts
that need a higher layer or a tensor library are named `module:attribute`, and imported on use by
`kvcast.spec.runtimes`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvcast.families.programs import CacheLayers, ProgramSignature
from kvcast.spec.program import Program, ProgramWriter
from kvcast.spec.runtimes import CALIBRATED

Task: TypeAlias = Literal["transcribe", "generate", "embed", "rerank"]
"""The use of a model, by the name of the command."""

Interface: TypeAlias = Literal["encoder-decoder", "decoder-only", "prefix", "encoder"]
"""How a runtime is driven, see `kvcast.runtimes.base`.

"prefix": decoder-only, but the first call on an empty row takes the whole source, whose positions
see each other; such a model also embeds sources. "encoder": without a cache, see
`kvcast.runtimes.text_encoder`.
"""

PROBE_STEPS = 28
"""How many tokens a proof generates, if the model has as many positions."""


@dataclass(frozen=True, kw_only=True)
class PrecisionRoles:
    # of "gate" and "activation", those with outlier channels: matrices that read them are quantized
    # in blocks
    outliers: tuple[Literal["gate", "activation"], ...] = ()
    smoothed: bool = False  # whether norms are smoothed before matrices become int8 (SmoothQuant)
    int8_self_cache: bool = False  # whether self caches may be int8
    int8_cross_cache: bool = False  # whether cross caches may be int8
    fused: bool = True  # whether a graph may have packed projections and norms with residuals fused


@dataclass(frozen=True, kw_only=True)
class Probe:
    prompts: Sequence[NDArray[np.int64]]  # tokens [s] of each row
    source: tuple[NDArray[Any], ...] = ()  # input of `encode`, an entry per row; empty without one
    # the same with one entry for each row, if arrays locate entries of the batch; empty: slices of
    # `source` are used
    alone: Sequence[tuple[NDArray[Any], ...]] = ()
    end: int | None = None  # ends a text; a trained model's logits after it are arbitrary

    def source_of(self, row: int) -> tuple[NDArray[Any], ...]:
        if self.alone:
            return self.alone[row]
        return tuple(part[row : row + 1] for part in self.source)


def _not_calibrated(_: Any) -> str:
    return f"only decoder-only models have {CALIBRATED}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    name: str
    title: str
    task: Task
    interface: Interface  # the runtime interface of its models
    dimensions: type[Any]  # the class of its dimensions, with `from_json`
    positions: Callable[[Any], int]  # longest sequence; longest target with an encoder
    caches: Callable[[Any], tuple[CacheLayers, ...]]
    programs: Callable[[Any], Mapping[str, ProgramSignature]]
    writers: Mapping[str, Callable[[ProgramWriter, Any], Program]]
    # tensors of programs that are not in checkpoints; a function of the dimensions and of the
    # checkpoint's tensors by canonical name
    constants: Callable[[Any, Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
    precision: PrecisionRoles
    probe: Callable[[Any], Probe]
    model_class: str  # the class that users call; takes a runtime, a tokenizer and the dimensions
    # opens a tokenizer; a function of text files by name, and the dimensions
    tokenizer: str = "kvcast.tokenizers.opening:open_tokenizer"
    rotary: Callable[[Any], bool] = field(default=lambda _: False)
    biased: bool = False  # whether self-attention adds a bias that differs from head to head
    one_by_one: bool = False  # whether a call of `decode` takes one new token of each row
    usual_prompt: Callable[[Any], int] = field(default=lambda _: 1000)  # for FLOP counts
    # sizes of the arguments of `encode` and `decode` for the longest input, or for a given number
    # of positions if it varies; a function of the dimensions and that number
    longest: Callable[[Any, int], Mapping[str, int]] = field(default=lambda _, __: {})
    # `decode` over a whole sequence at once, with the lengths of its sources as its last input;
    # None if `decode` does that
    whole: Callable[[Any], Program] | None = None
    calibration_problem: Callable[[Any], str] = _not_calibrated  # empty if there is none
    # additional facts, for callers that read only a file of programs
    facts: Callable[[Any], Mapping[str, Any]] = field(default=lambda _: {})

    def tensor_shapes(self, dimensions: Any) -> Mapping[str, tuple[int, ...]]:
        """Canonical names and shapes of all tensors, as the programs declare them."""
        programs = self.write_programs(dimensions).values()
        return {name: shape for program in programs for name, shape in program.tensors.items()}

    # A family is a constant, and opening asks for its programs several times.
    @lru_cache(maxsize=4)  # noqa: B019
    def write_programs(self, dimensions: Any) -> Mapping[str, Program]:
        return {
            name: self.writers[name](ProgramWriter(signature.inputs), dimensions)
            for name, signature in self.programs(dimensions).items()
        }
