"""`kvcast inspect attention`: what each token attends to. Computes and draws nothing itself."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcast.cli import console, prompts
from kvcast.cli.arguments import filled, number, whole_number
from kvcast.cli.progress import progress
from kvcast.cli.recordings import MODEL_VARIABLE
from kvcast.errors import UsageError
from kvcast.saving import check_target, save

if TYPE_CHECKING:
    from kvcast.cli.progress import Progress
    from kvcast.inspect.attention.model import InspectedModel
    from kvcast.inspect.attention.view import AttentionView

SUMMARY = "show what each token attends to: in a recording, in a source, or in its own text"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the view's arguments; sets `run`."""
    parser.add_argument(
        "input",
        metavar="AUDIO|TEXT",
        type=filled,
        help="a recording, for a model of speech, which hears its first 30 seconds or fewer; a "
        "text for any other",
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
         "sound of the heads that follow speech, where a Whisper knows them)"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=whole_number(0), metavar="N", help=meaning)
    parser.add_argument(
        "--new",
        type=whole_number(0),
        metavar="N",
        help="tokens to write after TEXT (default: 0), or in answer to it (default: up to 64)",
    )
    parser.add_argument(
        "--start", type=number(0), metavar="SECONDS", help="of the part of AUDIO (default: 0)"
    )
    parser.add_argument(
        "--language", type=filled, metavar="CODE", help="spoken in AUDIO (default: what is heard)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw into this file as well")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compute, draw and print; raises what goes wrong."""
    from kvcast.inspect.attention.picture import draw
    from kvcast.inspect.attention.table import render

    if not args.model:
        raise UsageError(f"--model is missing: name a checkpoint, or set {MODEL_VARIABLE}")
    if args.svg is not None:
        check_target(args.svg)
    view, spectrogram_mf = _looked_at(args, progress(quiet=args.json))
    if args.svg is not None:
        save(args.svg, draw(view, spectrogram_mf))
    console.emit(f"{json.dumps(view.document())}\n" if args.json else render(view))
    return 0


def _looked_at(args: argparse.Namespace, watcher: "Progress") -> "tuple[AttentionView, Any]":
    """Return the view, and the spectrogram of a sound."""
    from kvcast.inspect.attention.looking import over_text
    from kvcast.inspect.attention.model import InspectedModel

    with watcher.waiting(f"loading {args.model}") as on_phase:
        model = InspectedModel.open(args.model, on_phase)
    with watcher.waiting("computing"):
        if model.model.task == "transcribe":
            return _heard(args, model)
        for name in ("start", "language"):
            if getattr(args, name) is not None:
                raise UsageError(f"{args.model} reads text, and --{name} is of sound: drop it")
        return over_text(
            model, prompts.given(args.input).text, args.new, args.layer, args.head
        ), None


def _heard(args: argparse.Namespace, model: "InspectedModel") -> "tuple[AttentionView, Any]":
    from kvcast.inspect.attention.looking import over_sound, seconds_heard
    from kvcast.inspect.attention.sound import excerpt, spectrogram

    if args.new is not None:
        raise UsageError(f"{args.model} transcribes to the end of the sound: drop --new")
    samples = excerpt(args.input, args.start or 0.0, seconds_heard(model))
    view = over_sound(model, samples, args.language, args.layer, args.head)
    return view, spectrogram(samples)
