"""`kvcast inspect` and its views: hands over to kvcast.inspect, imported only when it is run."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.cli import console
from kvcast.cli.arguments import filled, number, several, whole_number
from kvcast.cli.console import progress
from kvcast.cli.inspect_views import (
    ATTENTION,
    GRAPH,
    add_attention,
    add_graph,
    add_page,
    check_page,
    write_page,
)
from kvcast.errors import UsageError
from kvcast.saving import save

if TYPE_CHECKING:
    from kvcast.inspect.bias import Bias
    from kvcast.inspect.cost import CostQuery
    from kvcast.inspect.masks import MaskedCalls
    from kvcast.inspect.roofline import MachineRates
    from kvcast.inspect.schedule import Schedule
    from kvcast.inspect.work import ModelWork

_EXAMPLE: dict[str, Any] = {
    "lengths": (4, 1, 3),
    "window": 3,
    "chunk": 2,
    "new": 5,
    "capacity": None,
}

EPILOG = "docs/inspect.md explains the output on one example."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    views = parser.add_subparsers(title="views", metavar="VIEW", required=True)
    for name, summary, declare in (
        ("masks", "draw the attention masks of each chunk and step", _add_masks),
        ("cache", "show the contents of each slot after each chunk and step", _add_cache),
        (
            "bias",
            "show T5's relative position bias, or the rows of it that a call needs",
            _add_bias,
        ),
        ("cost", "count a model's operations and bytes read, with and without a cache", _add_cost),
        ("graph", GRAPH, add_graph),
        ("attention", ATTENTION, add_attention),
    ):
        declare(views.add_parser(name, help=summary, description=f"{summary.capitalize()}."))


def _add_masks(parser: argparse.ArgumentParser) -> None:
    _add_schedule(parser)
    parser.add_argument(
        "--unilm",
        type=_source_and_target,
        metavar="N,N",
        help="draw a source and a target of so many tokens (RoFormer-Sim, SimBERT), no prompts",
    )
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
    """Declare a schedule's arguments; omitted ones have no value at all."""
    for name, read, meaning in (
        ("lengths", several(whole_number(1)), "tokens of each prompt (default: 4,1,3)"),
        ("window", _window, "positions that a query sees, itself included, or none (default: 3)"),
        ("chunk", whole_number(1), "of prompts (default: 2)"),
        ("new", whole_number(0), "steps after (default: 5)"),
        (
            "capacity",
            whole_number(1),
            "slots a row (default: as few as serve, which is the window)",
        ),
    ):
        parser.add_argument(
            f"--{name}",
            type=read,
            default=argparse.SUPPRESS,
            metavar="N,N…" if name == "lengths" else "N",
            help=meaning,
        )
    add_page(parser)


