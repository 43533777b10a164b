"""State that endpoints share: models, limits, calls of engines, metrics and the log.

Knows no endpoint.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel
from starlette.requests import Request

from kvcast.engine import Job
from kvcast.server.calls import Calls
from kvcast.server.errors import ApiError
from kvcast.server.journal import RequestLog
from kvcast.server.metrics import Metrics
from kvcast.server.params import ServeParams
from kvcast.server.served import Models, Served
from kvcast.server.writing import several
from kvcast.text.texts import TextGeneration

_MOST_NAMES = 20
_LONGEST_NAME = 64
"""Names of fields without effect that are told, and their characters."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Models, engines, limits, metrics and log of a server."""

    models: Models
    limits: ServeParams
    calls: Calls
    metrics: Metrics
    journal: RequestLog

    async def write(
        self, request: Request, served: Served, prompt: Callable[[], Any], options: dict[str, Any]
    ) -> Job[Any, Any]:
        """Begin texts; raises the errors of the prompt's maker, and as `Calls.begin`."""
        await self.calls.try_grammar(request, options)
        job = await self.calls.begin(request, served.engine, prompt, options)
        self.metrics.watch(served.name, job)
        return job

    async def enter(self, request: Request, body: Any) -> None:
        """Take note of fields without effect, and see to it that the model is in memory."""
        self._note_ignored(request, body)
        await self.load(body.model)

    async def load(self, name: str) -> None:
        """Bring a model into memory, if it is known and not there."""
        if self.models.is_unloaded(name):
            await self.calls.in_thread(lambda: self.models.load(name))

    def _note_ignored(self, request: Request, body: BaseModel) -> None:
        """Take note of a body's fields that have no effect, for its answer's head and the log."""
        names = list(body.model_extra or ())
        shown = [quote(name[:_LONGEST_NAME], safe="[]") for name in names[:_MOST_NAMES]]
        if len(names) > _MOST_NAMES:
            shown.append("...")
        request.scope["state"]["ignored"] = ", ".join(shown)

    def check_texts(self, served: Served, count: int | None, name: str = "n") -> None:
        """Raise ApiError for more texts of a prompt than one request may have."""
        most = self.limits.max_n or served.engine.status().rows
        if count is not None and count > most:
            raise ApiError(
                400,
                f"{name} is {count}, and this server takes {most} at most: send several requests",
                param=name,
            )

    def wrote(self, request: Request, result: Any) -> list[TextGeneration]:
        """Return the texts of a job's result, for the log as well."""
        texts = several(result)
        self.journal.content(request, answer=[text.text for text in texts])
        return texts
