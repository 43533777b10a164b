"""The server on Ray Serve: replicas with the models, and gateways before them.

Replicas answer with the same application as on one machine. Requests for which all replicas are
busy wait at the gateways, where no replica's death touches them.
"""

import asyncio
import contextlib
import os
import pickle
import re
import signal
import threading
import time
from collections.abc import AsyncGenerator, Callable
from types import FrameType
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from kvcast.cluster.connection import (
    APPLICATION,
    check_address,
    connected,
    has_ended,
    hush,
    interruptible,
    leased,
)
from kvcast.cluster.gateway import Ask, Gateway, LostError, ProxiedRequest, answered
from kvcast.cluster.mapping import most_actors
from kvcast.cluster.params import LOCAL
from kvcast.errors import KvcastError, UsageError, in_one_line
from kvcast.server.app import create
from kvcast.server.dispatch import Calls, State
from kvcast.server.errors import busy
from kvcast.server.metrics import Metrics, RequestLog, install
from kvcast.server.middleware import STATUS, Guard
from kvcast.server.model_registry import Models
from kvcast.server.params import ServeParams
from kvcast.server.uvicorn_server import end_at_once

REPLICAS, GATEWAYS = "Replicas", "Gateways"

_SLACK = 10.0  # seconds that a gateway may take after the drain


def serve(
    open_models: Callable[[], Models],
    params: ServeParams,
    *,
    address: str | None,
    replicas: tuple[int, int],
    cores: int,
    started: Callable[[], None],
) -> None:
    """Serve until a signal asks to end; the second one ends at once.

    `open_models` is called in each replica; `started` once requests are taken. Raises UsageError if
    the cluster has no room for a replica or serves already, and KvcastError if there is no cluster
    or a replica fails at its start.
    """
    asked_to_end = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        if asked_to_end.is_set():
            end_at_once(number)  # replicas end with the cluster's patience
        asked_to_end.set()

    if address == LOCAL:
        check_address(params)
    with connected(address):
        from ray.exceptions import RayError

        hush("ray.serve")
        _check_room(replicas[0], cores)
        try:
            with leased(params):
                _run(application(open_models, params, replicas=replicas, cores=cores))
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, end)
                started()
                asked_to_end.wait()
                _leave_with_cluster()
                interruptible(lambda: _drain(params.drain))
        except RayError as error:
            raise KvcastError(f"the Ray cluster failed: {in_one_line(error)}") from None


def _drain(seconds: float) -> None:
    from ray import serve as ray_serve

    with contextlib.suppress(Exception):  # there is none, or it is late: it is removed next
        gateway = ray_serve.get_app_handle(APPLICATION)
        gateway.drain.remote(seconds).result(timeout_s=seconds + _SLACK)


def _leave_with_cluster() -> None:
    """From now on end at once with the local cluster; Ray itself would wait for a minute."""

    def watch() -> None:
        while not has_ended():
            time.sleep(0.2)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def application(
    open_models: Callable[[], Models],
    params: ServeParams,
    *,
    replicas: tuple[int, int],
    cores: int,
) -> Any:
    """Return the application, for `ray.serve.run` under the name `APPLICATION`."""
    from ray import serve as ray_serve

    least, most = replicas
    served = ray_serve.deployment(
        Replica,
        name=REPLICAS,
        autoscaling_config={
            "min_replicas": least,
            "max_replicas": most,
            "initial_replicas": least,
            "target_ongoing_requests": params.rows,
            "upscale_delay_s": 5,
        },
        ray_actor_options={"num_cpus": cores},
        # Running rows, and the same number of waiting requests.
        max_ongoing_requests=2 * params.rows,
        max_queued_requests=params.queue,
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=params.drain,
    ).bind(pickle.dumps((open_models, params)))

    def gateway() -> Guarded:
        handle = ray_serve.get_deployment_handle(REPLICAS, APPLICATION)
        return Guarded(_asking(handle.options(stream=True)), params)

    gateways = ray_serve.deployment(
        ray_serve.ingress(gateway)(Gateways),
        name=GATEWAYS,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,
        graceful_shutdown_timeout_s=params.drain,
    )
    return gateways.bind(served)


class Gateways:
    """A process before the replicas, of which there is one; Ray gives it its application."""

    app: "Guarded"

    def __init__(self, _: Any) -> None:
        """Begin after the replicas, which are no concern of it."""

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and return when none is running."""
        await self.app.drain(seconds)


class Guarded:
    def __init__(self, ask: Ask, params: ServeParams) -> None:
        nothing = Models([])
        state = State(
            models=nothing,
            limits=params,
            calls=Calls(params.timeout),
            metrics=Metrics(nothing),
            journal=RequestLog(with_content=False),
        )
        self._gateway = Gateway(ask, params.timeout)
        self._app = Guard(
            self._gateway,
            state,
            lambda: self._gateway.draining,
            # A replica does not know that the server stops.
            answers_to_the_end=STATUS - {"/ready"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    async def drain(self, seconds: float) -> None:
        await self._gateway.drain(seconds)


class Replica:
    def __init__(self, given: bytes) -> None:
        open_models, params = pickle.loads(given)  # noqa: S301 - of the run that began this
        install(as_json=params.log_json)
        self._models = Models(open_models())  # which stay in memory
        self._app = create(self._models, params)

    async def __call__(self, request: ProxiedRequest) -> AsyncGenerator[list[Message]]:
        async with contextlib.aclosing(answered(self._app, request)) as messages:
            async for some in messages:
                yield some

    async def check_health(self) -> None:
        """Raise where an engine takes no more requests; Ray then replaces the process."""
        if not self._models.alive:
            raise KvcastError("an engine has failed or is closed")


def _asking(handle: Any) -> Ask:
    from ray.exceptions import RayActorError, RayTaskError, WorkerCrashedError
    from ray.serve.exceptions import (
        BackPressureError,
        DeploymentUnavailableError,
        ReplicaUnavailableError,
    )

    lost = (
        *(RayActorError, WorkerCrashedError),
        *(DeploymentUnavailableError, ReplicaUnavailableError),
    )

    async def ask(request: ProxiedRequest) -> AsyncGenerator[list[Message]]:
        response = handle.remote(request)
        try:
            async for messages in response:
                yield messages
        except BackPressureError:
            raise busy("too many requests wait: try again later") from None
        except lost as error:
            raise LostError from error
        except RayTaskError as error:
            if isinstance(error.cause, lost):
                raise LostError from error
            raise
        except (asyncio.CancelledError, GeneratorExit):  # nobody takes the answer
            response.cancel()
            raise

    return ask


def _check_room(least: int, cores: int) -> None:
    room = most_actors(cores)
    if room < least:
        raise UsageError(
            f"the cluster has room for {room} replicas with {cores} cores, not {least}: give fewer "
            "--replicas or --threads"
        )


def _run(application: Any) -> None:
    """Deploy the application; raises KvcastError with a replica's failure."""
    from ray import serve as ray_serve

    try:
        ray_serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        messages = [
            deployment.message
            for deployment in ray_serve.status().applications[APPLICATION].deployments.values()
            if deployment.message
        ]
        known = re.search(r"^kvcast\.errors\.\w+: (.+)$", "\n".join(messages), re.MULTILINE)
        raise KvcastError(
            known[1] if known else f"a replica failed to start: {in_one_line(error)}"
        ) from None
