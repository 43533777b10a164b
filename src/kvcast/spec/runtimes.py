"""The table of runtimes, with their names, requirements and precisions.

A row names the class that exports to the runtime and opens its bundles, and needs none of its code.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from kvcast.errors import UsageError
from kvcast.spec.recipes import RECIPE, Recipe, names_recipe

CALIBRATED = "int4-calibrated"
"""int4 whose codes suit the matrices' inputs in a text that the model writes."""
OWN = "own codes"
"""Those that a checkpoint's matrices have, and int8 for other numbers; int8 where none has any."""
_BLOCKS = ("none", "int8", "int4", CALIBRATED)


@dataclass(frozen=True, kw_only=True)
class BundlePrecision:
    quantize: str  # of weights: "none", one of the target's schemes, `OWN`, or `RECIPE`
    dtype: str = "fp32"  # of all that is not quantized: "fp32", "bf16" or "fp16"
    cache: str = "fp32"  # of self-attention caches: the same as `dtype`, or "int8"
    # whether int4's codes are calibrated; see `CALIBRATED`
    calibrated: bool = field(default=False, repr=False)  # exports are cached by the rest's repr
    # the precision of each matrix and of cross-attention caches; None: it follows from the rest
    recipe: Recipe | None = field(default=None, repr=False)  # runtimes that cache exports have none

    @property
    def cross(self) -> str:
        return self.cache if self.recipe is None else self.recipe.cross_cache

    @property
    def exact(self) -> bool:
        precisions = (self.quantize, self.dtype, self.cache, self.cross)
        return precisions == ("none", "fp32", "fp32", "fp32")


@dataclass(frozen=True, kw_only=True)
class PrecisionRequest:
    """The precision that a user asks for; None: the runtime's choice."""

    quantize: str | None = None  # or a recipe's path
    dtype: str | None = None
    cache: str | None = None


@dataclass(frozen=True, kw_only=True)
class RuntimeInfo:
    title: str
    summary: str  # its distinguishing features, in a few words
    extra: str | None  # to export and open models, `kvcast[extra]`; None: not needed
    target: str = ""  # the `Target` that exports to it, `module:class`; empty: no bundles
    traffic: str = ""  # the `TrafficReader` of its programs, `module:class`
    direct: bool = False  # whether checkpoints are opened directly, without a bundle
    keeps_codes: bool = False  # whether a checkpoint opened directly keeps its codes by default
    recipes: bool = False  # whether matrices may differ in precision
    compiles: bool = False  # whether exporting compiles native code, so that build options apply
    package: str = ""  # the file of its bundles that can contain native code; empty if none can
    quantize: tuple[str, ...]
    default_quantize: str
    dtypes: tuple[str, ...] = ("fp32",)  # of all not quantized, the default for "none" first
    quantized_dtype: str = "fp32"
    caches: tuple[str, ...] = ("fp32",)  # of self-attention caches; empty: follow `dtypes`
    quantized_cache: str = ""  # default of quantized models; empty: the same
    other_layers: bool = False  # supports other mixers, several head sizes, shared caches
    states: tuple[str, ...] = ()  # supported operations over recurrent caches, if not all

    @property
    def exports(self) -> bool:
        return bool(self.target)

    @property
    def default_opening(self) -> str:
        own = "a quantized checkpoint's own codes or " if self.keeps_codes else ""
        return f"{own}{self.default_quantize}"

    def choose_precision(self, request: PrecisionRequest) -> BundlePrecision:
        """Fill in defaults, or read a recipe; raises UsageError for unsupported options."""
        if request.quantize is not None and names_recipe(request.quantize):
            return self._by_recipe(Path(request.quantize), request)
        quantize = request.quantize or self.default_quantize
        self._check("quantize", quantize, self.quantize)
        unquantized = self.dtypes[0] if quantize == "none" else self.quantized_dtype
        dtype = request.dtype or unquantized
        self._check("dtype", dtype, self.dtypes)
        if not self.caches and request.cache not in (None, dtype):
            raise UsageError(
                f"{self.title} keeps caches in --dtype {dtype}: drop --cache {request.cache}"
            )
        usual = (self.caches or (dtype,))[0]
        cache = request.cache or (quantize != "none" and self.quantized_cache) or usual
        self._check("cache", cache, self.caches or (dtype,))
        calibrated = quantize == CALIBRATED
        stored = "int4" if calibrated else quantize
        return BundlePrecision(quantize=stored, dtype=dtype, cache=cache, calibrated=calibrated)

    def _by_recipe(self, path: Path, request: PrecisionRequest) -> BundlePrecision:
        if not self.recipes:
            having = " or ".join(name for name, runtime in RUNTIMES.items() if runtime.recipes)
            raise UsageError(f"{self.title} follows no recipe: use --runtime {having}")
        recipe = Recipe.read(path)
        self._check("dtype", request.dtype or self.dtypes[0], self.dtypes)
        if request.cache not in (None, recipe.self_cache):
            raise UsageError(
                f"{path} keeps self caches in {recipe.self_cache}: drop --cache {request.cache}"
            )
        return BundlePrecision(
            quantize="none" if recipe.exact else RECIPE,
            cache=recipe.self_cache,
            recipe=recipe,
        )

    def choose_opening(self, request: PrecisionRequest) -> BundlePrecision:
        precision = self.choose_precision(request)
        if self.keeps_codes and request.quantize is None:
            return replace(precision, quantize=OWN)
        return precision

    def offers(self, request: PrecisionRequest) -> bool:
        try:
            self.choose_precision(request)
        except UsageError:
            return False
        return True

    def _check(self, name: str, value: str, choices: tuple[str, ...]) -> None:
        if value in choices:
            return
        if len(choices) == 1:
            raise UsageError(
                f"{name} of {self.title} is always {choices[0]}: drop --{name} {value}"
            )
        raise UsageError(
            f"{name} of {self.title} must be one of {', '.join(choices)}, not {value!r}"
        )


