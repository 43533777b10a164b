"""`kvcast align AUDIO TEXT`: when each word of a text is spoken."""

import argparse
from pathlib import Path

from kvcast.cli import console, inputs
from kvcast.cli.arguments import add_options, headings, keywords
from kvcast.cli.console import progress
from kvcast.cli.inputs import FORMATS, Outputs
from kvcast.cli.opening import STANDARD_INPUT, shown
from kvcast.cli.prompts import read_text
from kvcast.errors import UsageError
from kvcast.loading.params import LOADING, OF_TEXTS, LoadParams
from kvcast.speech.params import RECOGNITION, AlignParams
from kvcast.transcripts.params import SUBTITLES, SubtitleParams
from kvcast.transcripts.writers import TranscriptDocument

EPILOG = """\
Each line of the text becomes a segment, with the times of its words. The recording is transcribed
to find where each part of the text belongs; either may have parts that the other lacks. Lines that
are not found are named in a notice.

exit codes are those of kvcast transcribe
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("audio", metavar="AUDIO", help="a recording, or - for standard input")
    parser.add_argument(
        "text", metavar="TEXT", help="a file with its text, or - for standard input"
    )
    under = headings(parser, LOADING, RECOGNITION, SUBTITLES, "output")
    inputs.add_model(under[LOADING])
    add_options(under, LoadParams, leave_out=OF_TEXTS)
    add_options(under, AlignParams)
    add_options(under, SubtitleParams)
    output = under["output"]
    output.add_argument(
        "--format",
        "-f",
        choices=FORMATS,
        default="srt",
        help="format of the text with its times; json has those of words (default: srt)",
    )
    output.add_argument(
        "--output-dir", "-o", type=Path, metavar="DIR", help="save as DIR/name.ext, made if missing"
    )
    output.add_argument("--quiet", "-q", action="store_true", help="no progress and no notices")


def run(args: argparse.Namespace) -> int:
    source = args.audio
    args.audio = [source]
    inputs.check(args)
    if source == args.text == STANDARD_INPUT:
        raise UsageError("standard input (-) can be read only once")
    outputs = Outputs.chosen(
        format=args.format,
        output_dir=args.output_dir,
        json=False,
        quiet=True,
        sources=[source],
        subtitles=SubtitleParams(**keywords(args, SubtitleParams)),
    )
    text = read_text(args.text)
    present, failures = inputs.present([source], outputs.check)
    if not present:
        return inputs.exit_code(failures, inputs=1)
    watcher = progress(quiet=args.quiet)
    with watcher.waiting(f"loading {args.model}") as on_phase:
        model, runtime = inputs.load(args, on_phase)
    with watcher.waiting(f"aligning {shown(source)}"):
        alignment = model.align(source, text, **keywords(args, AlignParams))
    for piece in outputs.pieces(alignment.segments):
        console.emit(piece)
    outputs.finish(
        TranscriptDocument(
            source=source,
            model=args.model,
            runtime=runtime,
            task="transcribe",
            **vars(alignment),
        )
    )
    if not args.quiet:
        for notice in alignment.notices:
            console.say(notice, about=shown(source))
    return 0
