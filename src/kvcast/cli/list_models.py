"""`kvcast list`: the models on this machine."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from kvcast.cli import console
from kvcast.errors import InputMissingError

JSON_FORMAT = "kvcast.list"
JSON_VERSION = 1

EPILOG = """\
Lists packaged models, downloads in huggingface_hub's cache, copies in kvcast's own, which opening
them again would make again, and models in the folders that are named. kvcast pull downloads one,
kvcast rm removes a download or a copy. docs/list.schema.json describes what --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="a folder of models, or a model"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from kvcast.loading.local_models import local_models

    for folder in args.folders:
        if not folder.exists():
            raise InputMissingError(f"{folder}: there is no such folder")
    models = list(local_models(args.folders))
    if args.json:
        fields = {"models": [asdict(model) for model in models]}
        console.emit(json.dumps({"format": JSON_FORMAT, "version": JSON_VERSION} | fields) + "\n")
        return 0
    rows = [("NAME", "MODEL", "PRECISION", "SIZE", "COMMAND")]
    rows += [
        (
            console.printable(model.name),
            model.family,
            model.precision,
            console.readable_size(model.bytes),
            f"kvcast {'chat' if model.has_chat_template else model.task}",
        )
        for model in models
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        console.emit("  ".join(cells).rstrip() + "\n")
    if not models:
        console.say("no model is here: kvcast pull base, or pip install 'kvcast[demo]'")
    return 0
