"""Progress on standard error, for people: drawn by rich, and only where a terminal shows it.

Knows no command. Without a terminal nothing is drawn and rich is not even imported.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from kvcast.cli.console import printable
from kvcast.spec.phases import ignore_phase

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """What a command tells about how far it is."""

    def waiting(self, message: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show that something of unknown length is going on.

        Yields what shows, behind the message, which part of it has begun.
        """

    def measuring(self, name: str, total: float | None) -> AbstractContextManager[None]:
        """Show a bar for one input of `total` seconds of audio (None where unknown)."""

    def reached(self, seconds: float) -> None:
        """Move the bar."""

    def hidden(self) -> AbstractContextManager[None]:
        """Take the bar off the terminal while something is printed there."""


def progress(*, quiet: bool) -> Progress:
    """Return what draws progress here: nothing if quiet or if there is no terminal."""
    can_redraw = sys.stderr is not None and sys.stderr.isatty() and os.getenv("TERM") != "dumb"
    return Drawn() if can_redraw and not quiet else Silent()


class Silent(Progress):
    """Progress that nobody watches."""

    @override
    @contextmanager
    def waiting(self, message: str) -> Iterator[Callable[[str], None]]:
        yield ignore_phase

    @override
    @contextmanager
    def measuring(self, name: str, total: float | None) -> Iterator[None]:
        yield

    @override
    def reached(self, seconds: float) -> None:
        pass  # nothing is drawn

    @override
    @contextmanager
    def hidden(self) -> Iterator[None]:
        yield


class Drawn(Progress):
    """Progress drawn by rich on standard error, wiped when done."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True)
        self._bar: RichProgress | None = None

    @override
    @contextmanager
    def waiting(self, message: str) -> Iterator[Callable[[str], None]]:
        from rich.markup import escape

        with self._console.status(escape(printable(message))) as status:
            yield lambda part: status.update(escape(printable(f"{message}: {part}")))

    @override
    @contextmanager
    def measuring(self, name: str, total: float | None) -> Iterator[None]:
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        seconds = (
            "{task.completed:.0f} of {task.total:.0f} s" if total else "{task.completed:.0f} s"
        )
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(seconds),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            # Standard output may be a pipe or a file; rich would send it to the terminal.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar.add_task(escape(printable(name)), total=total or None)
        self._bar = bar
        try:
            with bar:
                yield
        finally:
            self._bar = None

    @override
    def reached(self, seconds: float) -> None:
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.update(task, completed=seconds)

    @override
    @contextmanager
    def hidden(self) -> Iterator[None]:
        # The bar is in the way only if standard output is a terminal too.
        if self._bar is None or not sys.stdout.isatty():
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()
