"""`kvcast inspect masks|cache|cost`: hands over to kvcast.inspect, imported only when it is run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from kvcast.cli import console, files
from kvcast.cli.arguments import filled, number, several, whole_number
from kvcast.cli.progress import progress
from kvcast.errors import UsageError

if TYPE_CHECKING:
    from kvcast.inspect.cost import Question
    from kvcast.inspect.machine import Machine
    from kvcast.inspect.schedule import Schedule
    from kvcast.inspect.work import Counted

EPILOG = "docs/inspect.md explains what is shown, on one worked example."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the views; each sets `run`."""
    parser.epilog = EPILOG
    views = parser.add_subparsers(title="views", metavar="VIEW", required=True)
    for name, summary, declare in (
        ("masks", "draw who sees whom in each chunk and step", _add_masks),
        ("cache", "show what lies in each slot after each chunk and step", _add_cache),
        ("cost", "count what a model computes and reads, with a cache and without", _add_cost),
    ):
        declare(views.add_parser(name, help=summary, description=f"{summary.capitalize()}."))


def _add_masks(parser: argparse.ArgumentParser) -> None:
    _add_schedule(parser)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw into this file as well")
    parser.set_defaults(run=_masks)


def _add_cache(parser: argparse.ArgumentParser) -> None:
    _add_schedule(parser)
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="WORDS",
        help="words of a row's tokens, to show in its slots; give it once for each row, and "
        "--lengths only where the last words are new tokens",
    )
    parser.set_defaults(run=_cache)


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--lengths",
        type=several(whole_number(1)),
        metavar="N,N…",
        help="tokens of each prompt (default: 4,1,3)",
    )
    parser.add_argument(
        "--window",
        type=_window,
        default=3,
        metavar="N",
        help="positions that a query sees, itself included, or none (default: 3)",
    )
    parser.add_argument(
        "--chunk", type=whole_number(1), default=2, metavar="N", help="of prompts (default: 2)"
    )
    parser.add_argument(
        "--new", type=whole_number(0), default=5, metavar="N", help="steps after (default: 5)"
    )
    parser.add_argument(
        "--capacity",
        type=whole_number(1),
        metavar="N",
        help="slots a row (default: as few as serve, which is the window)",
    )


def _add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a folder (its config.json or params.json is enough), a bundle, a GGUF file, a hub "
        "id or a packaged model",
    )
    parser.add_argument(
        "--prompt",
        type=whole_number(1),
        metavar="N",
        help="tokens (default: 1000; for Whisper 4, what says language and task)",
    )
    parser.add_argument(
        "--new", type=whole_number(1), default=100, metavar="N", help="tokens (default: 100)"
    )
    for name, what in (("weight", "a weight"), ("cached", "a cached number")):
        parser.add_argument(
            f"--bytes-per-{name}",
            type=number(maximum=8, above=0),
            default=2.0,
            metavar="N",
            help=f"bytes that {what} takes (default: 2)",
        )
    for name, unit in (("bandwidth", "GB/s"), ("rate", "TFLOP/s")):
        parser.add_argument(
            f"--{name}", type=number(above=0), metavar=unit, help="of the machine, not measured"
        )
    parser.add_argument(
        "--threads",
        type=whole_number(1, 1024),
        default=2,
        metavar="N",
        help="threads to measure with (default: 2)",
    )
    parser.add_argument("--no-measure", action="store_true", help="count only: no times")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_cost)


def _window(text: str) -> int | None:
    return None if text.lower() == "none" else whole_number(1)(text)


def _schedule(args: argparse.Namespace, texts: list[list[str]]) -> "Schedule":
    from kvcast.inspect.schedule import Schedule

    lengths = args.lengths or tuple(map(len, texts)) or (4, 1, 3)
    return Schedule.of(lengths, args.window, args.chunk, args.new, args.capacity)


def _masks(args: argparse.Namespace) -> int:
    from kvcast.inspect import masks, svg

    schedule = _schedule(args, [])
    if args.svg is not None:
        files.save(args.svg, svg.draw(schedule.title(), list(masks.masks(schedule))))
    console.emit(masks.render(schedule))
    return 0


def _cache(args: argparse.Namespace) -> int:
    from kvcast.inspect import cache

    texts = [text.split() for text in args.text]
    console.emit(cache.render(_schedule(args, texts), texts))
    return 0


def _cost(args: argparse.Namespace) -> int:
    from kvcast.inspect.cost import Question, document, render
    from kvcast.inspect.sizes import counted

    model = counted(args.model)
    question = Question(
        prompt=args.prompt or model.usual_prompt,
        new=args.new,
        bytes_per_weight=args.bytes_per_weight,
        bytes_per_cached=args.bytes_per_cached,
    )
    question.check(model)
    found = document(args.model, model, question, _machine(args, model, question))
    console.emit(f"{json.dumps(found)}\n" if args.json else render(found))
    return 0


def _machine(args: argparse.Namespace, model: "Counted", question: "Question") -> "Machine | None":
    from kvcast.inspect.machine import Machine

    given = {
        "bandwidth": args.bandwidth and args.bandwidth * 1e9,
        "rate": args.rate and args.rate * 1e12,
    }
    if args.no_measure:
        if any(given.values()):
            raise UsageError("--no-measure prints no times: drop it, or --bandwidth and --rate")
        return None
    with progress(quiet=args.json).waiting("measuring this machine"):
        return Machine.found(
            **given,
            threads=args.threads,
            step_bytes=question.step_bytes(model),
            tokens=question.prompt,
            width=model.width,
            bytes_per_weight=args.bytes_per_weight,
        )
