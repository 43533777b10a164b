"""Models that a server offers, each with an engine, by their names. Knows no protocol."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvcast.engine import Engine
from kvcast.errors import KvcastError, UsageError
from kvcast.server.errors import ApiError
from kvcast.tokenizers.base import longest_token

SPEECH, CHAT, COMPLETION, TEXT2TEXT = "speech", "chat", "completion", "text2text"

_WRITES = "writes texts and does not listen: use a Whisper model"


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """A model under a name.

    Attributes:
        name: by which clients ask for it.
        engine: runs it.
        kind: "speech", "chat" (it has a chat template), "completion" or "text2text".
        created: when it was opened, in seconds since 1970.

    """

    name: str
    engine: Engine
    kind: str
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def model(self) -> Any:
        """The model, as `kvcast.load` returned it."""
        return self.engine.model

    @property
    def embeds(self) -> bool:
        """Whether it gives embeddings."""
        return hasattr(self.model, "embed")

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt: as many as the model takes, and a row of its engine."""
        generation = self.model.generation
        limit: int = generation.limits.prompt
        return limit if generation.encodes else min(limit, self.engine.status().capacity - 1)

    @cached_property
    def longest_token(self) -> int:
        """Most bytes of text that a token stands for; takes a moment at first."""
        return longest_token(self.model.tokenizer)

    def prepare(self) -> None:
        """Make what the first request would wait for, and others with it."""
        if self.kind != SPEECH:
            _ = self.longest_token
            self.model.generation.grammars.prepare()

    @property
    def document(self) -> dict[str, Any]:
        """Its entry in `GET /v1/models`."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "kvcast",
            "kind": self.kind,
            "embeddings": self.embeds,
            "languages": list(self.model.languages) if self.kind == SPEECH else None,
        }


def kind_of(model: Any) -> str:
    """Return the kind of a loaded model; asks its chat template."""
    if model.task == "transcribe":
        return SPEECH
    if not hasattr(model, "chat_tokens"):
        return TEXT2TEXT
    try:
        model.chat_tokens([{"role": "user", "content": "a"}])
    except UsageError:
        raise
    except KvcastError:
        return COMPLETION
    return CHAT


class Models:
    """The models of a server, by name; the first comes first in lists."""

    def __init__(self, served: Iterable[Served]) -> None:
        """Take them in order; raises UsageError for two of one name."""
        self._by_name: dict[str, Served] = {}
        for model in served:
            if model.name in self._by_name:
                raise UsageError(f"two models have the name {model.name}: give one an --alias")
            self._by_name[model.name] = model

    def __iter__(self) -> Iterator[Served]:
        return iter(self._by_name.values())

    def named(self, name: str) -> Served:
        """Return the model of a name; raises ApiError for none."""
        if (model := self._by_name.get(name)) is not None:
            return model
        raise ApiError(
            404,
            f"the model {name[:100]!r} does not exist here; GET /v1/models lists all models",
            code="model_not_found",
            param="model",
        )

    def of_kind(self, name: str, kinds: Mapping[str, str]) -> Served:
        """Return the model of a name; raises ApiError unless its kind is one of these.

        `kinds` maps each other kind to the endpoint for it.
        """
        model = self.named(name)
        if model.kind in kinds:
            raise ApiError(400, f"the model {name!r} {kinds[model.kind]}", param="model")
        return model

    def listening(self, name: str) -> Served:
        """Return the model of a name; raises ApiError unless it transcribes."""
        return self.of_kind(name, dict.fromkeys((CHAT, COMPLETION, TEXT2TEXT), _WRITES))

    def first_name(self, served: Served) -> str:
        """Return the first name of a model, under which it is counted."""
        return next(model.name for model in self if model.engine is served.engine)

    @property
    def names(self) -> list[str]:
        """All names, in order."""
        return list(self._by_name)

    @property
    def alive(self) -> bool:
        """Whether all engines take requests."""
        return all(engine.alive for engine in self.engines)

    @property
    def engines(self) -> list[Engine]:
        """All engines, each once: a model may have several names."""
        return list(dict.fromkeys(model.engine for model in self))
