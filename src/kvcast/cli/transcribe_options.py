"""The options of `kvcast transcribe`, grouped by the function that takes them as keywords.

Knows how options are spelled, bounded and explained; the owners know what they do.
"""

import argparse
import os
from pathlib import Path

from kvcast.cli.arguments import (
    OptionGroup,
    filled,
    number,
    option,
    or_none,
    several,
    token_list,
    whole_number,
)
from kvcast.cli.outputs import FORMATS

MODEL_VARIABLE = "KVCAST_MODEL"
MODEL_CHOICES = (
    "a kvcast bundle, a Hugging Face or CTranslate2 Whisper folder, "
    "a hub id org/name[@revision], demo or demo-base"
)

BEAM = option(
    "--beam",
    "--beam-size",
    type=whole_number(1, 1000),
    default=1,
    metavar="N",
    help="beams at temperature 0 (default: 1, greedy)",
)
QUANTIZATIONS = ("none", "int8", "int4", "8da8w", "8da4w")
LOADING = OptionGroup(
    "model and runtime",
    (
        option(
            "--model",
            "-m",
            default=os.environ.get(MODEL_VARIABLE),
            metavar="MODEL",
            help=f"{MODEL_CHOICES} (default: ${MODEL_VARIABLE})",
        ),
        option(
            "--runtime",
            choices=("onnx", "aoti", "executorch", "eager"),
            help="what computes (default: what a bundle was exported for; else onnx; aoti is "
            "AOTInductor and eager PyTorch, which need kvcast[export]; executorch needs "
            "kvcast[executorch])",
        ),
        option(
            "--quantize",
            choices=QUANTIZATIONS,
            help="how weights are stored (default: as a bundle has them; else int8 on onnx, "
            "8da8w on executorch, none on the others)",
        ),
        option(
            "--dtype",
            choices=("fp32", "bf16", "fp16"),
            help="numbers of what is not quantised, on aoti (default: as a bundle has them; else "
            "fp32, or bf16 where weights are quantised)",
        ),
        option(
            "--threads",
            type=whole_number(1, 1024),
            metavar="N",
            help="threads to compute with (default: the physical cores at hand)",
        ),
        option(
            "--trust",
            action="store_true",
            help="open a .pt2 or .pte without bundle.json, which nothing vouches for and which "
            "can carry native code",
        ),
    ),
)
RECOGNITION = OptionGroup(
    "what to recognise",
    (
        option(
            "--language",
            type=filled,
            metavar="LANG",
            help="language spoken, such as en or German (default: detected)",
        ),
        option(
            "--task",
            default="transcribe",
            choices=("transcribe", "translate"),
            help="translate writes English (default: transcribe)",
        ),
        option(
            "--clip-start",
            type=number(0.0),
            default=0.0,
            metavar="SECONDS",
            help="where to begin (default: 0)",
        ),
        option(
            "--clip-end",
            type=number(above=0.0),
            metavar="SECONDS",
            help="where to end (default: the end)",
        ),
        option(
            "--initial-prompt",
            metavar="TEXT",
            help="text that precedes the recording: names and spellings to expect",
        ),
        option(
            "--no-timestamps",
            keyword="timestamps",
            action="store_false",
            help="one segment per 30-second window, without finer times",
        ),
    ),
)
SEARCH = OptionGroup(
    "search",
    (
        BEAM,
        option(
            "--best-of",
            type=whole_number(1, 1000),
            default=5,
            metavar="N",
            help="samples at temperatures above 0 (default: 5)",
        ),
        option(
            "--temperature",
            type=several(number(0.0)),
            default=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
            metavar="T[,T…]",
            help="temperatures, each tried when the one before it fails "
            "(default: 0,0.2,0.4,0.6,0.8,1)",
        ),
        option(
            "--patience",
            type=or_none(number(above=0.0)),
            metavar="P",
            help="beam search ends at round(beam x P) finished beams (default: 1)",
        ),
        option(
            "--length-penalty",
            type=or_none(number(0.0, 1.0)),
            metavar="ALPHA",
            help="exponent of the length penalty (default: divide by the length)",
        ),
        option(
            "--suppress-tokens",
            type=token_list,
            default="-1",
            metavar="IDS",
            help="token ids never to emit; -1 is the usual non-speech set (default: -1)",
        ),
        option(
            "--max-new-tokens",
            type=whole_number(1),
            metavar="N",
            help="most tokens per window (default: half the decoder's context)",
        ),
        option(
            "--seed",
            type=whole_number(0, 2**32 - 1),
            default=0,
            metavar="N",
            help="seed of sampling (default: 0)",
        ),
    ),
)
FALLBACK = OptionGroup(
    "long recordings and fallback (a threshold of None is off)",
    (
        option(
            "--condition-on-previous-text",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="give a window the text before it as prompt (default: %(default)s)",
        ),
        option(
            "--compression-ratio-threshold",
            type=or_none(number(0.0)),
            default=2.4,
            metavar="X",
            help="text that compresses better than this repeats itself: fall back (default: 2.4)",
        ),
        option(
            "--logprob-threshold",
            type=or_none(number()),
            default=-1.0,
            metavar="X",
            help="a mean log-probability below this has failed: fall back (default: -1)",
        ),
        option(
            "--no-speech-threshold",
            type=or_none(number(0.0, 1.0)),
            default=0.6,
            metavar="X",
            help="a failed window with a no-speech probability above this is silence "
            "(default: 0.6)",
        ),
    ),
)
TRANSCRIBING = (RECOGNITION, SEARCH, FALLBACK)
"""Everything that a model's `transcribe` takes besides the recording."""


def _format_name(text: str) -> str:
    return {"txt": "text"}.get(text, text)  # Whisper's own name for it


OUTPUT = OptionGroup(
    "output",
    (
        option(
            "--format",
            "-f",
            "--output-format",
            type=_format_name,
            choices=FORMATS,
            help="format of the transcript (default: text)",
        ),
        option(
            "--output-dir",
            "-o",
            type=Path,
            metavar="DIR",
            help="save as DIR/name.ext, made if missing; text is still printed",
        ),
        option(
            "--json",
            action="store_true",
            help="print one JSON document per input, each on one line",
        ),
        option(
            "--quiet",
            "-q",
            action="store_true",
            help="no progress, no notices, and no text where it is saved",
        ),
    ),
)
