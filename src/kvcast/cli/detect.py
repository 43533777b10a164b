"""`kvcast detect AUDIO…`: which language each recording is in."""

import argparse
import json
from typing import TYPE_CHECKING

from kvcast.cli import console, inputs
from kvcast.cli.arguments import add_options, headings, keywords
from kvcast.cli.console import progress
from kvcast.cli.opening import shown
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.speech.params import RECOGNITION, LanguageParams

if TYPE_CHECKING:
    from kvcast.whisper.language_detection import DetectedLanguage

JSON_FORMAT = "kvcast.language"
JSON_VERSION = 1
_OTHERS = 3  # further languages in the table
_LEAST = 0.005  # probability of these, which does not round to 0.00

EPILOG = """\
One row for each recording: its name, the language's code and name, how probable it is, and what
else it may be. docs/language.schema.json describes the documents that --json prints.

""" + inputs.EXIT_CODES.format(done="the rest are printed", kept="rows already printed stay")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    inputs.add_audio(parser)
    under = headings(parser, LOADING, RECOGNITION, "output")
    inputs.add_model(under[LOADING])
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, LanguageParams)
    under["output"].add_argument(
        "--json", action="store_true", help="print one JSON document per input, each on one line"
    )
    under["output"].add_argument(
        "--quiet", "-q", action="store_true", help="no progress and no notices"
    )


def run(args: argparse.Namespace) -> int:
    inputs.check(args)
    params = keywords(args, LanguageParams)
    watcher = progress(quiet=args.quiet)
    sources, failures = inputs.present(args.audio)
    if sources:
        with watcher.waiting(f"loading {args.model}") as on_phase:
            model, runtime = inputs.load(args, on_phase)
        if not model.is_multilingual:
            raise UsageError(f"{args.model} knows English only: there is no language to detect")
    width = max((len(console.printable(shown(source))) for source in sources), default=0)
    for source in sources:
        try:
            with watcher.waiting(f"detecting the language of {shown(source)}"):
                language = model.detect_language(source, **params)
        except Exception as error:
            failures.append(console.report(error, about=shown(source)))
            continue
        if args.json:
            console.emit(_document(source, args.model, runtime, language))
        else:
            console.emit(_row(console.printable(shown(source)), width, language))
        if not args.quiet:
            for notice in language.notices:
                console.say(notice, about=shown(source))
    return inputs.exit_code(failures, inputs=len(args.audio))


def _document(source: str, model: str, runtime: str, detected: "DetectedLanguage") -> str:
    document = {
        "format": JSON_FORMAT,
        "version": JSON_VERSION,
        "source": source,
        "model": model,
        "runtime": runtime,
        "language": detected.language,
        "probability": detected.probability,
        "probabilities": dict(detected.probabilities),
        "windows": detected.windows,
        "notices": list(detected.notices),
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"


def _row(name: str, width: int, detected: "DetectedLanguage") -> str:
    others = [
        f"{code} {probability:.2f}"
        for code, probability in list(detected.probabilities.items())[1 : 1 + _OTHERS]
        if probability >= _LEAST
    ]
    row = (
        f"{name:<{width}}  {detected.language:<3}  {detected.name:<14}  {detected.probability:.2f}"
    )
    return "  ".join([row, *others]) + "\n"
