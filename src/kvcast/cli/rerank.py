"""`kvcast rerank --model MODEL QUERY DOCUMENT…`: documents by relevance, as JSON lines."""

import argparse
import json

from kvcast.cli import console
from kvcast.cli.arguments import Parser, keywords
from kvcast.cli.opening import add_encoder_options, opened_encoder
from kvcast.text.params import RANKING, RerankParams

EPILOG = """\
Prints a line for each document, the most relevant first, with its index, its relevance from 0 to 1
and the document.
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("query", metavar="QUERY", help="what the documents are ranked for")
    parser.add_argument("documents", nargs="+", metavar="DOCUMENT", help="a text")
    add_encoder_options(parser, RerankParams, RANKING, "a cross-encoder")


def run(args: argparse.Namespace) -> int:
    params = keywords(args, RerankParams)
    model = opened_encoder(args, "rerank")
    for ranked in model.rerank(args.query, args.documents, **params):
        line = vars(ranked) | {"document": args.documents[ranked.index]}
        console.emit(json.dumps(line, ensure_ascii=False) + "\n")
    return 0
