"""Opening models with a command's options. Knows no command."""

import argparse
from typing import TYPE_CHECKING, Any

from kvcast.cli import console
from kvcast.cli.arguments import keywords
from kvcast.decoding.params import NGRAM
from kvcast.errors import UsageError
from kvcast.loading.params import LoadParams
from kvcast.spec.runtimes import OnPhase, ignore_phase

if TYPE_CHECKING:
    from kvcast.families.base import Task
    from kvcast.loading.opening import OpenedModel


def opened(
    model: str,
    args: argparse.Namespace,
    on_phase: OnPhase = ignore_phase,
    *,
    task: "Task | None" = None,
) -> "OpenedModel":
    """Load a model, with a command's options; says what users should know of it, unless quiet.

    The model must be for `task`, if one is named. `on_phase` is called with the phases of an
    export, if the model must be exported first.
    """
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


def for_actor(args: argparse.Namespace) -> argparse.Namespace:
    """Return a command's options as a process of a cluster takes them: silent, with its cores."""
    own = {"quiet": True, "threads": args.threads or 1}
    return argparse.Namespace(**{**vars(args), **own})


def drafted_by(args: argparse.Namespace, on_phase: OnPhase = ignore_phase, *, task: "Task") -> Any:
    """Return the value of `--draft` as Python takes it: a loaded model for a model's name.

    The model is opened with the options of the larger one, but for its adapters.
    """
    if args.draft in (None, NGRAM):
        return args.draft
    if args.draft == args.model:
        raise UsageError("--draft names the model itself: give a smaller one")
    own = argparse.Namespace(**{**vars(args), "adapter": ()})
    return opened(args.draft, own, on_phase, task=task).model
