"""The two streams of a command: results, and one line per problem.

Standard output is UTF-8 in every locale. Every problem becomes one line on standard
error and an exit code; a traceback is shown only with KVCAST_DEBUG=1. Knows no command.
"""

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from kvcast.errors import InputOutputError, KvcastError

INTERRUPTED = 130
DEBUG_VARIABLE = "KVCAST_DEBUG"
# What a terminal obeys (C0, DEL, C1), but for the end of a line and the tab of a table; spelled as
# in JSON, which may be what is printed.
_CONTROLS = {
    code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


class OutputStreamError(InputOutputError):
    """Standard output takes no more. Later inputs would fare no better, so the run ends."""


class ClosedPipeError(OutputStreamError):
    """The reader of standard output has left, as `head` does: nothing to report."""

    exit_code = 141  # what a shell shows for a program ended by SIGPIPE


def prepare_output() -> None:
    """Make standard output UTF-8, able to show names that are not valid UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


def emit(text: str) -> None:
    """Write to standard output and flush, so that a reader sees each piece when it is there.

    A terminal gets control characters as escapes: a model, or its files' author, may have put
    them there. Files and pipes get the text as it is.

    Raises ClosedPipeError or OutputStreamError; unwritten output is dropped.
    """
    if sys.stdout is None:
        raise OutputStreamError("standard output is closed; give --output-dir or open it")
    try:
        sys.stdout.write(text.translate(_CONTROLS) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except OSError as error:
        _drop_output()
        if isinstance(error, BrokenPipeError):
            raise ClosedPipeError from None
        raise OutputStreamError(f"cannot write standard output: {error.strerror}") from None


def _drop_output() -> None:
    """Discard buffered output, so that the interpreter's last flush succeeds."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def say(message: str, *, about: str | None = None) -> None:
    """Print one line on standard error: the program, the file it is about, the message.

    The file is left out where the message begins with it.
    """
    line, name = one_line(message), printable(about or "")
    if not line.startswith(name):
        line = f"{name}: {line}"
    if sys.stderr is not None:  # with None, print would take standard output instead
        with contextlib.suppress(OSError):  # nobody reads: nowhere is left to say so
            print(f"kvcast: {line}", file=sys.stderr, flush=True)


def report(error: Exception, *, about: str | None = None) -> int:
    """Report an error in one line, and return its exit code."""
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
    """Write to standard error through a private file descriptor, which no library redirects.

    Readers of sound keep their libraries quiet by sending descriptor 2 nowhere for a moment. From
    another thread, this module's lines would go the same way.
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
    """Join the lines of a text, and spell out characters that a terminal would obey."""
    return printable(" ".join(line.strip() for line in text.splitlines()))


def printable(text: str) -> str:
    """Return the text with escapes for all but visible characters and spaces."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def readable_size(count: int) -> str:
    """Return bytes as people read them, in decimal units as disks are sold."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
