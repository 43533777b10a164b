"""kvcast's application on a cluster's Ray Serve, which may have further applications.

One command at a time serves from a cluster. It owns an actor that Ray ends with it, however it
ends; the next command removes a killed one's application. Serve is begun where it does not
run, and ended by who began it unless others have applications there. Knows no deployment.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from kvcast.cluster.connection import interruptible, machine
from kvcast.errors import InputOutputError, KvcastError, UsageError, in_one_line
from kvcast.server.params import ServeParams
from kvcast.server.running import bound

APPLICATION = "kvcast"

_HEAD = "node:__internal_head__"
"""Ray's name for a resource of the head node alone."""

_PATIENCE = 30.0
"""Seconds that Ray may take to end an application."""


@contextlib.contextmanager
def leased(params: ServeParams) -> Iterator[None]:
    """Have Ray Serve listen at an address meanwhile; its application is removed then.

    Raises:
        UsageError: another command serves, or Serve runs elsewhere, or for others.
        KvcastError: the address cannot be listened at.

    """
    with _owned():
        begun = _begin(params, patience=_PATIENCE if _took_over() else 0)
        try:
            yield
        finally:
            interruptible(lambda: _end(begun=begun))


def check_address(params: ServeParams) -> None:
    """Raise InputOutputError for an address that cannot be listened at on this machine."""
    bound(params).close()


class _Owner:
    """Lives as long as the command does that made it."""

    def __init__(self, whose: str) -> None:
        self._whose = whose

    def whose(self) -> str:
        """Return the name of the command for messages."""
        return self._whose


@contextlib.contextmanager
def _owned() -> Iterator[None]:
    """Be the one command that serves; raises UsageError if another is."""
    import ray

    named = {"name": f"{APPLICATION}-owner", "namespace": APPLICATION}
    # If the actor's machine dies, another has it.
    kind = ray.remote(num_cpus=0, max_restarts=-1)(_Owner).options(**named)
    try:
        owner = kind.remote(f"process {os.getpid()} of {machine()}")
    except ValueError:  # the name is taken
        raise UsageError(
            f"the cluster serves {APPLICATION} already, by {_whose(named)}: end that first"
        ) from None
    try:
        ray.get(owner.whose.remote())
        yield
    finally:
        with contextlib.suppress(Exception):  # it ends with the command anyway
            ray.kill(owner)


def _whose(named: dict[str, str]) -> str:
    import ray

    try:
        name: str = ray.get(ray.get_actor(**named).whose.remote(), timeout=_PATIENCE)
    except Exception:
        return "another command"
    return name


def _client() -> Any:
    """Return a client of the cluster's Serve, or None if it does not run."""
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
    """Raise UsageError where Serve runs and another application has the route or port.

    Args:
        http: Serve's options.
        routes: of its applications.
        params: the address to serve at.

    """
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
    """Return the error for Ray Serve's failure to start."""
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
            _until(_check_gone, _PATIENCE)


def _check_gone() -> None:
    if _client() is not None:
        raise TimeoutError("Ray Serve does not end")


def _until(check: Callable[[], None], patience: float) -> None:
    """Retry a call until it does not raise, or for so many seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return check()
        except (KvcastError, TimeoutError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)
