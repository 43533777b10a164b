"""The two streams of a command: results, and one line per problem; progress; SIGTERM.

A traceback is shown only with KVCAST_DEBUG=1. Progress is drawn by rich, imported only if standard
error is a terminal. SIGTERM ends a command as Ctrl-C does: unfinished work is cleaned up.
"""

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from typing_extensions import override

from kvcast.errors import InputOutputError, KvcastError

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


INTERRUPTED = 130
DEBUG_VARIABLE = "KVCAST_DEBUG"
# Control characters of terminals (C0, DEL, C1), except newline and tab; escaped as in JSON, which
# may be printed.
_CONTROLS = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


class OutputStreamError(InputOutputError):
    """Standard output takes no more. Later inputs would fare no better, so the run ends."""


class ClosedPipeError(OutputStreamError):
    """The reader of standard output has left, as `head` does: nothing to report."""

    exit_code = 141  # as shells report SIGPIPE


def prepare_output() -> None:
    """Make standard output UTF-8, able to show names that are not valid UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def emit(text: str) -> None:
    """Write to standard output and flush; raises ClosedPipeError or OutputStreamError.

    A terminal gets control characters as escapes: a model, or its files' author, may have put them
    there. Files and pipes get the text unchanged.
    """
    if sys.stdout is None:
        raise OutputStreamError("standard output is closed; give --output-dir or open it")
    try:
        sys.stdout.write(escaped(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            raise ClosedPipeError from None
        raise OutputStreamError(f"cannot write standard output: {error.strerror}") from None


def escaped(text: str) -> str:
    """Return a text with control characters as escapes, for terminals."""
    return text.translate(_CONTROLS)


def is_interactive() -> bool:
    """Return whether a user types on standard input and reads standard output."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def is_piped() -> bool:
    """Return whether standard input is a pipe or a file, rather than a terminal or closed."""
    return sys.stdin is not None and not sys.stdin.isatty()


def draws() -> bool:
    """Return whether standard output is a terminal that can draw over what it shows."""
    return _can_redraw(sys.stdout)


def _can_redraw(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty() and os.getenv("TERM") != "dumb"


@contextmanager
def without_echo() -> Iterator[None]:
    """Show nothing that is typed in the block, which would disturb what is drawn."""
    try:
        import termios
    except ImportError:  # not a Unix
        yield
        return
    try:
        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
    except (AttributeError, OSError, ValueError, termios.error):  # no terminal
        yield
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(handle, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def asks() -> bool:
    """Return whether there is a terminal to ask a question on."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def confirmed(question: str, *, default: bool) -> bool:
    """Ask on a terminal, on standard error; without one the answer is no."""
    if not asks():
        return False
    assert sys.stdin is not None
    assert sys.stderr is not None
    sys.stderr.write(f"{question} [{'Y/n' if default else 'y/N'}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return answer.strip().lower() in ({"y", "yes", ""} if default and answer else {"y", "yes"})


def _drop_output() -> None:
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def say(message: str, *, about: str | None = None) -> None:
    """Print one line on standard error: the program, the file unless the message begins with it."""
    line, name = one_line(message), printable(about or "")
    if not line.startswith(name):
        line = f"{name}: {line}"
    if sys.stderr is not None:  # with None, print would take standard output instead
        with contextlib.suppress(OSError):  # no reader: there is nowhere to report it
            print(f"kvcast: {line}", file=sys.stderr, flush=True)


def report(error: Exception, *, about: str | None = None) -> int:
    if isinstance(error, KvcastError):
        say(str(error), about=about)
        return error.exit_code
    if os.environ.get(DEBUG_VARIABLE) == "1" and sys.stderr is not None:
        sys.stderr.write("".join(traceback.format_exception(error)).translate(_CONTROLS))
    if isinstance(error, OSError) and error.strerror and (error.filename or _is_of_disk(error)):
        failed = f"cannot {'write' if _is_of_disk(error) else 'read'} {error.filename or 'a file'}"
        say(f"{failed}: {error.strerror}", about=about)
        return InputOutputError.exit_code
    kind = f"{type(error).__name__}: {error}"
    say(
        f"internal error ({kind}); please report it; {DEBUG_VARIABLE}=1 shows the traceback",
        about=about,
    )
    return KvcastError.exit_code


def _is_of_disk(error: OSError) -> bool:
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@contextlib.contextmanager
def own_error_stream() -> Iterator[None]:
    """Write to standard error through a private file descriptor.

    Audio readers silence their libraries by briefly redirecting descriptor 2 to nothing.
    """
    given = sys.stderr
    try:
        handle = os.dup(given.fileno())
    except (AttributeError, OSError):  # there is none, or a stand-in
        yield
        return
    with os.fdopen(handle, "w", encoding=given.encoding, errors=given.errors, buffering=1) as own:
        sys.stderr = own
        try:
            yield
        finally:
            sys.stderr = given


def one_line(text: str) -> str:
    """Join the lines of a text, with escapes for characters that a terminal would obey."""
    return printable(" ".join(line.strip() for line in text.splitlines()))


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def readable_size(count: int) -> str:
    """Return bytes as people read them, in decimal units as disks are sold."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


TERMINATED = 143  # as shells report SIGTERM


class Terminated(BaseException):
    """The process received SIGTERM."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise Terminated in the block on SIGTERM; a second one ends the process at once.

    A program that calls kvcast from another thread, or handles the signal itself, is left alone.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as handlers are called
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


class Coverage:
    def __init__(self, show: Callable[[int, float], None]) -> None:
        self._show = show
        self._lock = Lock()
        self._files, self._size = 0, 0.0
        self._parts: dict[str, float] = {}

    def reached(self, name: str, size: float) -> None:
        with self._lock:
            self._parts[name] = size
            self._show(self._files, self._size + sum(self._parts.values()))

    def finished(self, name: str, size: float) -> None:
        with self._lock:
            self._parts.pop(name, None)
            self._files, self._size = self._files + 1, self._size + size
            self._show(self._files, self._size + sum(self._parts.values()))


class Progress:
    @contextmanager
    def waiting(self, message: str) -> Iterator[Callable[[str], None]]:
        """Show work of unknown length; yields a function that shows the current phase."""
        del message
        yield lambda _: None  # not `ignore_phase`, without which libraries draw progress bars

    @contextmanager
    def measuring(self, name: str, total: float | None) -> Iterator[None]:
        """Show a bar for one input of `total` seconds of audio (None where unknown)."""
        del name, total
        yield

    def reached(self, seconds: float) -> None:
        """Advance the bar to `seconds` of the input."""

    @contextmanager
    def covering(self, files: int, size: float) -> Iterator[Coverage]:
        """Show one bar for several inputs of `size` bytes together."""
        del files, size
        yield Coverage(lambda *_: None)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        yield


class DrawnProgress(Progress):
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
        with self.aside() if is_terminal() else nullcontext():
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
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            # rich's own colour for work under way is red, as errors are.
            BarColumn(complete_style="green", finished_style="green", pulse_style="green"),
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


def progress(*, quiet: bool) -> Progress:
    """Return the progress display for this output: nothing if quiet or if there is no terminal."""
    return DrawnProgress() if _can_redraw(sys.stderr) and not quiet else Progress()
