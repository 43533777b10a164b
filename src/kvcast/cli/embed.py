"""`kvcast embed --model MODEL TEXT…`: texts to vectors, one JSON document a line."""

import argparse
import json
import sys
from collections.abc import Iterable

from kvcast.cli import console
from kvcast.cli.arguments import Parser, add_options, filled, headings, keywords
from kvcast.cli.console import progress
from kvcast.cli.opening import STANDARD_INPUT, opened
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.text.params import EMBEDDING, EmbedParams

EPILOG = """\
Prints a line for each text, with its index, the text and its embedding. - reads texts from standard
input, one a line.
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="a text, or - for standard input")
    under = headings(parser, LOADING, EMBEDDING)
    under[LOADING].add_argument(
        "--model",
        "-m",
        type=filled,
        required=True,
        metavar="MODEL",
        help="a text encoder: a folder or a hub id",
    )
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, EmbedParams)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no notices")


def run(args: argparse.Namespace) -> int:
    params = keywords(args, EmbedParams)
    texts = list(_texts(args.texts))
    if not texts:
        raise UsageError("there is no text: give at least one")
    with progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        model = opened(args.model, args, on_phase, task="embed").model
    for index, (text, vector) in enumerate(zip(texts, model.embed(texts, **params), strict=True)):
        line = {"index": index, "text": text, "embedding": vector.tolist()}
        console.emit(json.dumps(line, ensure_ascii=False) + "\n")
    return 0


def _texts(given: Iterable[str]) -> Iterable[str]:
    for text in given:
        if text == STANDARD_INPUT:
            yield from (line.rstrip("\r\n") for line in sys.stdin)
        else:
            yield text
