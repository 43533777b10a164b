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

Task: TypeAlias = Literal["transcribe", "generate"]
"""The use of a model, by the name of the command."""

Interface: TypeAlias = Literal["encoder-decoder", "decoder-only", "prefix"]
"""How a runtime is driven, see `kvcast.runtimes.base`.

"prefix": decoder-only, but the first call on an empty row takes the whole source, whose positions
see each other; such a model also embeds sources.
"""

PROBE_STEPS = 28
"""How many tokens a proof generates, if the model has as many positions."""


@dataclass(frozen=True, kw_only=True)
class PrecisionRoles:
    """Roles of matrices and caches that decide on the precision they may have.

    Attributes:
        outliers: of "gate" and "activation", those with outlier channels: matrices that read them
            are quantized in blocks.
        smoothed: whether norms are smoothed before matrices become int8 (SmoothQuant).
        int8_self_cache: whether self caches may be int8.
        int8_cross_cache: whether cross caches may be int8.
        fused: whether a graph may have packed projections and norms with residuals fused.

    """

    outliers: tuple[Literal["gate", "activation"], ...] = ()
    smoothed: bool = False
    int8_self_cache: bool = False
    int8_cross_cache: bool = False
    fused: bool = True


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Inputs of a proof.

    Attributes:
        prompts: tokens [s] of each row.
        source: input of `encode`, with one entry a row; empty without an encoder.
        alone: the same with one entry for each row, if arrays locate entries of the batch; empty:
            slices of `source` are used.

    """

    prompts: Sequence[NDArray[np.int64]]
    source: tuple[NDArray[Any], ...] = ()
    alone: Sequence[tuple[NDArray[Any], ...]] = ()

    def source_of(self, row: int) -> tuple[NDArray[Any], ...]:
        """Return the input of `encode` of one row."""
        if self.alone:
            return self.alone[row]
        return tuple(part[row : row + 1] for part in self.source)


def _not_calibrated(_: Any) -> str:
    return f"only decoder-only models have {CALIBRATED}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """A model family. Functions take the family's dimensions.

    Attributes:
        interface: the runtime interface of its models.
        dimensions: the class of its dimensions, with `from_json`.
        positions: length of the longest sequence; of the longest target with an encoder.
        writers: what writes each of the programs.
        whole: `decode` over a whole sequence at once, with the lengths of its sources as its last
            input; None if `decode` does that.
        constants: tensors of programs that are not in checkpoints; a function of the dimensions and
            of the checkpoint's tensors by canonical name.
        tokenizer: opens a tokenizer; a function of text files by name, and the dimensions.
        model_class: the class that users call; takes a runtime, a tokenizer and the dimensions.
        usual_prompt: length of a typical prompt, for FLOP counts.
        longest: sizes of the arguments of `encode` and `decode` for the longest input, or for a
            given number of positions if it varies; a function of the dimensions and that number.
        biased: whether self-attention adds a bias that differs from head to head.
        one_by_one: whether a call of `decode` takes one new token of each row.
        calibration_problem: why int4 codes cannot be calibrated; empty if they can.
        facts: additional facts, for callers that read only a file of programs.

    """

    name: str
    title: str
    task: Task
    interface: Interface
    dimensions: type[Any]
    positions: Callable[[Any], int]
    caches: Callable[[Any], tuple[CacheLayers, ...]]
    programs: Callable[[Any], Mapping[str, ProgramSignature]]
    writers: Mapping[str, Callable[[ProgramWriter, Any], Program]]
    constants: Callable[[Any, Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]
    precision: PrecisionRoles
    probe: Callable[[Any], Probe]
    model_class: str
    tokenizer: str = "kvcast.tokenizers.opening:open_tokenizer"
    rotary: Callable[[Any], bool] = field(default=lambda _: False)
    biased: bool = False
    one_by_one: bool = False
    usual_prompt: Callable[[Any], int] = field(default=lambda _: 1000)
    longest: Callable[[Any, int], Mapping[str, int]] = field(default=lambda _, __: {})
    whole: Callable[[Any], Program] | None = None
    calibration_problem: Callable[[Any], str] = _not_calibrated
    facts: Callable[[Any], Mapping[str, Any]] = field(default=lambda _: {})

    def tensor_shapes(self, dimensions: Any) -> Mapping[str, tuple[int, ...]]:
        """Return the canonical names of all tensors, with their shapes, as its programs declare."""
        programs = self.write_programs(dimensions).values()
        return {name: shape for program in programs for name, shape in program.tensors.items()}

    # A family is a constant, and opening asks for its programs several times.
    @lru_cache(maxsize=4)  # noqa: B019
    def write_programs(self, dimensions: Any) -> Mapping[str, Program]:
        return {
            name: self.writers[name](ProgramWriter(signature.inputs), dimensions)
            for name, signature in self.programs(dimensions).items()
        }
