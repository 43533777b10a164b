"""`kvcast chat [MODEL]`: a conversation in a terminal, or one answer to what a pipe holds.

prompt_toolkit edits lines and keeps their history, rich shows answers. The one is imported while
the model is opened, the other while the first message is typed.
"""

import argparse
import json
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from kvcast.cli import console, prompts
from kvcast.cli.arguments import (
    Heading,
    Parser,
    add_options,
    filled,
    headings,
    keywords,
    left_open,
    normalise,
)
from kvcast.cli.console import progress
from kvcast.cli.generate import MODEL_CHOICES
from kvcast.cli.opening import STANDARD_INPUT, chosen_model, drafted_by, opened
from kvcast.cli.option_aliases import translated
from kvcast.cli.prompts import speed
from kvcast.decoding.params import SAMPLING
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.loading.params import LOADING, LoadParams
from kvcast.saving import save
from kvcast.text.params import CONVERSATION, STRUCTURE, PromptParams

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

    from kvcast.text.conversation import Conversation

EPILOG = """\
Enter sends a message, Alt-Enter begins a new line in it, and so does a message between two \"""\".
Ctrl-C stops an answer, Ctrl-D leaves. /help lists the commands. A pipe on standard input is one
message, answered on standard output.

exit codes are those of kvcast generate
"""
LEFT_OUT = {
    *("chat", "special_tokens", "source_language", "target_language", "sentences"),
    *("logprobs", "top_logprobs", "length_penalty", "early_stopping", "beam", "n", "batch"),
}
"""Options of `generate` that a conversation has no use for."""


BRIEF = (
    *("named", "runtime", "quantize", "threads", "system", "max_new_tokens"),
    *("temperature", "top_p", "seed", "quiet"),
)
EXAMPLES = """\
  kvcast chat
  kvcast chat qwen3:0.6b --system "Be brief."
"""


def add_arguments(parser: Parser) -> None:
    parser.epilog, parser.brief, parser.examples = EPILOG, BRIEF, EXAMPLES
    parser.add_argument(
        "named",
        nargs="?",
        type=filled,
        metavar="MODEL",
        help=f"{MODEL_CHOICES} (default: one that is here)",
    )
    parser.add_argument(
        "prompt",
        nargs="?",
        type=filled,
        metavar="PROMPT",
        help="a message to answer before leaving",
    )
    under = headings(parser, LOADING, CONVERSATION, SAMPLING, STRUCTURE, "output")
    under[LOADING].add_argument(
        "--model", "-m", type=filled, metavar="MODEL", help="the model, as an option"
    )
    add_options(under, LoadParams)
    add_options(under, PromptParams, leave_out=LEFT_OUT)
    under["output"].add_argument(
        "--quiet", "-q", action="store_true", help="no progress and no line with times"
    )


