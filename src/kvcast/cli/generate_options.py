"""The options of `kvcast generate`, grouped by what they are about.

Knows how options are spelled, bounded and explained; the model knows what they do.
"""

import argparse
from pathlib import Path

from kvcast.cli import transcribe_options
from kvcast.cli.arguments import OptionGroup, filled, number, option, whole_number
from kvcast.cli.prompts import is_text

MODEL_CHOICES = (
    "a kvcast bundle, a Hugging Face, Mistral or bert4keras folder, a GGUF file, "
    "a hub id org/name[@revision], or demo-chat, demo-t5 or demo-unilm"
)


def _text(value: str) -> str:
    if not is_text(value):
        raise argparse.ArgumentTypeError("is not valid UTF-8")
    return value


def _filled_text(value: str) -> str:
    return _text(filled(value))


def _path(value: str) -> Path:
    return Path(filled(value))


LOADING = OptionGroup(
    "model and runtime",
    (
        option(
            "--model",
            "-m",
            type=filled,
            default="demo-chat",
            metavar="MODEL",
            help=f"{MODEL_CHOICES} (default: demo-chat)",
        ),
        *(item for item in transcribe_options.LOADING.options if item.keyword != "model"),
        option(
            "--cache",
            choices=("fp32", "int8"),
            help="numbers of keys and values on onnx (default: as a bundle has them; else fp32)",
        ),
    ),
)
CONVERSATION = OptionGroup(
    "conversation",
    (
        option(
            "--chat",
            action="store_true",
            help="the prompt is what a user says, in the model's own chat template",
        ),
        option(
            "--system",
            type=_text,
            metavar="TEXT",
            help="what the model is told before; implies --chat",
        ),
    ),
)
CHOICE = OptionGroup(
    "choice of tokens",
    (
        option(
            "--max-new-tokens",
            type=whole_number(1),
            default=256,
            metavar="N",
            help="most tokens of a text (default: 256)",
        ),
        option(
            "--min-new-tokens",
            type=whole_number(0),
            default=0,
            metavar="N",
            help="no end token is chosen before a text has so many (default: 0)",
        ),
        option(
            "--temperature",
            type=number(0.0),
            default=0.0,
            metavar="T",
            help="0 takes the likeliest token always, more samples (default: 0)",
        ),
        option(
            "--top-k",
            type=whole_number(1),
            metavar="K",
            help="sample from the K likeliest tokens (default: from all)",
        ),
        option(
            "--top-p",
            type=number(maximum=1.0, above=0.0),
            default=1.0,
            metavar="P",
            help="sample from the likeliest tokens that together reach this probability "
            "(default: 1, all)",
        ),
        option(
            "--min-p",
            type=number(0.0, 1.0),
            default=0.0,
            metavar="P",
            help="sample from tokens with this share of the likeliest one's probability or more "
            "(default: 0, all)",
        ),
        option(
            "--repetition-penalty",
            type=number(above=0.0),
            default=1.0,
            metavar="X",
            help="above 1 makes tokens of the prompt and the text less likely (default: 1)",
        ),
        option(
            "--stop",
            type=_filled_text,
            action="append",
            default=[],
            metavar="TEXT",
            help="end before this text; may be given several times",
        ),
        option(
            "--seed",
            type=whole_number(0, 2**32 - 1),
            default=0,
            metavar="N",
            help="seed of sampling (default: 0)",
        ),
        option(
            "--chunk",
            type=whole_number(1),
            metavar="N",
            help="tokens of a prompt that are read at once (default: 512); T5 and UniLM read it "
            "whole",
        ),
    ),
)
SEVERAL = OptionGroup(
    "beams and several texts",
    (
        transcribe_options.BEAM,
        option(
            "--length-penalty",
            type=number(),
            default=1.0,
            metavar="ALPHA",
            help="with beams, exponent of the length that scores are divided by (default: 1)",
        ),
        option(
            "--early-stopping",
            action="store_true",
            help="with beams, end a search as soon as as many texts as beams have ended",
        ),
        option(
            "--n",
            "--num-return",
            type=whole_number(1, 1000),
            default=1,
            metavar="N",
            help="texts for each prompt: samples, or the best beams (default: 1); a UniLM's are "
            "ranked by similarity to the prompt",
        ),
        option(
            "--batch",
            type=whole_number(1),
            default=8,
            metavar="N",
            help="texts that are written at once; with beams, prompts (default: 8)",
        ),
    ),
)
OUTPUT = OptionGroup(
    "output",
    (
        option(
            "--json",
            action="store_true",
            help="print one JSON object per prompt, each on one line, instead of text",
        ),
        option(
            "--output",
            "-o",
            type=_path,
            metavar="FILE",
            help="save these JSON objects in FILE, once all are there; prints nothing",
        ),
        option(
            "--logprobs",
            action="store_true",
            help="with JSON, the log-probability of each token",
        ),
        option(
            "--quiet",
            "-q",
            action="store_true",
            help="no progress and no line with times",
        ),
    ),
)


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the ways to give prompts, of which a run takes exactly one."""
    ways = parser.add_argument_group("prompt").add_mutually_exclusive_group(required=True)
    ways.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="text to continue, or for T5 and UniLM the source; - for standard input",
    )
    ways.add_argument(
        "--prompt-file",
        type=filled,
        metavar="FILE",
        help="read the prompt from FILE, without its last line end; - for standard input",
    )
    ways.add_argument(
        "--prompts",
        type=filled,
        metavar="FILE",
        help="read one prompt a line from FILE, plain or JSON Lines; - for standard input",
    )
