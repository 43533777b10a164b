"""`kvcast embed --model MODEL TEXT…`: texts to vectors, one JSON document a line."""

import argparse
import json
import sys
from collections.abc import Iterable

from kvcast.cli import console
from kvcast.cli.arguments import Parser, keywords
from kvcast.cli.opening import STANDARD_INPUT, add_encoder_options, opened_encoder
from kvcast.errors import UsageError
from kvcast.text.params import EMBEDDING, EmbedParams

EPILOG = """\
Prints a line for each text, with its index, the text and its embedding. - reads texts from standard
input, one a line.
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="a text, or - for standard input")
    add_encoder_options(parser, EmbedParams, EMBEDDING, "a text encoder")


def run(args: argparse.Namespace) -> int:
    params = keywords(args, EmbedParams)
    texts = list(_texts(args.texts))
    if not texts:
        raise UsageError("there is no text: give at least one")
    model = opened_encoder(args, "embed")
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
