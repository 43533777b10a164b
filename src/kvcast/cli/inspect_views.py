"""`kvcast inspect attention` and `graph`, and the `--html` page of `cache` and `masks`."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.cli import console, prompts
from kvcast.cli.arguments import add_options, filled, keywords, number, whole_number
from kvcast.cli.console import progress
from kvcast.cli.inputs import MODEL_VARIABLE
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING, LoadParams
from kvcast.saving import check_target, save

if TYPE_CHECKING:
    from kvcast.cli.console import Progress
    from kvcast.inspect.attention.model import InspectedModel
    from kvcast.inspect.attention.view import AttentionView
    from kvcast.inspect.schedule import Schedule


ATTENTION = "show what each token attends to: in a recording, in a source, or in its own text"


def add_attention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "input",
        metavar="AUDIO|TEXT",
        type=filled,
        help="a recording for a speech model, which encodes its first 30 seconds or fewer; text "
        "for any other model",
    )
    parser.add_argument(
        "--model",
        "-m",
        default=os.environ.get(MODEL_VARIABLE),
        metavar="MODEL",
        help="a checkpoint's folder, a GGUF file, a hub id or a packaged model; computed in fp32 "
        f"(default: ${MODEL_VARIABLE})",
    )
    for name, meaning in (
        ("layer", "show this layer alone (default: the mean of all)"),
        ("head", "show this head alone, of that layer or of each (default: the mean of all; over "
         "audio, of the alignment heads, where a Whisper has them)"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=whole_number(0), metavar="N", help=meaning)
    parser.add_argument(
        "--new",
        type=whole_number(0),
        metavar="N",
        help="tokens to generate after TEXT (default: 0), or in answer to it (default: up to 64)",
    )
    parser.add_argument(
        "--start", type=number(0), metavar="SECONDS", help="of the part of AUDIO (default: 0)"
    )
    parser.add_argument(
        "--language", type=filled, metavar="CODE", help="spoken in AUDIO (default: detected)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw into this file as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_attention)


def run_attention(args: argparse.Namespace) -> int:
    from kvcast.inspect.attention.picture import draw
    from kvcast.inspect.attention.view import render

    if not args.model:
        raise UsageError(f"--model is missing: name a checkpoint, or set {MODEL_VARIABLE}")
    if args.svg is not None:
        check_target(args.svg)
    view, spectrogram_mf = _view(args, progress(quiet=args.json))
    if args.svg is not None:
        save(args.svg, draw(view, spectrogram_mf))
    console.emit(f"{json.dumps(view.document())}\n" if args.json else render(view))
    return 0


def _view(args: argparse.Namespace, watcher: "Progress") -> "tuple[AttentionView, Any]":
    from kvcast.inspect.attention.model import InspectedModel
    from kvcast.inspect.attention.view import over_text

    with watcher.waiting(f"loading {args.model}") as on_phase:
        model = InspectedModel.open(args.model, on_phase)
    with watcher.waiting("computing"):
        if model.model.task == "transcribe":
            return _audio_view(args, model)
        for name in ("start", "language"):
            if getattr(args, name) is not None:
                raise UsageError(f"{args.model} takes text, and --{name} is for audio: drop it")
        return over_text(
            model, prompts.given(args.input).text, args.new, args.layer, args.head
        ), None


def _audio_view(args: argparse.Namespace, model: "InspectedModel") -> "tuple[AttentionView, Any]":
    from kvcast.inspect.attention.model import read_segment, spectrogram
    from kvcast.inspect.attention.view import encoded_seconds, over_audio

    if args.new is not None:
        raise UsageError(f"{args.model} transcribes to the end of the audio: drop --new")
    samples = read_segment(args.input, args.start or 0.0, encoded_seconds(model))
    view = over_audio(model, samples, args.language, args.layer, args.head)
    return view, spectrogram(samples)


GRAPH = "show what a runtime executes: operators, bytes read and written, caches copied or not"

_MOST = 1 << 20
_LEFT_OUT = ("adapter", "threads", "trust", "generation_config")


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=filled,
        help="a bundle, a package (.pt2, .pte), or a model to open on --runtime, exported if "
        "it has to be; no program is run",
    )
    for name, default, meaning in (
        ("length", 64, "positions that each row holds before the call"),
        ("new", 1, "tokens of each row in the call"),
        ("rows", 1, "rows, each with a separate encoded input"),
    ):
        parser.add_argument(
            f"--{name}",
            type=whole_number(0 if name == "length" else 1, _MOST),
            default=default,
            metavar="N",
            help=f"{meaning} (default: {default})",
        )
    parser.add_argument(
        "--source",
        type=whole_number(1, _MOST),
        metavar="N",
        help="positions of an encoded input, where they vary (default: 128)",
    )
    add_options({LOADING: parser}, LoadParams, leave_out=_LEFT_OUT)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw into this file as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_graph)


def run_graph(args: argparse.Namespace) -> int:
    from kvcast.inspect.graph import CallSizes, document, draw, read_traffic, render

    if args.svg is not None:
        check_target(args.svg)
    sizes = CallSizes(rows=args.rows, length=args.length, new=args.new, source=args.source)
    with progress(quiet=args.json).waiting(f"reading {args.model}") as on_phase:
        params = LoadParams(**keywords(args, LoadParams), on_phase=on_phase)
        model = read_traffic(args.model, params, sizes)
    if args.svg is not None:
        save(args.svg, draw(args.model, model))
    shown = json.dumps(document(args.model, model))
    console.emit(f"{shown}\n" if args.json else render(args.model, model))
    return 0


def add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page, too, with a slider over the calls: slots, masks, tokens and costs",
    )
    parser.add_argument(
        "--model",
        type=filled,
        metavar="MODEL",
        help="whose kinds of layers the page shows, and whose operations and bytes it counts, as "
        "kvcast inspect cost takes it; --window then replaces its sliding window",
    )


def check_page(args: argparse.Namespace) -> None:
    """Raise UsageError for a model without a page."""
    if args.model is not None and args.html is None:
        raise UsageError("--model is what the page is about: add --html, or drop it")


def write_page(args: argparse.Namespace, schedule: "Schedule", texts: list[list[str]]) -> None:
    """Write the page of a schedule, with the words of its rows' tokens, if there are any."""
    from kvcast.inspect.page import page

    # A model's rings have the model's window, unless the user gave one.
    is_own = args.model is not None and not hasattr(args, "window")
    window = None if is_own else schedule.window
    save(args.html, page(schedule, window, getattr(args, "capacity", None), texts, args.model))