def _add_bias(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--length", type=whole_number(1), default=6, metavar="N", help="positions (default: 6)"
    )
    shown.add_argument(
        "--step", type=whole_number(0), metavar="N", help="position of a decoder's step: its row"
    )
    parser.add_argument(
        "--chunk", type=whole_number(1), metavar="N", help="tokens from --step on (default: 1)"
    )
    parser.add_argument("--buckets", type=whole_number(1), metavar="N", help="default: 32")
    parser.add_argument(
        "--distance",
        type=whole_number(1),
        metavar="N",
        help="from here on all share a bucket (default: 128)",
    )
    parser.add_argument(
        "--model",
        type=filled,
        metavar="MODEL",
        help="a T5's folder, hub id or packaged model, to show the numbers of a head",
    )
    parser.add_argument("--head", type=whole_number(0), metavar="N", help="of MODEL (default: 0)")
    parser.set_defaults(run=_bias)


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
        help="tokens (default: 1000; for Whisper 4, what says language and task; for T5 1, which "
        "begins a target; for RoFormer and BERT 128, the source)",
    )
    parser.add_argument(
        "--source", type=whole_number(1), metavar="N", help="tokens of a T5's source (default: 128)"
    )
    parser.add_argument(
        "--new", type=whole_number(1), default=100, metavar="N", help="tokens (default: 100)"
    )
    for name, label in (("weight", "a weight"), ("cached", "a cached number")):
        parser.add_argument(
            f"--bytes-per-{name}",
            type=number(maximum=8, above=0),
            default=2.0,
            metavar="N",
            help=f"bytes that {label} takes (default: 2)",
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


def _source_and_target(text: str) -> tuple[float, ...]:
    numbers = several(whole_number(1))(text)
    if len(numbers) != 2:
        raise argparse.ArgumentTypeError(
            f"must be two numbers, as in 5,3 for source and target, not {text!r}"
        )
    return numbers


def _given(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in _EXAMPLE if hasattr(args, name)}


def _schedule(args: argparse.Namespace, texts: list[list[str]]) -> "Schedule":
    from kvcast.inspect.schedule import Schedule

    by_texts = {"lengths": tuple(map(len, texts))} if texts else {}
    return Schedule.of(**(_EXAMPLE | by_texts | _given(args)))


def _drawn(args: argparse.Namespace) -> "MaskedCalls":
    if args.unilm is None:
        return _schedule(args, [])
    from kvcast.inspect.masks import SourceAndTarget

    if args.html is not None:
        raise UsageError("--html shows prompts in chunks, and --unilm has a source: drop one")
    given = _given(args)
    if given:
        raise UsageError(
            f"--unilm takes its source in one call and its target token by token: drop "
            f"{' and '.join(f'--{name}' for name in given)}"
        )
    source, target = args.unilm
    return SourceAndTarget(source=source, target=target)


def _masks(args: argparse.Namespace) -> int:
    from kvcast.inspect import masks

    check_page(args)
    drawn = _drawn(args)
    if args.html is not None:
        write_page(args, _schedule(args, []), [])
    if args.svg is not None:
        save(args.svg, masks.draw(drawn.title(), list(masks.masks(drawn))))
    console.emit(masks.render(drawn))
    return 0


def _cache(args: argparse.Namespace) -> int:
    from kvcast.inspect.schedule import render

    check_page(args)
    texts = [text.split() for text in args.text]
    schedule = _schedule(args, texts)
    shown = render(schedule, texts)
    if args.html is not None:
        write_page(args, schedule, texts)
    console.emit(shown)
    return 0


def _bias(args: argparse.Namespace) -> int:
    if args.step is None and args.chunk is not None:
        raise UsageError("--chunk begins at a position: add --step, or drop it")
    bias = _shown_bias(args)
    by_call = args.step is not None
    console.emit(bias.call(args.step, args.chunk or 1) if by_call else bias.matrix(args.length))
    return 0


def _shown_bias(args: argparse.Namespace) -> "Bias":
    from kvcast.inspect.bias import Bias

    if args.model is None:
        if args.head is not None:
            raise UsageError("--head selects a head of a model: add --model, or drop --head")
        return Bias.plain(args.buckets or 32, args.distance or 128)
    from kvcast.inspect.bias import bias_of

    if args.buckets or args.distance:
        raise UsageError("--model has its own --buckets and --distance: drop them")
    return bias_of(args.model, args.head or 0)


def _cost(args: argparse.Namespace) -> int:
    from kvcast.inspect.cost import CostQuery, document, open_work, render

    model = open_work(args.model, args.source)
    question = CostQuery(
        prompt=args.prompt or model.usual_prompt,
        new=args.new,
        bytes_per_weight=args.bytes_per_weight,
        bytes_per_cached=args.bytes_per_cached,
    )
    question.check(model)
    cost = document(args.model, model, question, _machine(args, model, question))
    console.emit(f"{json.dumps(cost)}\n" if args.json else render(cost))
    return 0


def _machine(
    args: argparse.Namespace, model: "ModelWork", question: "CostQuery"
) -> "MachineRates | None":
    from kvcast.inspect.roofline import MachineRates

    given = {
        "bandwidth": args.bandwidth and args.bandwidth * 1e9,
        "rate": args.rate and args.rate * 1e12,
    }
    if args.no_measure:
        if any(given.values()):
            raise UsageError("--no-measure prints no times: drop it, or --bandwidth and --rate")
        return None
    with progress(quiet=args.json).waiting("measuring this machine"):
        return MachineRates.measure(
            **given,
            threads=args.threads,
            step_bytes=question.step_bytes(model),
            bytes_per_weight=args.bytes_per_weight,
        )
