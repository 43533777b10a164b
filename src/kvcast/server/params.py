"""Options of `kvcast serve`: names, types, defaults and meanings.

Imports no server, so that the command line can show its help at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcast.options import FILLED, Group, Params

ADDRESS = Group("address")
ENGINE = Group("rows and memory")
LIMITS = Group("limits")
ACCESS = Group("access")
LOGS = Group("logs")

MOST_TEXTS = 128  # largest n of a request, as OpenAI has it


@dataclass(frozen=True, kw_only=True)
class EngineParams(Params):
    """How much an engine does at once."""

    rows: int = ENGINE(16, least=1, most=1024)(
        "texts, beams or windows that a model decodes at once"
    )
    cache_memory: int | None = ENGINE(
        None, least=1, metavar="MIB", shown="a third of what is free"
    )("MiB that a model's cache may take; with too little there are fewer rows, or shorter ones")
    queue: int = ENGINE(256, least=0, most=100_000)(
        "requests for a model that may wait; one more is refused with 429"
    )
    chunk: int = ENGINE(256, least=1, most=100_000)(
        "about how many prompt tokens are prefilled before running texts go on"
    )


@dataclass(frozen=True, kw_only=True)
class ServeParams(EngineParams):
    """Address, access and limits of a server, and its access and limits."""

    host: str = ADDRESS("127.0.0.1", check=FILLED, metavar="ADDRESS")(
        "the address to listen at; 0.0.0.0 is every one of this machine"
    )
    port: int = ADDRESS(8000, least=0, most=65535)("the port; 0 is one that is free")
    drain: float = LIMITS(30.0, least=0, most=86_400, metavar="SECONDS")(
        "after SIGTERM, seconds in which running requests may end"
    )
    timeout: float = LIMITS(600.0, above=0, most=86_400, metavar="SECONDS")(
        "seconds that a body may take to arrive, and then its answer"
    )
    max_body: int = LIMITS(8, least=1, most=1024, metavar="MIB")("MiB of a request in JSON")
    max_upload: int = LIMITS(512, least=1, most=100_000, metavar="MIB")(
        "MiB of a request with a recording"
    )
    max_uploads_bytes: int = LIMITS(4 << 30, least=1, metavar="BYTES")(
        "bytes of all bodies that are read or worked on at a time; one more is refused "
        "with 429. Of each what exceeds 1 MiB is in $TMPDIR"
    )
    max_connections: int = LIMITS(2000, least=1, most=100_000)(
        "connections at a time; one more is answered with 429 and closed"
    )
    max_connections_per_address: int = LIMITS(1000, least=1, most=100_000)(
        "connections of one address at a time; behind a proxy all have its address"
    )
    max_audio: float = LIMITS(120.0, above=0, most=10_000, metavar="MINUTES")(
        "minutes of a recording"
    )
    idle_unload: float | None = LIMITS(
        None, above=0, most=10_000_000, metavar="SECONDS", shown="never"
    )(
        "after so many seconds without a request for it, a model leaves memory; the next "
        "request waits until it is loaded again"
    )
    live_sessions: int = LIMITS(16, least=0, most=10_000)(
        "live sessions of /v1/realtime at once; 0 allows none"
    )
    live_idle: float = LIMITS(300.0, above=0, most=86_400, metavar="SECONDS")(
        "seconds in which nothing comes, after which a live session is closed"
    )
    max_n: int | None = LIMITS(None, least=1, most=MOST_TEXTS, shown="as many as a model has rows")(
        "texts of a prompt, n; more are refused"
    )
    reasoning_budget: int | None = LIMITS(None, least=0, shown="no limit")(
        "tokens of reasoning before an answer in chats that do not say how many"
    )
    max_prompt: int | None = LIMITS(None, least=1, shown="what the model takes")(
        "tokens of a prompt"
    )
    api_key: str | Sequence[str] = ACCESS((), check=FILLED, metavar="KEY", shown="everybody")(
        "let in only requests with this key as their bearer token; may be repeated. "
        "Better given as KVCAST_API_KEY in the environment, where other users do not see it"
    )
    cors_origin: str | Sequence[str] = ACCESS((), check=FILLED, metavar="ORIGIN", shown="none")(
        "let pages of this origin use the server from a browser; may be repeated"
    )
    allow_host: str | Sequence[str] = ACCESS(
        (), check=FILLED, metavar="NAME", shown="localhost and addresses"
    )("at a local address, answer also to requests for this host name; may be repeated")
    log_json: bool = LOGS(False)("log one JSON object a line instead of text")
    log_content: bool = LOGS(False)("also log prompts, answers and transcripts")

    @property
    def keys(self) -> tuple[str, ...]:
        """Accepted keys; none for an open server."""
        return _several(self.api_key)

    @property
    def origins(self) -> tuple[str, ...]:
        return _several(self.cors_origin)

    @property
    def host_names(self) -> tuple[str, ...]:
        """Host names that it answers to at a local address."""
        return ("localhost", *_several(self.allow_host))


def _several(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
