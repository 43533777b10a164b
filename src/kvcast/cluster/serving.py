"""The server on Ray Serve: replicas with the models, and gateways before them.

Replicas answer with the same application as on one machine. Requests for which all replicas are
busy wait at the gateways, where no replica's death touches them. Knows no route.
"""

import asyncio
import contextlib
import os
import pickle
import re
import signal
import threading
from collections.abc import AsyncGenerator, Callable
from types import FrameType
from typing import Any

from starlette.types import ASGIApp, Message

from kvcast.cluster.connection import connected, hush
from kvcast.cluster.gateway import Ask, Asked, Gateway, LostError, answered
from kvcast.cluster.mapping import most_actors
from kvcast.errors import KvcastError, UsageError, in_one_line
from kvcast.server.app import create
from kvcast.server.calls import Calls
from kvcast.server.errors import busy
from kvcast.server.guard import Guard
from kvcast.server.journal import Journal, install
from kvcast.server.metrics import Metrics
from kvcast.server.params import ServeParams
from kvcast.server.served import Models
from kvcast.server.state import State

APPLICATION, REPLICAS, GATEWAYS = "kvcast", "Replicas", "Gateways"

_SHELLS = 128
"""What a shell adds to a signal's number."""


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

    Args:
        open_models: is called in each replica.
        params: where to listen, and limits.
        address: of the cluster, as `connected` takes it.
        replicas: least and largest number.
        cores: of each replica.
        started: is called once requests are taken.

    Raises:
        UsageError: the cluster has no room for a replica, or serves already.
        KvcastError: there is no cluster, or a replica fails at its start.

    """
    asked_to_end = threading.Event()

    def end(number: int, _: FrameType | None) -> None:
        if asked_to_end.is_set():
            os._exit(_SHELLS + number)  # at once: replicas end with the cluster's patience
        asked_to_end.set()

    with connected(address):
        from ray import serve as ray_serve

        hush("ray.serve")
        _check_room(replicas[0], cores)
        if APPLICATION in ray_serve.status().applications:
            raise UsageError(f"the cluster serves {APPLICATION} already: end that first")
        try:
            ray_serve.start(http_options={"host": params.host, "port": params.port})
            _run(application(open_models, params, replicas=replicas, cores=cores))
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, end)
            started()
            asked_to_end.wait()
        finally:
            ray_serve.delete(APPLICATION)
            ray_serve.shutdown()


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
        # Rows under way, and as many that wait for one.
        max_ongoing_requests=2 * params.rows,
        max_queued_requests=params.queue,
        health_check_period_s=2,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=params.drain,
    ).bind(pickle.dumps((open_models, params)))

    def gateway() -> ASGIApp:
        handle = ray_serve.get_deployment_handle(REPLICAS, APPLICATION)
        return guarded(_asking(handle.options(stream=True)), params)

    gateways = ray_serve.deployment(
        ray_serve.ingress(gateway)(),
        name=GATEWAYS,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=100_000,
        graceful_shutdown_timeout_s=params.drain,
    )
    return gateways.bind(served)


def guarded(ask: Ask, params: ServeParams) -> ASGIApp:
    """Return the gateway with what stands before every route."""
    nothing = Models([])
    state = State(
        models=nothing,
        limits=params,
        calls=Calls(params.timeout),
        metrics=Metrics(nothing),
        journal=Journal(with_content=False),
    )
    return Guard(Gateway(ask), state, lambda: False)


class Replica:
    """A process with the models and the whole application."""

    def __init__(self, given: bytes) -> None:
        open_models, params = pickle.loads(given)  # noqa: S301 - of the run that began this
        install(as_json=params.log_json)
        self._models: Models = open_models()
        self._app = create(self._models, params)

    async def __call__(self, asked: Asked) -> AsyncGenerator[list[Message]]:
        """Yield the messages of an answer."""
        async with contextlib.aclosing(answered(self._app, asked)) as messages:
            async for some in messages:
                yield some

    async def check_health(self) -> None:
        """Raise where an engine takes no more requests; Ray then replaces the process."""
        for engine in self._models.engines:
            await asyncio.wrap_future(engine.run(lambda: None))


def _asking(handle: Any) -> Ask:
    """Return what asks a replica through a handle that streams."""
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

    async def ask(asked: Asked) -> AsyncGenerator[list[Message]]:
        response = handle.remote(asked)
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
    """Deploy the application; raises KvcastError with what a replica failed at."""
    from ray import serve as ray_serve

    try:
        ray_serve.run(application, name=APPLICATION, route_prefix="/")
    except RuntimeError as error:
        told = [
            one.message
            for one in ray_serve.status().applications[APPLICATION].deployments.values()
            if one.message
        ]
        known = re.search(r"^kvcast\.errors\.\w+: (.+)$", "\n".join(told), re.MULTILINE)
        raise KvcastError(
            known[1] if known else f"a replica failed to start: {in_one_line(error)}"
        ) from None
