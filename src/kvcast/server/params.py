"""Options of `kvcast serve`: names, types, defaults and meanings.

Knows no server, so that the command line can show its help at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from kvcast.options import Bounds, Option, Params, Text

ADDRESS = "address"
ENGINE = "rows and memory"
LIMITS = "limits"
ACCESS = "access"
LOGS = "logs"

MOST_TEXTS = 128
"""Largest n of a request, as OpenAI has it."""


@dataclass(frozen=True, kw_only=True)
class EngineParams(Params):
    """How much an engine does at once."""

    rows: Annotated[
        int,
        Option(
            group=ENGINE,
            help="texts, beams or windows that a model decodes at once",
            check=Bounds(least=1, most=1024),
        ),
    ] = 16
    cache_memory: Annotated[
        int | None,
        Option(
            group=ENGINE,
            help="MiB that a model's cache may take; with too little there are fewer rows, or "
            "shorter ones",
            check=Bounds(least=1),
            metavar="MIB",
            default="a third of what is free",
        ),
    ] = None
    queue: Annotated[
        int,
        Option(
            group=ENGINE,
            help="requests for a model that may wait; one more is refused with 429",
            check=Bounds(least=0, most=100_000),
        ),
    ] = 256
    chunk: Annotated[
        int,
        Option(
            group=ENGINE,
            help="about how many prompt tokens are prefilled before running texts go on",
            check=Bounds(least=1, most=100_000),
        ),
    ] = 256


@dataclass(frozen=True, kw_only=True)
class ServeParams(EngineParams):
    """Where a server listens, and its access and limits."""

    host: Annotated[
        str,
        Option(
            group=ADDRESS,
            help="the address to listen at; 0.0.0.0 is every one of this machine",
            check=Text(filled=True),
            metavar="ADDRESS",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Option(
            group=ADDRESS,
            help="the port; 0 is one that is free",
            check=Bounds(least=0, most=65535),
        ),
    ] = 8000
    drain: Annotated[
        float,
        Option(
            group=LIMITS,
            help="after SIGTERM, seconds in which running requests may end",
            check=Bounds(least=0, most=86_400),
            metavar="SECONDS",
        ),
    ] = 30.0
    timeout: Annotated[
        float,
        Option(
            group=LIMITS,
            help="seconds that a body may take to arrive, and then its answer",
            check=Bounds(above=0, most=86_400),
            metavar="SECONDS",
        ),
    ] = 600.0
    max_body: Annotated[
        int,
        Option(
            group=LIMITS,
            help="MiB of a request in JSON",
            check=Bounds(least=1, most=1024),
            metavar="MIB",
        ),
    ] = 8
    max_upload: Annotated[
        int,
        Option(
            group=LIMITS,
            help="MiB of a request with a recording",
            check=Bounds(least=1, most=100_000),
            metavar="MIB",
        ),
    ] = 512
    max_uploads_bytes: Annotated[
        int,
        Option(
            group=LIMITS,
            help="bytes of all bodies that are read or worked on at a time; one more is refused "
            "with 429. Of each what exceeds 1 MiB is in $TMPDIR",
            check=Bounds(least=1),
            metavar="BYTES",
        ),
    ] = 4 << 30
    max_connections: Annotated[
        int,
        Option(
            group=LIMITS,
            help="connections at a time; one more is answered with 429 and closed",
            check=Bounds(least=1, most=100_000),
        ),
    ] = 2000
    max_connections_per_address: Annotated[
        int,
        Option(
            group=LIMITS,
            help="connections of one address at a time; behind a proxy all have its address",
            check=Bounds(least=1, most=100_000),
        ),
    ] = 1000
    max_audio: Annotated[
        float,
        Option(
            group=LIMITS,
            help="minutes of a recording",
            check=Bounds(above=0, most=10_000),
            metavar="MINUTES",
        ),
    ] = 120.0
    idle_unload: Annotated[
        float | None,
        Option(
            group=LIMITS,
            help="after so many seconds without a request for it, a model leaves memory; the next "
            "request waits until it is loaded again",
            check=Bounds(above=0, most=10_000_000),
            metavar="SECONDS",
            default="never",
        ),
    ] = None
    live_sessions: Annotated[
        int,
        Option(
            group=LIMITS,
            help="live sessions of /v1/realtime at once; 0 allows none",
            check=Bounds(least=0, most=10_000),
        ),
    ] = 16
    live_idle: Annotated[
        float,
        Option(
            group=LIMITS,
            help="seconds in which nothing comes, after which a live session is closed",
            check=Bounds(above=0, most=86_400),
            metavar="SECONDS",
        ),
    ] = 300.0
    max_n: Annotated[
        int | None,
        Option(
            group=LIMITS,
            help="texts of a prompt, n; more are refused",
            check=Bounds(least=1, most=MOST_TEXTS),
            default="as many as a model has rows",
        ),
    ] = None
    reasoning_budget: Annotated[
        int | None,
        Option(
            group=LIMITS,
            help="tokens of reasoning before an answer in chats that do not say how many",
            check=Bounds(least=0),
            default="no limit",
        ),
    ] = None
    max_prompt: Annotated[
        int | None,
        Option(
            group=LIMITS,
            help="tokens of a prompt",
            check=Bounds(least=1),
            default="what the model takes",
        ),
    ] = None
    api_key: Annotated[
        str | Sequence[str],
        Option(
            group=ACCESS,
            help="let in only requests with this key as their bearer token; may be repeated. "
            "Better given as KVCAST_API_KEY in the environment, where other users do not see it",
            check=Text(filled=True),
            metavar="KEY",
            default="everybody",
        ),
    ] = ()
    cors_origin: Annotated[
        str | Sequence[str],
        Option(
            group=ACCESS,
            help="let pages of this origin use the server from a browser; may be repeated",
            check=Text(filled=True),
            metavar="ORIGIN",
            default="none",
        ),
    ] = ()
    allow_host: Annotated[
        str | Sequence[str],
        Option(
            group=ACCESS,
            help="at a local address, answer also to requests for this host name; may be repeated",
            check=Text(filled=True),
            metavar="NAME",
            default="localhost and addresses",
        ),
    ] = ()
    log_json: Annotated[
        bool, Option(group=LOGS, help="log one JSON object a line instead of text")
    ] = False
    log_content: Annotated[
        bool, Option(group=LOGS, help="also log prompts, answers and transcripts")
    ] = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Accepted keys; none for an open server."""
        return _several(self.api_key)

    @property
    def origins(self) -> tuple[str, ...]:
        """Origins of pages that may use the server."""
        return _several(self.cors_origin)

    @property
    def host_names(self) -> tuple[str, ...]:
        """Host names that it answers to at a local address."""
        return ("localhost", *_several(self.allow_host))


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