def run(args: argparse.Namespace) -> int:
    if args.named and args.model:
        raise UsageError("the model is named twice: drop --model")
    args.model = args.named or args.model or chosen_model("generate", quiet=True)
    prompts.read_grammars(args)
    options = _options(args)
    question = args.prompt
    if question is None and console.is_piped():
        question = prompts.read_prompt(STANDARD_INPUT).text
    if question is None and not console.is_interactive():
        raise UsageError("kvcast chat needs a terminal; kvcast generate writes to files and pipes")
    asks = Event()
    if question is not None:
        asks.set()
    if console.draws():
        Thread(target=_import_libraries, args=(asks,), daemon=True).start()
    with progress(quiet=args.quiet).waiting(f"loading {args.model}") as on_phase:
        model: Any = opened(args.model, args, on_phase, task="generate").model
        if args.draft is not None:
            options["draft"] = drafted_by(args, on_phase, task="generate")
    if not model.has_chat_template:
        raise UsageError(f"{args.model} has no chat template: kvcast generate takes plain prompts")
    from kvcast.text.conversation import Conversation

    with closing(Conversation(model, options, args.system)) as conversation:
        talk = _Talk(conversation, args, on_prompt=asks.set)
        return talk.once(question) if question is not None else talk.on()


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was given; the model and the conversation decide the rest."""
    given = keywords(args, PromptParams)
    PromptParams(**given)
    defaults = {option.name: option.default for option in PromptParams.declared()}
    left = left_open(args, set(given))
    return {
        name: value
        for name, value in given.items()
        if name != "system" and (name not in left or value not in (defaults[name], []))
    }


def _import_libraries(asks: Event) -> None:
    import_module("prompt_toolkit")
    asks.wait()
    import_module("kvcast.cli.answer_view")


class _Left(Exception):  # noqa: N818 - no error
    """The user has left."""


class _Talk:
    """Messages and commands from the terminal, answers to it."""

    def __init__(
        self,
        conversation: "Conversation",
        args: argparse.Namespace,
        on_prompt: Callable[[], None],
    ) -> None:
        """`on_prompt` is called when a prompt is shown."""
        self._conversation, self._on_prompt = conversation, on_prompt
        self._model, self._quiet, self._renders = args.model, args.quiet, True
        self._commands: dict[str, tuple[str, str, Callable[[str], None]]] = {
            "help": ("", "list the commands", self._help),
            "system": ("[TEXT]", "show or change the system message", self._system),
            "set": ("[NAME [VALUE]]", "show or change options, such as temperature", self._set),
            "unset": ("NAME", "return an option to its default", self._unset),
            "retry": ("", "answer the last message again", self._retry),
            "clear": ("", "begin a new conversation", self._clear),
            "show": ("", "show the model, the system message and the options", self._show_all),
            "markdown": ("", "show answers as they are written, or rendered again", self._markdown),
            "save": ("FILE", "save the conversation as JSON", self._save),
            "load": ("FILE", "go on with a saved one, or with OpenAI's messages", self._load),
            "bye": ("", "leave, as Ctrl-D does", self._bye),
        }

    def once(self, question: str) -> int:
        self._show(self._conversation.ask(question))
        return 0

    def on(self) -> int:
        session = self._session()
        if not self._quiet:
            console.emit(f"{self._model}: /help lists the commands, Ctrl-D leaves\n")
        while True:
            try:
                text = _message(session)
                if text.startswith("/") and "/" not in text.split(maxsplit=1)[0][1:]:
                    self._command(text)
                elif text.strip():
                    self._answer(self._conversation.ask(text))
            except KeyboardInterrupt:
                continue
            except (EOFError, _Left):
                return 0
            except KvcastError as error:
                console.say(str(error))

    def _command(self, text: str) -> None:
        name, _, value = text[1:].partition(" ")
        known = _OTHER_NAMES.get(name, name)
        if known not in self._commands:
            raise UsageError(
                f"there is no command /{name}: /help lists them; a message may begin with a space"
            )
        _, _, run = self._commands[known]
        run(value.strip())

    def _answer(self, pieces: Iterator[tuple[str, str]]) -> None:
        try:
            self._show(pieces)
        except KeyboardInterrupt:
            console.emit("(stopped)\n")

    def _show(self, pieces: Iterator[tuple[str, str]]) -> None:
        show = _drawn if console.draws() and self._renders else _written
        with closing(pieces), console.without_echo():  # type: ignore[type-var]  # generators
            show(pieces)
        if self._conversation.forgotten and not self._quiet:
            console.say(f"the oldest {self._conversation.forgotten} messages no longer fit")
        if not self._quiet and (last := self._conversation.last) is not None:
            _dim(speed([last])) if console.draws() else console.say(speed([last]))

    def _help(self, _: str) -> None:
        rows = [(f"/{name} {value}", told) for name, (value, told, _) in self._commands.items()]
        width = max(len(row) for row, _ in rows)
        console.emit("".join(f"  {row:{width}}  {told}\n" for row, told in rows))
        console.emit('  Alt-Enter begins a new line; """ begins and ends a message of several\n')

    def _system(self, value: str) -> None:
        if value:
            self._conversation.system = value
        console.emit(f"{self._conversation.system or 'no system message'}\n")

    def _show_all(self, _: str) -> None:
        console.emit(f"{self._model}\n")
        self._system("")
        self._set("")

    def _markdown(self, _: str) -> None:
        self._renders = not self._renders
        console.emit(f"answers are {'rendered' if self._renders else 'as they are written'}\n")

    def _set(self, value: str) -> None:
        options = self._conversation.options
        if value.startswith("system "):
            self._system(value.removeprefix("system ").strip())
            return
        if value:
            options |= _chosen(value.removeprefix("parameter "))
        shown = [f"{name} {option}" for name, option in options.items()]
        console.emit("".join(f"{line}\n" for line in shown or ["all options have defaults"]))

    def _unset(self, value: str) -> None:
        name = value.replace("-", "_")
        if name not in self._conversation.options:
            raise UsageError(f"{value or 'an option'} is not set: /set shows what is")
        del self._conversation.options[name]

    def _retry(self, _: str) -> None:
        self._answer(self._conversation.retry())

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        console.emit("a new conversation\n")

    def _save(self, value: str) -> None:
        text = json.dumps(self._conversation.document, ensure_ascii=False, indent=2)
        if not _may_be_replaced(path := _file(value)):
            raise UsageError(f"{value} is there, and no conversation: give another name")
        save(path, f"{text}\n")
        console.emit(f"saved as {value}\n")

    def _load(self, value: str) -> None:
        try:
            self._conversation.restore(json.loads(prompts.read_text(str(_file(value)))))
        except (ValueError, RecursionError) as error:
            raise InputOutputError(f"{value}: is not JSON: {error}") from None
        messages = self._conversation.messages
        count = "1 message" if len(messages) == 1 else f"{len(messages)} messages"
        last = messages[-1]["content"] if messages else ""
        console.emit(f"{count}; the last: {textwrap.shorten(last, 60, placeholder=' …')}\n")

    def _bye(self, _: str) -> None:
        raise _Left

    def _session(self) -> "PromptSession[str]":
        from kvcast.cli.line_editor import new_session

        words = {"set": _setting_names()}
        return new_session({name: words.get(name, []) for name in self._commands}, self._on_prompt)


