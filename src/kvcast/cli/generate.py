"""`kvcast generate PROMPT`: options into keywords, text as it comes or JSON, exit codes."""

import argparse
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kvcast.cli import console, prompts
from kvcast.cli.arguments import Heading, Parser, add_options, filled, headings, keywords, left_open
from kvcast.cli.console import Progress, progress
from kvcast.cli.opening import STANDARD_INPUT, chosen_model, drafted_by, for_actor, opened
from kvcast.cli.prompts import PromptLine, document, speed
from kvcast.cluster.params import CLUSTER, ClusterParams
from kvcast.decoding.params import SAMPLING, SEVERAL
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.loading.params import LOADING, LoadParams
from kvcast.saving import prepare_folder, save
from kvcast.spec.runtimes import OnPhase, ignore_phase
from kvcast.text.params import CONVERSATION, RECOMMENDED, STRUCTURE, TRANSLATION, PromptParams

if TYPE_CHECKING:
    from kvcast.text.model import TextGeneration, TextGenerator

MODEL_CHOICES = (
    "a kvcast bundle, a Hugging Face, Mistral, bert4keras or Bergamot folder, a GGUF file, "
    "a hub id org/name[@revision], or demo-chat, demo-t5 or demo-unilm"
)

EPILOG = """\
Options may be spelled with hyphens or underscores. A prompt that begins with a hyphen goes after
a lone --. Text is printed as it comes; with --beam, --n or JSON, when it is done.

exit codes:
  0    done
  1    error
  2    wrong usage, an empty prompt, a prompt that is too long for the model
  66   input missing
  74   input cannot be read, or output cannot be written
  130  interrupted; printed text stays
  141  the reader of standard output left early
  143  terminated; as 130
"""


