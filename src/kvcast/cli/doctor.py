"""`kvcast doctor [MODEL]`: shows which features work on this machine."""

import argparse
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvcast.cli import console
from kvcast.cli.arguments import add_options, filled
from kvcast.cli.console import progress
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING, AdapterParams

if TYPE_CHECKING:
    from kvcast.loading.examination import Examined, Findings, NativeLibrary, RuntimeFinding

JSON_FORMAT = "kvcast.doctor"
JSON_VERSION = 1
_WIDTH, _MOST_NAMES = 96, 8

EPILOG = """\
Each runtime computes something tiny in a process of its own; nothing is changed, and nothing but a
MODEL of the hub is fetched. Exit codes: 0 the default runtime works (and MODEL opens, and what
--prove computes agrees), 1 otherwise, 2 wrong usage.
docs/doctor.schema.json describes the document that --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "model",
        nargs="?",
        type=filled,
        metavar="MODEL",
        help="a bundle or a checkpoint to open here as well: how its files and memory hold it",
    )
    parser.add_argument(
        "--prove",
        action="store_true",
        help="compare tokens and logits of MODEL, step by step on kvcast's own kernels, with those "
        "of the plain kernels, all at once without a cache",
    )
    add_options({LOADING: parser}, AdapterParams)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    from kvcast.loading.doctor import examine

    if args.prove and args.model is None:
        raise UsageError("--prove needs a MODEL")
    if args.adapter and args.model is None:
        raise UsageError("--adapter needs a MODEL")
    with progress(quiet=args.quiet).waiting("trying the runtimes"):
        findings = examine(args.model, prove=args.prove, adapters=args.adapter)
    if args.json:
        document = {"format": JSON_FORMAT, "version": JSON_VERSION, "well": findings.well}
        console.emit(json.dumps(document | asdict(findings), ensure_ascii=False) + "\n")
    else:
        console.emit("".join(_lines(findings)))
    return 0 if findings.well else 1


def _lines(findings: "Findings") -> Iterable[str]:
    usable = [runtime.name for runtime in findings.runtimes if runtime.usable]
    if usable:
        yield f"kvcast works here, on {', '.join(usable)}; what is optional can be added\n\n"
    for runtime in sorted(findings.runtimes, key=lambda each: not each.usable):
        yield from _row(runtime.name, *_about(runtime))
    machine = findings.processor
    yield "\n"
    yield from _row("processor", f"{machine.cores} cores", " ".join(machine.instructions))
    yield from _row("  bf16", machine.bf16)
    yield from _row("  int8", machine.int8)
    yield from _row("library", *_about_library(findings.library))
    if not findings.cuda.problem.endswith("is not installed"):
        devices = ", ".join(findings.cuda.devices)
        yield from _row("CUDA", devices or f"none: {findings.cuda.problem}")
    yield "\n"
    for part in findings.parts:
        state = _lacking(part.problem) if part.problem else f"yes: {_listed(part.versions)}"
        yield from _row(part.name, state, f"for {part.use}")
    cache = findings.cache
    yield from _row("cache", f"{cache.folder}, {console.readable_size(cache.bytes)}", cache.problem)
    if findings.bundle is not None:
        bundle = findings.bundle
        state = f"no: {bundle.problem}" if bundle.problem else f"yes: opens on {bundle.runtime}"
        yield "\n"
        yield from _row("bundle", bundle.path, state)
    if findings.model is not None:
        yield "\n"
        yield from _row("model", findings.model.path, *_about_model(findings.model))


def _about(runtime: "RuntimeFinding") -> tuple[str, ...]:
    if not runtime.usable:
        return (_lacking(runtime.problem),)
    export = f"cannot be exported to: {runtime.no_export}" if runtime.no_export else ""
    return f"yes: {_listed(runtime.versions)}", runtime.problem, export


def _lacking(problem: str) -> str:
    _, is_not_installed, advice = problem.partition(" is not installed: ")
    return f"optional: {advice}" if is_not_installed else f"no: {problem}"


def _about_library(library: "NativeLibrary") -> tuple[str, ...]:
    if library.problem:
        return (f"no: {library.problem}",)
    if not library.path:
        return ("not compiled yet: the native runtime's first use does it, in some seconds",)
    origin = "came with kvcast" if library.origin == "shipped" else "was compiled here"
    chosen, *others = library.instructions
    known = f" (it could use {', '.join(others)})" if others else ""
    uses = f"uses {chosen}{known}; {library.threads} threads"
    return f"{library.path}, {origin}", uses, library.kernels


def _about_model(model: "Examined") -> Iterable[str]:
    if model.problem:
        yield f"no: {model.problem}"
        return
    size = console.readable_size
    yield f"yes: {model.family}, {model.quantize}, opened in {model.seconds:.1f} s"
    for row in model.weights:
        stored = "computed"
        if row["tensors"]:
            tensors = f"{row['tensors']} tensors" if row["tensors"] > 1 else "1 tensor"
            stored = f"{tensors} in {row['stored']}, {size(row['stored_bytes'])}"
        memory = f", {size(row['held_bytes'])}" if row["held_bytes"] else ""
        rounded = "" if row["kept"] else ", rounded"
        yield f"{stored} -> {row['held']}{memory}{rounded}"
    stored, held = (
        sum(row[key] for row in model.weights) for key in ("stored_bytes", "held_bytes")
    )
    yield f"weights in memory: {size(held)}" + (f", of {size(stored)} in files" if stored else "")
    if model.unused:
        more = len(model.unused) - _MOST_NAMES
        names = [*model.unused[:_MOST_NAMES], *([f"{more} more (--json)"] if more > 0 else [])]
        yield f"not used: {', '.join(names)}"
    if (proof := model.proof) is not None:
        error = proof["max_logit_error"]
        far = "are not finite" if error is None else f"differ by up to {error:.2g}"
        yield (
            f"proof: {proof['tokens_equal']} of {proof['tokens']} tokens are the plain kernels', "
            f"logits {far} (standard deviation: {proof['logit_deviation'] or 0:.2g})"
        )


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _row(name: str, *parts: str) -> Iterable[str]:
    """Yield lines: a name, and each non-empty part, wrapped next to it."""
    for part in filter(None, parts):
        for line in textwrap.wrap(console.printable(part), _WIDTH - 12, break_on_hyphens=False):
            yield f"{name:<12}{line}\n"
            name = ""
