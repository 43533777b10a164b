"""Tests which parts of kvcast work on this machine, and reports why the rest do not.

A runtime counts as usable once it has passed its self-test in a child process with a time limit,
since a broken package may end its process or hang.
"""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.errors import KvcastError, in_one_line
from kvcast.loading.examination import (
    CacheFolder,
    Cuda,
    Examined,
    Findings,
    NativeLibrary,
    Opened,
    OptionalPackage,
    Processor,
    RuntimeFinding,
    examine_model,
)
from kvcast.loading.exporting import check_export
from kvcast.machine.child import ask
from kvcast.machine.resources import available_cores, instruction_sets
from kvcast.runtimes.self_test import SelfTestResult, double_on_torch, versions
from kvcast.runtimes.target import TARGETS, BuildOptions
from kvcast.spec.files import cache_dir
from kvcast.spec.runtimes import RUNTIMES, PrecisionRequest

_SECONDS = 120  # a first import from a slow disk takes a while
_SECONDS_OF_MODEL = 3600  # the plain kernels take minutes for a large one


# Name, modules, use, extra.
_PARTS = (
    ("audio", ("soundfile", "soxr"), "wav, flac, ogg and mp3", ""),
    ("media", ("av",), "mp4, m4a and webm; brings its own ffmpeg", "media"),
    ("mistral", ("mistral_common",), "tekken.json and tokenizer.model", "mistral"),
    ("chinese", ("rjieba",), "words of T5-PEGASUS and RoFormer", "chinese"),
    ("translation", ("sentencex",), "sentences of long sources", "translation"),
)


def examine(
    model: str | None = None, *, prove: bool = False, adapters: Sequence[str] = ()
) -> Findings:
    """Test everything, a few parts at a time; takes some seconds and never raises."""
    bundle = model if model is not None and is_bundle(Path(model)) else None
    with ThreadPoolExecutor(max(2, available_cores())) as pool:
        opened = pool.submit(_open, bundle) if bundle is not None else None
        runtimes = [pool.submit(_runtime, name) for name in RUNTIMES]
        library = pool.submit(_library)
        cuda = pool.submit(_cuda)
        parts = [pool.submit(_part, *part) for part in _PARTS]
        result = opened.result() if opened else None
        # Afterwards, so that it is timed on an idle machine.
        examined = result is None or prove or adapters or result.runtime == "native"
        native = model if examined else None
        return Findings(
            runtimes=[runtime.result() for runtime in runtimes],
            processor=processor(instruction_sets()),
            library=library.result(),
            cuda=cuda.result(),
            parts=[part.result() for part in parts],
            cache=_cache(cache_dir()),
            bundle=result,
            model=None if native is None else _examine(native, prove, adapters),
        )


def processor(instructions: Sequence[str]) -> Processor:
    """How these instructions, by their Linux names, speed up bf16 and int8."""
    has = set(instructions).intersection
    if has({"amx_bf16"}):
        bf16 = "matrix units (amx_bf16): prefill and encoders several times as fast as in fp32"
    elif has({"avx512_bf16"}):
        bf16 = "dot products (avx512_bf16): faster than fp32"
    else:
        bf16 = "no instructions for it: half the memory, but slower than fp32"
    if names := has({"amx_int8", "i8mm"}):
        int8 = f"matrix units ({', '.join(names)})"
    elif names := has({"avx512_vnni", "avx_vnni", "asimddp"}):
        int8 = f"dot products ({', '.join(sorted(names))})"
    else:
        int8 = "no instructions for it: a quarter of the memory, little gain in time"
    if not instructions:
        bf16 = int8 = "unknown: this system does not name the processor's instructions"
    return Processor(cores=available_cores(), instructions=list(instructions), bf16=bf16, int8=int8)


def self_test(name: str) -> dict[str, Any]:
    """Test a runtime, in a child process; a broken package may raise anything."""
    if name not in TARGETS:
        installed = versions("torch", "safetensors")
        double_on_torch()
        return {**asdict(SelfTestResult(versions=installed)), "no_export": None}
    result = TARGETS[name].self_test()
    return asdict(replace(result, no_export=result.no_export or _no_export(name)))


