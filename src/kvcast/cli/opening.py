"""Opening the model that a command's options name. Knows no command."""

import argparse
from typing import TYPE_CHECKING

from kvcast.cli import console
from kvcast.cli.arguments import keywords
from kvcast.spec.phases import OnPhase, ignore_phase
from kvcast.tasks.params import LoadParams

if TYPE_CHECKING:
    from kvcast.tasks.families import Task
    from kvcast.tasks.loading import OpenedModel


def opened(
    args: argparse.Namespace, on_phase: OnPhase = ignore_phase, *, task: "Task"
) -> "OpenedModel":
    """Load the model, which must be for `task`; says what was opened on trust, unless quiet.

    `on_phase` is called with the phases of an export, if the model must be exported first.
    """
    from kvcast.tasks.loading import open_model

    params = LoadParams(**keywords(args, LoadParams), on_phase=on_phase)
    found = open_model(args.model, params, task=task)
    if found.on_trust is not None and not args.quiet:
        console.say(f"{found.on_trust} is opened on trust: there is no bundle.json to verify it")
    return found
