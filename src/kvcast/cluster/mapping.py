"""A function over many items, on the processes of a cluster, each of which prepares once.

Every item is a block of Ray Data of its own. With several in one, what is done of them would be
lost with the machine, as a block's results count only together. An item that was running on a
machine that dies is computed anew elsewhere; its result arrives once. Knows no model.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from kvcast import __version__
from kvcast.cluster.connection import hush, machine
from kvcast.errors import KvcastError, UsageError, in_one_line

T = TypeVar("T")
R = TypeVar("R")

_ITEM, _RESULT = "item", "result"


def most_actors(cores: int) -> int:
    """Return how many processes with so many cores the cluster has room for.

    Raises UsageError if no machine of it has that many.
    """
    import ray

    machines = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    room = sum(has // cores for has in machines)
    if not room:
        raise UsageError(
            f"no machine of the cluster has {cores} cores, but {max(machines, default=0)} at most: "
            "give fewer --threads"
        )
    return room


def mapped(
    make: Callable[[], Callable[[T], R]], items: Sequence[T], *, actors: int | None, cores: int
) -> Iterator[R]:
    """Yield the results for all items, as they are done.

    Args:
        make: is called once in each process, in this one's folder if it is there, and returns
            the function.
        items: can be pickled, as can results.
        actors: processes at most.
        cores: of each.

    Raises:
        UsageError: the cluster has no room for a process.
        KvcastError: failures of Ray.
        Exception: errors of `make` or of the function.

    """
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError

    room = most_actors(cores)
    hush("ray.data")
    DataContext.get_current().enable_progress_bars = False
    size = min(actors or room, room, len(items))
    # An idle process makes room for one whose machine died: none stays for its own sake.
    pool = ActorPoolStrategy(
        min_size=1, initial_size=size, max_size=size, max_tasks_in_flight_per_actor=1
    )
    blocks = ray.data.from_items(
        [{_ITEM: pickle.dumps(item)} for item in items], override_num_blocks=len(items)
    )
    results = blocks.map(
        _Actor,
        fn_constructor_args=(__version__, str(Path.cwd()), pickle.dumps(make)),
        compute=pool,
        num_cpus=cores,
    )
    try:
        for row in results.iter_rows():
            result, error = pickle.loads(row[_RESULT])  # noqa: S301 - of this run's processes
            if error is not None:
                raise error
            yield result
    except RayError as error:
        raise KvcastError(f"the Ray cluster failed: {in_one_line(error)}") from None


def computed(function: Callable[[], R], *, cores: int) -> R:
    """Return a function's result on one of the machines; raises as `mapped`."""
    return next(mapped(_PreparedOnce(function), [None], actors=1, cores=cores))


class _PreparedOnce(Generic[R]):
    """Makes a function of an item out of one of none."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function

    def __call__(self) -> Callable[[None], R]:
        return lambda _: self._function()


class _Actor:
    """A process of the cluster, as Ray Data has it."""

    def __init__(self, version: str, folder: str, make: bytes) -> None:
        self._error: Exception | None = None
        with contextlib.suppress(OSError):  # only relative paths need it
            os.chdir(folder)
        try:
            _check_version(version)
            self._function = pickle.loads(make)()  # noqa: S301 - of the run that began this
        except Exception as error:  # told with the first item: Ray would try again for ever
            self._error = error

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        result, error = None, self._error
        if error is None:
            try:
                result = self._function(pickle.loads(row[_ITEM]))  # noqa: S301 - as above
            except Exception as failure:
                error = failure
        return {_RESULT: pickle.dumps((result, portable(error)))}


def _check_version(version: str) -> None:
    if version != __version__:
        raise KvcastError(
            f"the machine {machine()} has kvcast {__version__}, and this one {version}: "
            "install the same on all"
        )


def portable(error: Exception | None) -> Exception | None:
    """Return the error if it can be pickled, or else one with the same message."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:
        return RuntimeError(in_one_line(f"{type(error).__name__}: {error}"))
    return error