_OTHER_NAMES = {
    **{"?": "help", "exit": "bye", "quit": "bye", "q": "bye", "new": "clear", "reset": "clear"},
    **{"regen": "retry", "regenerate": "retry", "info": "show"},
}
_QUOTES = '"""'
_HEAD = 64  # bytes that tell JSON from other files


def _message(session: "PromptSession[str]") -> str:
    text = session.prompt(">>> ")
    if not text.lstrip().startswith(_QUOTES):
        return text
    text = text.lstrip().removeprefix(_QUOTES)
    while not text.rstrip().endswith(_QUOTES):
        text += "\n" + session.prompt("... ")
    return text.rstrip().removesuffix(_QUOTES).strip("\n")


def _drawn(pieces: Iterator[tuple[str, str]]) -> None:
    from rich.console import Console

    from kvcast.cli.answer_view import AnswerView

    with AnswerView(Console()) as view:
        for reasoning, answer in pieces:
            view.add(reasoning, answer)


def _written(pieces: Iterator[tuple[str, str]]) -> None:
    """Write the answer alone: for programs as it is, in a terminal with lines broken at words."""
    answers = (answer for _, answer in pieces)
    for text in _in_lines(answers) if console.is_terminal() else answers:
        console.emit(text)
    console.emit("\n")


def _in_lines(answers: Iterator[str]) -> Iterator[str]:
    from kvcast.cli.line_breaks import LineBreaks

    lines = LineBreaks(shutil.get_terminal_size().columns)
    for answer in answers:
        yield lines.add(console.escaped(answer))
    yield lines.end()


def _dim(line: str) -> None:
    from rich.console import Console

    Console().print(line, style="dim", highlight=False)


def _setting_names() -> list[str]:
    left_out = LEFT_OUT | {"draft", "chunk", "system"}
    return [option.name for option in PromptParams.declared() if option.name not in left_out]


class _SettingParser(Parser):
    @override
    def error(self, message: str) -> NoReturn:
        flag, _, problem = message.removeprefix("argument ").partition(": ")
        raise UsageError(f"{flag.partition('/')[0].lstrip('-').replace('-', '_')} {problem}")


def _chosen(words: str) -> dict[str, Any]:
    """Read `NAME VALUE` as the option of that name on a command line."""
    name, _, value = words.partition(" ")
    parser = _SettingParser(add_help=False)
    group: Heading = parser
    names = _setting_names()
    others = {option.name for option in PromptParams.declared()} - set(names)
    add_options(defaultdict(lambda: group), PromptParams, leave_out=others)
    flag = f"--{name.lstrip('-')}"
    given = [f"{flag}={value.strip()}"] if value else [flag]
    args, unknown = parser.parse_known_args(translated("generate", normalise(given)))
    if unknown:
        close = parser.meant(flag).lstrip("-").replace("-", "_")
        known = f"did you mean {close}?" if close else f"these are: {', '.join(names)}"
        raise UsageError(f"there is no option {name}; {known}")
    prompts.read_grammars(args)
    return _options(args)


def _may_be_replaced(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD).lstrip()[:1] in (b"{", b"[", b"")
    except OSError:
        return True  # it is not there, or saving says what is wrong


def _file(value: str) -> Path:
    if not value:
        raise UsageError("a file is missing, as in /save talk.json")
    return Path(value).expanduser()
