"""Lines from a terminal: editing, history and completion of commands, by prompt_toolkit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.shortcuts import CompleteStyle
from typing_extensions import override

from kvcast.spec.files import cache_dir

HISTORY = "chat-history"
_WITH_FILES = ("save", "load")


def new_session(
    commands: Mapping[str, Sequence[str]], on_prompt: Callable[[], None] = lambda: None
) -> "PromptSession[str]":
    """Return a prompt; `commands` follow a slash, each may be followed by one of its words.

    `on_prompt` is called whenever it is shown.
    """
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[Any] = PromptSession(
        history=_history(),
        completer=_Commands(commands),
        complete_style=CompleteStyle.READLINE_LIKE,
        complete_while_typing=False,
        key_bindings=keys,
    )
    session.app.after_render += lambda _: on_prompt()
    return session


def _history() -> History:
    """In the cache folder, readable by its owner alone; in memory if it cannot be written."""
    file = cache_dir() / HISTORY
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.open("a").close()
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(file))


class _Commands(Completer):
    def __init__(self, commands: Mapping[str, Sequence[str]]) -> None:
        self._commands = commands

    @override
    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, word = text[1:].partition(" ")
        if space and name in _WITH_FILES:
            path = Document(word, len(word))
            yield from PathCompleter(expanduser=True).get_completions(path, event)
            return
        words = self._commands.get(name, ()) if space else self._commands
        begun = word if space else name
        for known in words:
            if known.startswith(begun):
                yield Completion(known, start_position=-len(begun))
