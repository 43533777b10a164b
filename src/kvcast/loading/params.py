"""Options of opening and exporting models."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from kvcast import foreign_options
from kvcast.errors import UsageError
from kvcast.foreign_options import ForeignOptions
from kvcast.options import FILLED, Check, Choice, Group, Option, Params, shown
from kvcast.spec.runtimes import (
    RUNTIMES,
    THE_DEFAULT,
    OnPhase,
    PrecisionRequest,
    exported,
    ignore_phase,
)

LOADING = Group("model and runtime")
OF_TEXTS = frozenset({"cache", "generation_config"})
"""Options of text models alone."""


def _values(names: Sequence[str], attribute: str) -> tuple[str, ...]:
    values = [value for name in names for value in getattr(RUNTIMES[name], attribute)]
    return tuple(dict.fromkeys(values))


def _by_runtime(names: Sequence[str], attribute: str) -> str:
    values: dict[str, list[str]] = {}
    for name in names:
        values.setdefault(getattr(RUNTIMES[name], attribute), []).append(name)
    return ", ".join(f"{value} on {' and '.join(having)}" for value, having in values.items())


def _describe(names: Sequence[str]) -> str:
    described = []
    for name in names:
        runtime = RUNTIMES[name]
        needs = f"needs kvcast[{runtime.extra}]" if runtime.extra else ""
        described.append(", ".join(filter(None, [runtime.title, runtime.summary, needs])))
    return "; ".join(f"{name}: {words}" for name, words in zip(names, described, strict=True))


def _offering(names: Sequence[str], attribute: str) -> str:
    return " and ".join(name for name in names if len(getattr(RUNTIMES[name], attribute)) > 1)


def _following_recipes() -> str:
    return " and ".join(name for name, runtime in RUNTIMES.items() if runtime.recipes)


def _runtime(names: Callable[[], Sequence[str]], means: str, default: str) -> Option:
    return Option(
        group=LOADING,
        help=lambda: f"{means} ({_describe(names())})",
        check=Choice(names),
        shown=default,
    )


def _quantize(
    names: Callable[[], Sequence[str]], attribute: str = "default_quantize", before: str = ""
) -> Option:
    return Option(
        group=LOADING,
        help=lambda: (
            f"weight quantisation, or what kvcast quantize wrote, on {_following_recipes()}"
        ),
        check=Choice(lambda: _values(names(), "quantize"), file="RECIPE.json"),
        shown=lambda: before + _by_runtime(names(), attribute),
    )


def _dtype(names: Callable[[], Sequence[str]], before: str = "") -> Option:
    return Option(
        group=LOADING,
        help=lambda: (
            f"dtype of everything that is not quantised, on {_offering(names(), 'dtypes')}"
        ),
        check=Choice(lambda: _values(names(), "dtypes")),
        shown=f"{before}fp32, or bf16 if weights are quantised",
    )


def _cache(names: Callable[[], Sequence[str]], before: str = "") -> Option:
    return Option(
        group=LOADING,
        help=lambda: f"dtype of a text model's self caches, on {_offering(names(), 'caches')}",
        check=Choice(lambda: _values(names(), "caches")),
        shown=f"{before}fp32",
    )


def _all() -> tuple[str, ...]:
    return tuple(RUNTIMES)


_THE_BUNDLES = "the bundle's; else "


class _Adapter(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        is_path = isinstance(value, os.PathLike)
        return None if is_path else FILLED.problem(value, kind)


@dataclass(frozen=True, kw_only=True)
class AdapterParams(Params):
    foreign: ClassVar[ForeignOptions] = foreign_options.LOADING

    adapter: Sequence[str] | str = LOADING((), check=_Adapter(), metavar="ADAPTER")(
        "a LoRA to merge into the weights: a folder in PEFT's layout, a GGUF file for a "
        "GGUF model, or a hub id; ADAPTER=0.5 takes half of it; may be repeated"
    )


@dataclass(frozen=True, kw_only=True)
class LoadParams(AdapterParams):
    runtime: str | None = _runtime(_all, "the runtime", f"{_THE_BUNDLES}{THE_DEFAULT}")(None)
    quantize: str | None = _quantize(_all, "default_opening", _THE_BUNDLES)(None)
    dtype: str | None = _dtype(_all, _THE_BUNDLES)(None)
    cache: str | None = _cache(_all, _THE_BUNDLES)(None)
    threads: int | None = LOADING(None, least=1, most=1024, shown="available physical cores")(
        "threads of the runtime"
    )
    trust: bool = LOADING(False)(
        "open a package of native code (.pt2, .pte) without a bundle.json to verify it"
    )

    generation_config: bool = LOADING(True)(
        "let options of a text model that are left open have the values that its "
        "generation_config.json recommends"
    )

    on_phase: OnPhase = ignore_phase

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_callable(self.on_phase)

    @property
    def precision(self) -> PrecisionRequest:
        return PrecisionRequest(quantize=self.quantize, dtype=self.dtype, cache=self.cache)


@dataclass(frozen=True, kw_only=True)
class ExportParams(AdapterParams):
    runtime: str | None = _runtime(exported, "the runtime to export for", THE_DEFAULT)(None)
    quantize: str | None = _quantize(exported)(None)
    dtype: str | None = _dtype(exported)(None)
    cache: str | None = _cache(exported)(None)
    device: str = LOADING("cpu", check=Choice(lambda: ("cpu", "cuda")))(
        lambda: f"the device that {_compiling()} compiles for; cuda has no quantised weights"
    )
    max_autotune: bool = LOADING(False)(
        lambda: (
            f"let {_compiling()} time several kernels for every product and keep the "
            "fastest; takes minutes"
        )
    )
    overwrite: bool = LOADING(False, flags=("--force",))("replace an existing bundle")

    on_phase: OnPhase = ignore_phase

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        _check_callable(self.on_phase)

    @property
    def precision(self) -> PrecisionRequest:
        return PrecisionRequest(quantize=self.quantize, dtype=self.dtype, cache=self.cache)


def _check_callable(on_phase: object) -> None:
    if not callable(on_phase):
        raise UsageError(f"on_phase must be a function of a text, not {shown(on_phase)}")


def _compiling() -> str:
    return " and ".join(name for name in exported() if RUNTIMES[name].compiles)
