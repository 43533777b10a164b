"""Progress on standard error, for people: drawn by rich, and only where a terminal shows it.

Knows no command. Without a terminal nothing is drawn and rich is not even imported.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from kvcast.cli.console import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


class Progress(Protocol):
    """Progress that a command reports."""

    def waiting(self, message: str) -> AbstractContextManager[Callable[[str], None]]:
        """Show work of unknown length.

        Yields a function that shows the current phase behind the message.
        """

    def measuring(self, name: str, total: float | None) -> AbstractContextManager[None]:
        """Show a bar for one input of `total` seconds of audio (None where unknown)."""

    def reached(self, seconds: float) -> None:
        """Move the bar."""

    def covering(self, files: int, size: float) -> AbstractContextManager["Coverage"]:
        """Show one bar for several inputs of `size` bytes together."""

    def hidden(self) -> AbstractContextManager[None]:
        """Take the bar off the terminal while text is printed there."""

    def aside(self) -> AbstractContextManager[None]:
        """Take the bar off the terminal while a line is written to standard error."""


class Coverage:
    """How much of several inputs is done; threads may tell at once."""

    def __init__(self, show: Callable[[int, float], None]) -> None:
        """Call `show` with the number of finished inputs, and the bytes that are done."""
        self._show = show
        self._lock = Lock()
        self._files, self._size = 0, 0.0
        self._parts: dict[str, float] = {}

    def reached(self, name: str, size: float) -> None:
        """Note how many bytes of an input are done."""
        with self._lock:
            self._parts[name] = size
            self._show(self._files, self._size + sum(self._parts.values()))

    def finished(self, name: str, size: float) -> None:
        """Note that an input of this size is done."""
        with self._lock:
            self._parts.pop(name, None)
            self._files, self._size = self._files + 1, self._size + size
            self._show(self._files, self._size + sum(self._parts.values()))


def progress(*, quiet: bool) -> Progress:
    """Return the progress display for this output: nothing if quiet or if there is no terminal."""
    can_redraw = sys.stderr is not None and sys.stderr.isatty() and os.getenv("TERM") != "dumb"
    return DrawnProgress() if can_redraw and not quiet else Silent()


class Silent(Progress):
    """Progress without display."""

    @override
    @contextmanager
    def waiting(self, message: str) -> Iterator[Callable[[str], None]]:
        yield lambda _: None  # not `ignore_phase`, without which libraries draw bars of their own

    @override
    @contextmanager
    def measuring(self, name: str, total: float | None) -> Iterator[None]:
        yield

    @override
    def reached(self, seconds: float) -> None:
        pass  # nothing is drawn

    @override
    @contextmanager
    def covering(self, files: int, size: float) -> Iterator[Coverage]:
        yield Coverage(lambda *_: None)

    @override
    @contextmanager
    def hidden(self) -> Iterator[None]:
        yield

    @override
    @contextmanager
    def aside(self) -> Iterator[None]:
        yield


class DrawnProgress(Progress):
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

        seconds = (
            "{task.completed:.0f} of {task.total:.0f} s" if total else "{task.completed:.0f} s"
        )
        with self._drawn(seconds) as bar:
            bar.add_task(escape(printable(name)), total=total or None)
            yield

    @override
    def reached(self, seconds: float) -> None:
        if self._bar:
            for task in self._bar.task_ids:
                self._bar.update(task, completed=seconds)

    @override
    @contextmanager
    def covering(self, files: int, size: float) -> Iterator[Coverage]:
        with self._drawn("{task.percentage:.0f}%", "left") as bar:
            task = bar.add_task(f"0 of {files} recordings", total=size)

            def show(finished: int, done: float) -> None:
                description = f"{finished} of {files} recordings"
                bar.update(task, description=description, completed=done)

            yield Coverage(show)

    @override
    @contextmanager
    def hidden(self) -> Iterator[None]:
        # The bar is in the way only if standard output is a terminal too.
        with self.aside() if sys.stdout is not None and sys.stdout.isatty() else nullcontext():
            yield

    @override
    @contextmanager
    def aside(self) -> Iterator[None]:
        if self._bar is None:
            yield
            return
        self._bar.stop()
        yield
        self._bar.start()

    @contextmanager
    def _drawn(self, amount: str, unit_of_time: str = "") -> "Iterator[RichProgress]":
        """Show a bar with its description, this amount and the time left."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn(amount),
            TimeRemainingColumn(),
            TextColumn(unit_of_time),
            console=self._console,
            transient=True,
            # Standard output may be a pipe or a file; rich would send it to the terminal.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar = bar
        try:
            with bar:
                yield bar
        finally:
            self._bar = None