RUNTIMES: Mapping[str, RuntimeInfo] = {
    "onnx": RuntimeInfo(
        title="ONNX Runtime",
        summary="runs without PyTorch",
        extra="onnx",
        target="kvcast.runtimes.onnx.target:OnnxTarget",
        traffic="kvcast.runtimes.onnx.traffic:OnnxTraffic",
        quantize=_BLOCKS,
        default_quantize="int8",
        caches=("fp32", "int8"),
        states=("short_convolution", "delta_rule"),
    ),
    "aoti": RuntimeInfo(
        title="AOTInductor",
        summary="compiled with g++ for this machine",
        extra="export",
        target="kvcast.runtimes.aoti.target:AotiTarget",
        traffic="kvcast.runtimes.aoti.traffic:AotiTraffic",
        package="aoti/model.pt2",
        compiles=True,
        quantize=_BLOCKS,
        default_quantize="none",
        dtypes=("fp32", "bf16", "fp16"),
        quantized_dtype="bf16",
        caches=(),
        states=("short_convolution",),
    ),
    "executorch": RuntimeInfo(
        title="ExecuTorch",
        summary="one file, also for phones and embedded devices",
        extra="executorch",
        target="kvcast.runtimes.executorch.target:ExecutorchTarget",
        traffic="kvcast.runtimes.executorch.traffic:ExecutorchTraffic",
        package="executorch/model.pte",
        quantize=("none", "8da8w", "8da4w"),
        default_quantize="8da8w",
        states=("short_convolution",),
    ),
    "native": RuntimeInfo(
        title="kvcast's own kernels",
        summary="one call a step, compiled from C++ where it runs",
        extra=None,
        target="kvcast.runtimes.native.target:NativeTarget",
        traffic="kvcast.runtimes.native.traffic:NativeTraffic",
        direct=True,
        keeps_codes=True,
        recipes=True,
        quantize=_BLOCKS,
        default_quantize="int8",
        caches=("fp32", "fp16", "int8"),
        quantized_cache="fp16",
        other_layers=True,
    ),
    "eager": RuntimeInfo(
        title="eager PyTorch",
        summary="without a bundle",
        extra="export",
        traffic="kvcast.runtimes.eager.traffic:EagerTraffic",
        direct=True,
        quantize=("none", "int8", "int4"),
        default_quantize="none",
        other_layers=True,
    ),
}
DEFAULT_RUNTIMES = ("native", "onnx")
"""The first that suits the machine and has the requested precision is the default."""

THE_DEFAULT = "native where its library is or can be compiled, else onnx if it is installed"
"""Its description in the documentation."""


def exported() -> tuple[str, ...]:
    return tuple(name for name, runtime in RUNTIMES.items() if runtime.exports)


def is_native(name: str) -> bool:
    """Whether a runtime's bundles can contain native code; an unknown runtime's can."""
    return name not in RUNTIMES or bool(RUNTIMES[name].package)


OnPhase: TypeAlias = Callable[[str], None]
"""Called when a phase of opening or exporting starts, with its text.

It begins with reading, calibrating, exporting, quantising, compiling, proving or sealing; with
several programs, the program's name follows ("compiling decode"). Downloads and packing report
progress ("packing 3 of 47 tensors").
"""


def ignore_phase(phase: str) -> None:
    """Do nothing; the default for callers that show no progress."""


def imported(entry_point: str) -> Any:
    module, _, attribute = entry_point.partition(":")
    return getattr(import_module(module), attribute)
