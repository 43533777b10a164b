"""Options about a cluster: names, types, defaults and meanings."""

import re
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.options import FILLED, Check, Group, Params

CLUSTER = Group("many machines")

AUTO, LOCAL, ANY = "auto", "local", "any"  # the cluster of this machine, one of it alone, either


@dataclass(frozen=True, kw_only=True)
class ClusterParams(Params):
    ray: str | None = CLUSTER(None, check=FILLED, metavar="ADDRESS", shown="here")(
        "do the work on this Ray cluster: HOST:PORT, auto for the one of this machine, "
        "local for one of this machine alone; needs kvcast[ray]"
    )
    actors: int | None = CLUSTER(
        None, least=1, most=100_000, shown="as many as the cluster has cores for"
    )("with --ray, processes at most that hold the model, each with --threads cores")

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.actors is not None and self.ray is None:
            raise UsageError("--actors is for a cluster: add --ray")


class _Replicas(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        try:
            replica_range(value)
        except ValueError:
            return f"must be a number, as 2, or a range, as 1-8, not {value!r}"
        return None


@dataclass(frozen=True, kw_only=True)
class ReplicaParams(Params):
    replicas: str = CLUSTER("1", check=_Replicas(), metavar="N|MIN-MAX")(
        "with --ray, processes that hold the models, each with --threads cores: a number, "
        "or MIN-MAX, between which the number of running requests decides"
    )


def replica_range(words: str) -> tuple[int, int]:
    """Return the least and the largest number of replicas; raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", words)
    if match is None:
        raise ValueError
    least, most = int(match[1]), int(match[2] or match[1])
    if not 1 <= least <= most:
        raise ValueError
    return least, most