def _no_export(name: str) -> str:
    precision = RUNTIMES[name].choose_precision(PrecisionRequest())
    try:
        check_export(name, precision, BuildOptions())
    except Exception as error:  # whatever a broken package raises
        return in_one_line(error)
    return ""


def examine_one(model: str, prove: str, *adapters: str) -> dict[str, Any]:
    """Examine a model, in a child process; without proof if `prove` is empty."""
    return examine_model(model, prove=bool(prove), adapters=adapters)


# By function, since what a child imports takes most of its time.
_ANSWERS: Mapping[str, str] = {
    "runtime": f"{__name__}:self_test",
    "part": "kvcast.runtimes.self_test:import_all",
    "cuda": "kvcast.runtimes.self_test:cuda_devices",
    "library": "kvcast.runtimes.native.library:describe_library",
    "bundle": "kvcast.loading.examination:open_and_call",
    "model": f"{__name__}:examine_one",
}


def _ask(question: str, *words: str) -> tuple[Any, str]:
    seconds = _SECONDS_OF_MODEL if question == "model" else _SECONDS
    answer = ask(_ANSWERS[question], *words, seconds=seconds)
    return answer.result, answer.problem


def _runtime(name: str) -> RuntimeFinding:
    result, problem = _ask("runtime", name)
    if problem:
        extra = RUNTIMES[name].extra
        why = problem if extra is None else _advise(problem, extra)
        return RuntimeFinding(name=name, usable=False, versions={}, problem=why)
    return RuntimeFinding(
        name=name, usable=True, problem=_untested_versions(result["versions"]), **result
    )


def _advise(problem: str, extra: str) -> str:
    package = f"'kvcast[{extra}]'" if extra else "kvcast"
    advice = "" if not problem or "pip install" in problem else f": pip install {package}"
    return problem + advice


def _untested_versions(installed: Mapping[str, str]) -> str:
    """Name packages whose version is outside the range that kvcast was tested with."""
    try:
        from packaging.requirements import Requirement
    except ImportError:  # a dependency of huggingface-hub
        return ""
    required = [Requirement(text) for text in requires("kvcast") or ()]
    other = [
        f"{package.name} {installed[package.name]} is not a tested version ({package.specifier})"
        for package in required
        if package.name in installed
        and not package.specifier.contains(installed[package.name], prereleases=True)
    ]
    return "; ".join(dict.fromkeys(other))


def _part(name: str, modules: Iterable[str], use: str, extra: str) -> OptionalPackage:
    versions, problem = _ask("part", *modules)
    return OptionalPackage(
        name=name, use=use, versions=versions or {}, problem=_advise(problem, extra)
    )


def _library() -> NativeLibrary:
    facts, problem = _ask("library")
    details = {"origin": "none", "problem": problem} | (facts or {})
    return NativeLibrary(**details, threads=available_cores())


def _cuda() -> Cuda:
    devices, problem = _ask("cuda")
    return Cuda(devices=devices or [], problem=problem or ("" if devices else "PyTorch sees none"))


def _cache(folder: Path) -> CacheFolder:
    held, problem = 0, ""
    try:
        held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        place = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        problem = f"not writable ({error.strerror}): set KVCAST_CACHE to another folder"
    return CacheFolder(folder=str(folder), bytes=held, problem=problem)


def _open(path: str) -> Opened:
    try:
        runtime = read_bundle(Path(path)).runtime
    except (KvcastError, OSError) as error:
        return Opened(path=path, runtime="", problem=str(error))
    # An absolute path, so a folder named demo is not mistaken for the packaged model.
    _, problem = _ask("bundle", str(Path(path).absolute()), runtime)
    return Opened(path=path, runtime=runtime, problem=problem)


def _examine(model: str, prove: bool, adapters: Sequence[str]) -> Examined:
    report, problem = _ask("model", model, "prove" if prove else "", *adapters)
    return Examined(path=model, problem=problem, **(report or {}))
