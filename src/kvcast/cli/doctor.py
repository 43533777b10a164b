"""`kvcast doctor [BUNDLE]`: shows what works on this machine. Knows no check."""

import argparse
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvcast.cli import console
from kvcast.cli.arguments import filled
from kvcast.cli.progress import progress

if TYPE_CHECKING:
    from kvcast.loading.doctor import Findings, NativeLibrary, Runtime

JSON_FORMAT = "kvcast.doctor"
JSON_VERSION = 1
_WIDTH = 96

EPILOG = """\
Each runtime computes something tiny in a process of its own; nothing is changed or fetched.
Exit codes: 0 the default runtime works (and BUNDLE opens), 1 it does not, 2 wrong usage.
docs/doctor.schema.json describes the document that --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.epilog = EPILOG
    parser.add_argument(
        "bundle", nargs="?", type=filled, metavar="BUNDLE", help="a bundle to open here as well"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress")


def run(args: argparse.Namespace) -> int:
    """Print the findings; returns 0 where the default runtime works."""
    from kvcast.loading.doctor import examine

    with progress(quiet=args.quiet).waiting("trying the runtimes"):
        findings = examine(args.bundle)
    if args.json:
        document = {"format": JSON_FORMAT, "version": JSON_VERSION, "well": findings.well}
        console.emit(json.dumps(document | asdict(findings), ensure_ascii=False) + "\n")
    else:
        console.emit("".join(_lines(findings)))
    return 0 if findings.well else 1


def _lines(findings: "Findings") -> Iterable[str]:
    for runtime in findings.runtimes:
        yield from _row(runtime.name, *_about(runtime))
    machine = findings.processor
    yield "\n"
    yield from _row("processor", f"{machine.cores} cores", " ".join(machine.instructions))
    yield from _row("  bf16", machine.bf16)
    yield from _row("  int8", machine.int8)
    yield from _row("library", *_about_library(findings.library))
    yield from _row("CUDA", ", ".join(findings.cuda.devices) or f"none: {findings.cuda.problem}")
    yield "\n"
    for part in findings.parts:
        state = f"no: {part.problem}" if part.problem else f"yes: {_listed(part.versions)}"
        yield from _row(part.name, state, f"for {part.use}")
    cache = findings.cache
    yield from _row("cache", f"{cache.folder}, {console.readable_size(cache.bytes)}", cache.problem)
    if findings.bundle is not None:
        bundle = findings.bundle
        state = f"no: {bundle.problem}" if bundle.problem else f"yes: opens on {bundle.runtime}"
        yield "\n"
        yield from _row("bundle", bundle.path, state)


def _about(runtime: "Runtime") -> tuple[str, ...]:
    if not runtime.usable:
        return (f"no: {runtime.problem}",)
    export = f"cannot be exported to: {runtime.no_export}" if runtime.no_export else ""
    return f"yes: {_listed(runtime.versions)}", runtime.problem, export


def _about_library(library: "NativeLibrary") -> tuple[str, ...]:
    if library.problem:
        return (f"no: {library.problem}",)
    if not library.path:
        return ("not compiled yet: the native runtime's first use does it, in some seconds",)
    origin = "came with kvcast" if library.origin == "shipped" else "was compiled here"
    chosen, *others = library.instructions
    known = f" (it could use {', '.join(others)})" if others else ""
    return f"{library.path}, {origin}", f"uses {chosen}{known}; {library.threads} threads"


def _listed(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _row(name: str, *parts: str) -> Iterable[str]:
    """Yield lines: a name, and each part that is not empty, folded beside it."""
    for part in filter(None, parts):
        for line in textwrap.wrap(console.printable(part), _WIDTH - 12, break_on_hyphens=False):
            yield f"{name:<12}{line}\n"
            name = ""
