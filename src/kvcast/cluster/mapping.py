"""Maps a function over recordings or prompts on the processes of a Ray cluster.

Each process prepares once. Every item is a separate block of Ray Data: a block's results count
only together, so with several items in one, all would be lost with a machine. An item that was
running on a machine that dies is computed again elsewhere; its result arrives once.
"""

import contextlib
import os
import pickle
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from kvcast import __version__
from kvcast.cluster.connection import hush, machine
from kvcast.errors import InputOutputError, KvcastError, UsageError, in_one_line
from kvcast.speech.base import TranscriptionModel
from kvcast.transcripts.folders.recordings import Outcome, QueuedRecording, transcribe_all

T = TypeVar("T")
R = TypeVar("R")

_ITEM, _RESULT = "item", "result"


def most_actors(cores: int) -> int:
    """Return how many processes of `cores` cores the cluster has room for; UsageError for none."""
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
    """Yield the results for all items, in the order of completion.

    `make` is called once in each process, in this one's folder if it is there, and returns the
    function. Raises UsageError if the cluster has no room for a process, KvcastError for failures
    of Ray, and the errors of `make` and of the function.
    """
    import ray.data
    from ray.data import ActorPoolStrategy, DataContext
    from ray.exceptions import RayError

    room = most_actors(cores)
    hush("ray.data")
    DataContext.get_current().enable_progress_bars = False
    size = min(actors or room, room, len(items))
    # An idle process makes room for one whose machine died: none is kept idle.
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
    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function

    def __call__(self) -> Callable[[None], R]:
        return lambda _: self._function()


class _Actor:
    def __init__(self, version: str, folder: str, make: bytes) -> None:
        self._error: Exception | None = None
        with contextlib.suppress(OSError):  # only relative paths need it
            os.chdir(folder)
        try:
            _check_version(version)
            self._function = pickle.loads(make)()  # noqa: S301 - of the run that began this
        except Exception as error:  # raised with the first item: Ray would retry for ever
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


P = TypeVar("P")


def answered(
    make: Callable[[], Callable[[Sequence[P]], Sequence[R]]],
    prompts: Sequence[P],
    keys: Sequence[tuple[Hashable, Hashable]],
    *,
    together: int,
    actors: int | None,
    cores: int,
) -> Iterator[R]:
    """Yield the answer to each prompt, in order; raises as `mapped`.

    `make` is called once in each process; returns the function that answers several prompts.
    `keys`: of each prompt its call and its text. `together`: least prompts of a call, if there are
    enough.
    """
    jobs = [[(i, prompts[i]) for i in some] for some in packed(keys, together)]
    waiting: dict[int, R] = {}
    place = 0
    for answers in mapped(_PromptActor(make), jobs, actors=actors, cores=cores):
        waiting.update(answers)
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def packed(keys: Sequence[tuple[Hashable, Hashable]], together: int) -> list[list[int]]:
    """Return the indices of prompts that are answered together, at least `together` of one call.

    Equal prompts of one call stay together and in order: the seed of a text depends on the number
    of equal prompts before it in its call, and on no other prompt.

    `keys`: of each prompt its call and its text. Prompts of a call follow each other.
    """
    packs: list[list[int]] = []
    for _, places in groupby(range(len(keys)), key=lambda i: keys[i][0]):
        same: dict[Hashable, list[int]] = {}
        for i in places:
            same.setdefault(keys[i][1], []).append(i)
        pack: list[int] = []
        for some in same.values():
            pack += some
            if len(pack) >= together:
                packs.append(sorted(pack))
                pack = []
        if pack:
            packs.append(sorted(pack))
    return packs


@dataclass(frozen=True)
class _PromptActor(Generic[P, R]):
    make: Callable[[], Callable[[Sequence[P]], Sequence[R]]]

    def __call__(self) -> Callable[[Sequence[tuple[int, P]]], list[tuple[int, R]]]:
        answer = self.make()

        def answer_all(job: Sequence[tuple[int, P]]) -> list[tuple[int, R]]:
            answers = answer([prompt for _, prompt in job])
            return [(i, texts) for (i, _), texts in zip(job, answers, strict=True)]

        return answer_all


Opened: TypeAlias = tuple[TranscriptionModel, str, Mapping[str, Any]]
"""A model, its runtime's name, and the options of its `transcribe`."""


def transcribed(
    open_model: Callable[[], Opened],
    queue: Iterable[QueuedRecording],
    *,
    actors: int | None,
    cores: int,
    on_runtime: Callable[[str], None],
) -> Generator[Outcome]:
    """Yield each recording's outcome, in the order of completion; raises as `mapped`.

    `open_model` is called once in each process, and `on_runtime` before each outcome. All machines
    see the recordings at the same path.
    """
    make = _RecordingActor(open_model)
    for runtime, outcome in mapped(make, list(queue), actors=actors, cores=cores):
        on_runtime(runtime)
        yield outcome


@dataclass(frozen=True)
class _RecordingActor:
    open_model: Callable[[], Opened]

    def __call__(self) -> Callable[[QueuedRecording], tuple[str, Outcome]]:
        model, runtime, options = self.open_model()

        def transcribe(queued: QueuedRecording) -> tuple[str, Outcome]:
            if (problem := _unlike(queued)) is not None:
                return runtime, Outcome(queued=queued, error=problem)
            (outcome,) = transcribe_all(model, [queued], 1, options=options, watch=lambda *_: None)
            return runtime, replace(outcome, error=portable(outcome.error))

        return transcribe


def _unlike(queued: QueuedRecording) -> InputOutputError | None:
    """Return the error if this machine does not see the file that the journal is about."""
    try:
        size = Path(queued.source).stat().st_size
    except OSError as error:
        return InputOutputError(
            f"{queued.source}: the machine {machine()} does not see it ({error.strerror}): put "
            "recordings where all machines find them under one path"
        )
    if size != queued.recording.size:
        return InputOutputError(
            f"{queued.source}: the machine {machine()} has another file there, or an old one"
        )
    return None