BRIEF = (
    *("prompt", "prompts", "model", "system", "raw", "max_new_tokens"),
    *("temperature", "top_p", "seed", "json_schema", "json", "quiet"),
)
EXAMPLES = """\
  kvcast generate "Name three primary colours."
  kvcast generate --model qwen3:0.6b --system "Answer in one word." < question.txt
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog, parser.brief, parser.examples = EPILOG, BRIEF, EXAMPLES
    _add_prompts(parser)
    titles = (LOADING, CONVERSATION, TRANSLATION, SAMPLING, STRUCTURE, SEVERAL, CLUSTER, "output")
    under = headings(parser, *titles)
    under[LOADING].add_argument(
        "--model",
        "-m",
        type=filled,
        metavar="MODEL",
        help=f"{MODEL_CHOICES} (default: one that is here)",
    )
    add_options(under, LoadParams)
    under[CONVERSATION].add_argument(
        "--raw",
        action="store_true",
        help="continue the prompt as it is, also if the model has a chat template",
    )
    add_options(under, PromptParams)
    add_options(under, ClusterParams)
    _add_output(under["output"])


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    ways = parser.add_argument_group("prompt").add_mutually_exclusive_group()
    ways.add_argument(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="the message to a model with a chat template, the source for T5, BART and UniLM, the "
        "text to continue for others; - for standard input, which is read where no prompt is given",
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


def _add_output(group: Heading) -> None:
    group.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per prompt, each on one line, instead of text",
    )
    group.add_argument(
        "--output",
        "-o",
        type=_path,
        metavar="FILE",
        help="save these JSON objects in FILE, once all are there; prints nothing",
    )
    group.add_argument(
        "--quiet", "-q", action="store_true", help="no progress and no line with times"
    )


def _path(value: str) -> Path:
    return Path(filled(value))


def run(args: argparse.Namespace) -> int:
    in_json = args.json or args.output is not None or args.prompts is not None
    for name in ("logprobs", "top_logprobs"):
        if getattr(args, name) and not in_json:
            raise UsageError(f"--{name.replace('_', '-')} are numbers for JSON: add --json")
    cluster = ClusterParams(**keywords(args, ClusterParams))
    if cluster.ray is not None and args.prompts is None:
        raise UsageError("--ray is for many prompts: give them with --prompts")
    if args.raw and (args.chat or args.system is not None):
        raise UsageError("--raw leaves the chat template out: drop --chat and --system, or --raw")
    prompts.read_grammars(args)
    _check_options(args)
    lines = _prompts(args)
    args.model = args.model or chosen_model("generate", quiet=args.quiet)
    if args.output is not None:
        _prepare(args.output, source=args.prompts or args.prompt_file)
    watcher = progress(quiet=args.quiet)
    if cluster.ray is not None:
        texts = _write_from_cluster(lines, args, watcher)
        return _report(texts, args)
    with watcher.waiting(f"loading {args.model}") as on_phase:
        model, runtime = _load(args, on_phase)
    chosen = _options(lines[0], args) | {"draft": None}  # which is a model by now
    params = model.defaults.params(PromptParams, chosen)
    if in_json:
        texts = _write_json(_generate(model, lines, args, watcher), runtime, lines, args)
    elif params.is_one_text:
        texts = [_stream(model, lines[0], args)]
    else:
        texts = _write_texts(model, lines, args, watcher)
    return _report(texts, args)


def _check_options(args: argparse.Namespace) -> None:
    """Raise UsageError for options that no model supports, before one is opened."""
    given = keywords(args, PromptParams)
    if args.generation_config and args.beam == 1:  # the model may recommend other values
        if left_open(args, {"beam"}):
            del given["length_penalty"], given["early_stopping"]
        if left_open(args, {"temperature"}):
            given["temperature"] = 1.0
    PromptParams(**given)


def _report(texts: "Sequence[TextGeneration]", args: argparse.Namespace) -> int:
    if args.quiet:
        return 0
    if not all(len(text.tokens) for text in texts):
        advice = ": a chat model is asked without --raw" if args.raw else ""
        console.say(f"the model ended the text at once{advice}")
    console.say(speed(texts))
    return 0


def _prepare(output: Path, *, source: str | None) -> None:
    """Refuse an output that cannot or must not be replaced, before any work is done."""
    try:
        exists = output.exists()
        if exists and not output.is_file():
            raise InputOutputError(f"cannot write {output}: not a regular file")
        if exists and source not in {None, STANDARD_INPUT} and output.samefile(source):
            raise UsageError(f"--output {output} would replace the prompts: give another file")
    except OSError as error:
        raise InputOutputError(f"cannot write {output}: {error.strerror}") from None
    prepare_folder(output.parent)


def _prompts(args: argparse.Namespace) -> list[PromptLine]:
    if args.prompts is not None:
        lines = prompts.read_prompts(args.prompts)
    elif args.prompt_file is not None:
        lines = [prompts.read_prompt(args.prompt_file)]
    elif args.prompt == STANDARD_INPUT or (args.prompt is None and console.is_piped()):
        lines = [prompts.read_prompt(STANDARD_INPUT)]
    elif args.prompt is None:
        raise UsageError("a prompt is missing: give one or pipe one in; kvcast chat asks for them")
    else:
        lines = [prompts.given(args.prompt)]
    return [prompt.with_system(args.system) for prompt in lines]


def _load(args: argparse.Namespace, on_phase: OnPhase) -> "tuple[TextGenerator, str]":
    loaded = opened(args.model, args, on_phase, task="generate")
    assert loaded.model.task == "generate"
    args.draft = drafted_by(args, on_phase, task="generate")
    model = cast("TextGenerator", loaded.model)
    _choose_chat(model, args)
    return model, loaded.runtime


def _choose_chat(model: "TextGenerator", args: argparse.Namespace) -> None:
    """Ask a model with a chat template through it, unless the options say something else."""
    plain = args.raw or args.special_tokens or not model.has_chat_template
    if args.chat or args.system is not None or plain:
        return
    args.chat = True
    _say_how(args)


def _say_how(args: argparse.Namespace) -> None:
    if not args.quiet:
        console.say("asked through the model's chat template; --raw continues the text instead")


def _stream(
    model: "TextGenerator", prompt: PromptLine, args: argparse.Namespace
) -> "TextGeneration":
    options = _options(prompt, args)
    del options["batch"]  # is about several texts
    pieces = model.stream(prompt.text, **options)
    began = False
    try:
        for piece in pieces:
            began = True
            console.emit(piece)
    except BaseException:
        if began:  # the error begins a new line
            console.emit("\n")
        raise
    console.emit("\n")
    return pieces.result


def _write_texts(
    model: "TextGenerator", lines: Sequence[PromptLine], args: argparse.Namespace, watcher: Progress
) -> "list[TextGeneration]":
    (texts,) = _generate(model, lines, args, watcher)
    for number, text in enumerate(texts, start=1):
        heading = f"--- {number} of {len(texts)} ---\n" if args.n > 1 else ""
        console.emit(f"{heading}{text.text}\n")
    return texts


def _write_json(
    answers: "Iterator[list[TextGeneration]]",
    runtime: str,
    lines: Sequence[PromptLine],
    args: argparse.Namespace,
) -> "list[TextGeneration]":
    """Print one document per prompt as soon as its turn is done, or save them all at the end."""
    generated: list[TextGeneration] = []
    documents: list[str] = []
    for prompt, texts in zip(lines, answers, strict=True):
        fields = document(
            prompt,
            texts,
            model=args.model,
            runtime=runtime,
            conversation=_conversation(prompt, args),
            logprobs=args.logprobs,
        )
        line = json.dumps(fields, ensure_ascii=False, allow_nan=False) + "\n"
        if args.output is None:
            console.emit(line)
        documents.append(line)
        generated += texts
    if args.output is not None:
        save(args.output, "".join(documents))
    return generated


def _write_from_cluster(
    lines: Sequence[PromptLine], args: argparse.Namespace, watcher: Progress
) -> "list[TextGeneration]":
    """Write documents as `_write_json` does, of texts that the machines of a cluster generate."""
    from kvcast.cluster.connection import connected
    from kvcast.cluster.mapping import answered, computed

    cores, own = args.threads or 1, for_actor(args)
    with ExitStack() as held:
        with watcher.waiting(f"connecting to Ray at {args.ray}"):
            held.enter_context(connected(args.ray))
        with watcher.waiting("checking prompts"):
            runtime, in_chat, keys = computed(functools.partial(examined, own, lines), cores=cores)
        if in_chat and not args.chat:
            args.chat = True
            _say_how(args)
        answers = answered(
            functools.partial(answering, own),
            lines,
            keys,
            together=args.batch,
            actors=args.actors,
            cores=cores,
        )
        return _write_json(_watched(answers, len(lines), watcher), runtime, lines, args)


def examined(
    args: argparse.Namespace, lines: Sequence[PromptLine]
) -> tuple[str, bool, list[tuple[int, bytes]]]:
    """Check all prompts.

    Return the runtime, whether they are messages of a chat, and each one's call and digest of
    tokens.
    """
    model, runtime = _load(args, ignore_phase)
    _begun(model, lines, args)
    keys = []
    for number, call in enumerate(_calls(lines)):
        params = model.defaults.params(PromptParams, _options(call[0], args))
        for prompt in call:
            tokens = model.prompt_tokens(prompt.text, params)
            keys.append((number, hashlib.sha256(tokens.tobytes()).digest()))
    return runtime, args.chat, keys


def answering(
    args: argparse.Namespace,
) -> "Callable[[Sequence[PromptLine]], list[list[TextGeneration]]]":
    model, _ = _load(args, ignore_phase)
    return lambda prompts: list(_begun(model, prompts, args))


def _generate(
    model: "TextGenerator", lines: Sequence[PromptLine], args: argparse.Namespace, watcher: Progress
) -> "Iterator[list[TextGeneration]]":
    return _watched(_begun(model, lines, args), len(lines), watcher)


def _watched(
    answers: "Iterator[list[TextGeneration]]", count: int, watcher: Progress
) -> "Iterator[list[TextGeneration]]":
    for number in range(1, count + 1):
        with watcher.waiting(f"generating {number} of {count}"):
            texts = next(answers)
        yield texts


def _begun(
    model: "TextGenerator", lines: Sequence[PromptLine], args: argparse.Namespace
) -> "Iterator[list[TextGeneration]]":
    """Return the texts of each prompt, in order; raises now if a prompt is at fault."""

    def begin(some: Sequence[PromptLine]) -> "Iterator[list[TextGeneration]]":
        return model.generate_each(
            [prompt.text for prompt in some],
            **_options(some[0], args),
        )

    # A call has one system text. All calls check their prompts before any continues.
    try:
        return chain.from_iterable([begin(call) for call in _calls(lines)])
    except KvcastError as error:
        raise _placed(error, lines, begin) from None


def _calls(lines: Sequence[PromptLine]) -> list[list[PromptLine]]:
    return [list(call) for _, call in groupby(lines, key=lambda prompt: prompt.system)]


def _placed(
    error: KvcastError,
    lines: Sequence[PromptLine],
    begin: "Callable[[Sequence[PromptLine]], Iterator[list[TextGeneration]]]",
) -> KvcastError:
    """Return the first invalid prompt's error, with its place; `error` itself if all fail."""
    faults: list[KvcastError] = []
    for prompt in lines:
        try:
            begin([prompt])  # nothing is computed until a text is taken
        except KvcastError as fault:
            faults.append(type(fault)(f"{prompt.place}: {fault}"))
    return faults[0] if 0 < len(faults) < len(lines) else error


def _options(prompt: PromptLine, args: argparse.Namespace) -> dict[str, Any]:
    """Return the keywords of a prompt; options that the model may recommend are left open."""
    given = keywords(args, PromptParams) | _conversation(prompt, args)
    return {name: given[name] for name in given.keys() - left_open(args, RECOMMENDED)}


def _conversation(prompt: PromptLine, args: argparse.Namespace) -> dict[str, Any]:
    return {"chat": args.chat or prompt.system is not None, "system": prompt.system}
