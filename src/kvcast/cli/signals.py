"""SIGTERM ends a command as Ctrl-C does: unfinished work is cleaned up. Knows no command."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATED = 143  # what a shell shows for a program ended by SIGTERM


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
