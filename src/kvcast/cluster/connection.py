"""A connection to a Ray cluster, for as long as a command needs it.

Keeps Ray quiet: it prints to both streams, and takes SIGTERM for itself. Keeps signals for this
process's group from Ray's processes. Knows no model.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.cluster.params import AUTO, LOCAL
from kvcast.errors import KvcastError, UsageError, in_one_line

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning that this will be the default
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_VITAL = frozenset({"gcs_server", "raylet"})
"""Processes without which there is no cluster, as Ray calls them."""

_PATIENCE = 10.0
"""Seconds that the head node's port may take to answer."""


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Belong to a cluster meanwhile.

    Args:
        address: "local", "auto" or HOST:PORT, as `ray.init` takes it; None is a cluster that
            is there, or else one of this machine alone.

    Raises:
        UsageError: the address is none.
        KvcastError: Ray is not installed, or there is no cluster.

    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise KvcastError("--ray needs Ray: pip install 'kvcast[ray]'") from None
    _probe(address)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _own_signals(handlers), _hushed(), _apart():
            ray.init(
                address=address,
                include_dashboard=False if address == LOCAL else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        _silence()
        yield
    except (ConnectionError, RuntimeError, ValueError) as error:
        if ray.is_initialized():
            raise
        raise _none_at(address, error) from None
    finally:
        with _own_signals(handlers):
            interruptible(ray.shutdown)


def interruptible(work: Callable[[], None]) -> None:
    """Call Ray, whose native part may hold off signals, and still take them."""
    done: Future[None] = Future()

    def doing() -> None:
        try:
            work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=doing, daemon=True).start()
    done.result()


def has_ended() -> bool:
    """Tell whether the cluster is of this machine alone, and has ended by itself."""
    from ray._private import worker

    own = worker._global_node
    return own is not None and any(kind in _VITAL for kind, _ in own.dead_processes())


def hush(logger: str) -> None:
    """Let nothing through of a part of Ray, which sets levels when it is imported."""
    noisy = logging.getLogger(logger)
    noisy.setLevel(logging.CRITICAL)
    noisy.addFilter(lambda _: False)


def machine() -> str:
    """Return the name of this machine for messages."""
    return socket.gethostname()


@contextlib.contextmanager
def _own_signals(handlers: Mapping[signal.Signals, Any]) -> Iterator[None]:
    """Undo Ray's signal handlers, which only a main thread can."""
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """Send descriptor 2 nowhere: Ray's native part writes there that it will write little."""
    kept = os.dup(2)
    try:
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Start Ray's processes in other process groups.

    A signal for all of this one's, as `timeout` and shells send it, would end the cluster under
    those who wait for it. If this process dies, so do they.
    """
    from ray._private import services

    kept = services.ConsolePopen
    services.ConsolePopen = partial(kept, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = kept


def _none_at(address: str | None, error: Exception) -> KvcastError:
    if address == AUTO:
        return KvcastError(
            "this machine belongs to no Ray cluster: give the HOST:PORT of one, or local; "
            "ray start --head begins one"
        )
    where = "on this machine" if address in (None, LOCAL) else f"at {address}"
    return KvcastError(f"no Ray cluster {where}: {in_one_line(error)}")


def _probe(address: str | None) -> None:
    """Raise KvcastError where nothing listens: Ray would try for minutes, then end the process."""
    if address in (None, AUTO, LOCAL):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        raise UsageError(f"--ray takes local, auto or HOST:PORT, not {address}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _none_at(address, error) from None


def _silence() -> None:
    """Keep Ray's messages off the streams, which belong to the command."""
    from ray._private import worker

    # What it hears of a machine that dies, it prints on standard output; no option prevents that.
    worker.print_to_stdstream = lambda *_, **__: None
    hush("ray")
