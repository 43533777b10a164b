"""`kvcast rerank --model MODEL QUERY DOCUMENT…`: documents by relevance, as JSON lines."""

import argparse
import json

from kvcast.cli import console
from kvcast.cli.arguments import Parser, add_options, filled, headings, keywords
from kvcast.cli.console import progress
from kvcast.cli.opening import opened
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.text.params import RANKING, RerankParams

EPILOG = """\
Prints a line for each document, the most relevant first, with its index, its relevance from 0 to 1
and the document.
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("query", metavar="QUERY", help="what the documents are ranked for")
    parser.add_argument("documents", nargs="+", metavar="DOCUMENT", help="a text")
    under = headings(parser, LOADING, RANKING)
    under[LOADING].add_argument(
        "--model",
        "-m",
        type=filled,
        required=True,
        metavar="MODEL",
        help="a cross-encoder: a folder or a hub id",
    )
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, RerankParams)
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress and no notices")


def run(args: argparse.Namespace) -> int:
    params = keywords(args, RerankParams)
    with progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        model = opened(args.model, args, on_phase, task="rerank").model
    for ranked in model.rerank(args.query, args.documents, **params):
        line = vars(ranked) | {"document": args.documents[ranked.index]}
        console.emit(json.dumps(line, ensure_ascii=False) + "\n")
    return 0
