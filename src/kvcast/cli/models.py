"""`kvcast models`: lists the models and runtimes that are known."""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from kvcast.cli import console

if TYPE_CHECKING:
    from kvcast.loading.catalogue import Catalogue

JSON_FORMAT = "kvcast.models"
JSON_VERSION = 2

EPILOG = """\
A Hugging Face model's type is model_type in its config.json. The last column is a published model,
by its hub id; nothing is fetched. kvcast list shows what is on this machine.
docs/models.schema.json describes what --json prints.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    from kvcast.loading.catalogue import catalogue

    known = catalogue()
    if args.json:
        document = {"format": JSON_FORMAT, "version": JSON_VERSION, **asdict(known)}
        console.emit(json.dumps(document) + "\n")
    else:
        console.emit("".join(f"{line}\n" for line in _lines(known)))
    return 0


def _lines(known: "Catalogue") -> Iterable[str]:
    types = [kind for family in known.families for kind in family.types]
    names = [*(kind.name for kind in types), *(runtime.name for runtime in known.runtimes)]
    name_width = max(map(len, names))
    format_width = max(len(", ".join(kind.formats)) for kind in types)
    for family in known.families:
        yield f"{family.title} (kvcast {family.task})"
        for kind in family.types:
            formats = ", ".join(kind.formats)
            row = f"  {kind.name:{name_width}}  {formats:{format_width}}  {kind.example}"
            yield row.rstrip()
        yield ""
    yield "usual names, each with the hub id that it stands for"
    for name, hub_id in known.names.items():
        yield f"  {name:{name_width}}  {hub_id}"
    yield ""
    yield "runtimes, with the precisions of weights, the default first"
    for runtime in known.runtimes:
        yield f"  {runtime.name:{name_width}}  {', '.join(runtime.quantize)}"
