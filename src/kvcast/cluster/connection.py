"""A connection to a Ray cluster, and the lease of its Ray Serve, as long as a command needs them.

Keeps Ray's messages off both streams, SIGTERM for this process, and signals for its group from
Ray's processes. Only one command at a time may serve from a cluster: it holds a lock actor, which
Ray ends with it, and the next command removes the application of a killed one. Serve is started
where it does not run, and stopped by the command that started it, unless others have applications
there.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.cluster.params import AUTO, LOCAL
from kvcast.errors import InputOutputError, KvcastError, UsageError, in_one_line
from kvcast.server.params import ServeParams
from kvcast.server.uvicorn_server import bound

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning that this will be the default
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
_VITAL = frozenset({"gcs_server", "raylet"})  # processes, as Ray calls them
_CONNECT_TIMEOUT = 10.0  # seconds that the head node's port may take to answer


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Belong to a cluster meanwhile.

    `address`: "local", "auto" or HOST:PORT, as `ray.init` takes it; None is an existing cluster, or
    else a new one of this machine alone. Raises UsageError for another address, and KvcastError if
    Ray is not installed or there is no cluster.
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
    """Return whether the cluster is of this machine alone, and has ended by itself."""
    from ray._private import worker

    own = worker._global_node
    return own is not None and any(kind in _VITAL for kind, _ in own.dead_processes())


def hush(logger: str) -> None:
    """Silence a logger of Ray, which sets levels when it is imported."""
    noisy = logging.getLogger(logger)
    noisy.setLevel(logging.CRITICAL)
    noisy.addFilter(lambda _: False)


def machine() -> str:
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
    """Redirect descriptor 2 to nothing: Ray's native part announces its logging there."""
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
    """Start Ray's processes in other process groups; if this process dies, so do they.

    A signal to all of this process's group, as `timeout` and shells send it, would end the cluster
    while clients wait for it.
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
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise _none_at(address, error) from None


def _silence() -> None:
    """Keep Ray's messages off the streams, which belong to the command."""
    from ray._private import worker

    # It prints the death of a machine on standard output; no option prevents that.
    worker.print_to_stdstream = lambda *_, **__: None
    hush("ray")


APPLICATION = "kvcast"

_HEAD = "node:__internal_head__"  # Ray's name for a resource of the head node alone
_LEASE_TIMEOUT = 30.0  # seconds that Ray may take to end an application


@contextlib.contextmanager
def leased(params: ServeParams) -> Iterator[None]:
    """Have Ray Serve listen at an address meanwhile; its application is removed then.

    Raises UsageError if another command serves, or Serve runs elsewhere or for others, and
    KvcastError if the address cannot be listened at.
    """
    with _owned():
        begun = _begin(params, patience=_LEASE_TIMEOUT if _took_over() else 0)
        try:
            yield
        finally:
            interruptible(lambda: _end(begun=begun))


def check_address(params: ServeParams) -> None:
    """Raise InputOutputError for an address that cannot be listened at on this machine."""
    bound(params).close()


class _Owner:
    def __init__(self, whose: str) -> None:
        self._whose = whose

    def whose(self) -> str:
        return self._whose


@contextlib.contextmanager
def _owned() -> Iterator[None]:
    """Claim to be the only command that serves; raises UsageError if another is."""
    import ray

    owner = _claimed({"name": f"{APPLICATION}-owner", "namespace": APPLICATION})
    try:
        ray.get(owner.whose.remote())
        yield
    finally:
        with contextlib.suppress(Exception):  # it ends with the command anyway
            ray.kill(owner)


def _claimed(named: dict[str, str]) -> Any:
    """Return an actor with the name, which one that just ended may still have for a moment."""
    import ray

    # If the actor's machine dies, another has it.
    kind = ray.remote(num_cpus=0, max_restarts=-1)(_Owner).options(**named)
    deadline = time.monotonic() + _LEASE_TIMEOUT
    while True:
        try:
            return kind.remote(f"process {os.getpid()} of {machine()}")
        except ValueError:  # the name is taken
            whose = _whose(named)
        if whose or time.monotonic() > deadline:
            other = whose or "another command"
            raise UsageError(
                f"the cluster serves {APPLICATION} already, by {other}: end that first"
            )
        time.sleep(0.2)


def _whose(named: dict[str, str]) -> str | None:
    """Return who has the name, or None where it does not answer, since it ends."""
    import ray

    try:
        name: str = ray.get(ray.get_actor(**named).whose.remote(), timeout=_LEASE_TIMEOUT)
    except Exception:
        return None
    return name


def _client() -> Any:
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=False)


def _took_over() -> bool:
    """Remove the application of a killed command; return whether there was anything."""
    from ray import serve

    if APPLICATION not in serve.status().applications:
        return False
    _end(begun=True)
    return True


def _begin(params: ServeParams, *, patience: float) -> bool:
    """Have Serve listen, once the address is free; return whether it did not run before."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    if (client := _client()) is not None:
        check_shared(client.http_config, _routes(client), params)
        return False
    if _head_is_here():
        _until(lambda: check_address(params), patience)
    try:
        serve.start(http_options={"host": params.host, "port": params.port})
    except (RayError, RayServeException, RuntimeError, TimeoutError) as error:
        with contextlib.suppress(RayError, RayServeException):
            serve.shutdown()
        raise not_started(error, params) from None
    return True


def check_shared(http: Any, routes: dict[str, str | None], params: ServeParams) -> None:
    """Raise UsageError where Serve runs and another application has the route or port."""
    if http.host is None:
        raise UsageError("the cluster's Ray Serve listens nowhere: end it with serve shutdown")
    if (http.host, http.port) != (params.host, params.port):
        raise UsageError(
            f"Ray Serve runs on the cluster already, and listens at {http.host}:{http.port}: give "
            f"--host {http.host} --port {http.port}, or end it with serve shutdown"
        )
    if root := [name for name, route in routes.items() if route == "/"]:
        raise UsageError(
            f"Ray Serve has another application, {root[0]}, at / already: end that first"
        )


def not_started(error: Exception, params: ServeParams) -> KvcastError:
    if "Failed to bind" in str(error):
        return InputOutputError(
            f"cannot listen at {params.host}:{params.port} of the cluster's machines; choose "
            "another --host or --port"
        )
    return KvcastError(f"Ray Serve does not start: {in_one_line(error)}")


def _routes(client: Any) -> dict[str, str | None]:
    applications = client.get_serve_details()["applications"]
    return {name: application["route_prefix"] for name, application in applications.items()}


def _head_is_here() -> bool:
    import ray

    here = ray.util.get_node_ip_address()
    return any(
        _HEAD in node["Resources"] and node["NodeManagerAddress"] == here
        for node in ray.nodes()
        if node["Alive"]
    )


def _end(*, begun: bool) -> None:
    """Remove the application, and Serve too if it was started for it and is unused otherwise."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    with contextlib.suppress(RayError, RayServeException, TimeoutError):
        serve.delete(APPLICATION)
        if begun and not set(serve.status().applications) - {APPLICATION}:
            serve.shutdown()
            _until(_check_gone, _LEASE_TIMEOUT)


def _check_gone() -> None:
    if _client() is not None:
        raise TimeoutError("Ray Serve does not end")


def _until(check: Callable[[], None], patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return check()
        except (KvcastError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
