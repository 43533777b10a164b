"""Models that a server offers, each with an engine, by their names."""

import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from threading import RLock
from typing import Any, TypeAlias

from kvcast.engine import Engine
from kvcast.errors import KvcastError, UsageError
from kvcast.machine.resources import give_back
from kvcast.server.errors import ApiError
from kvcast.spec.sizes import MOST_POSITIONS
from kvcast.tokenizers.base import longest_token

SPEECH, CHAT, COMPLETION, TEXT2TEXT = "speech", "chat", "completion", "text2text"
EMBEDDING, RERANKING = "embedding", "reranking"
_BY_TASK = {"transcribe": SPEECH, "embed": EMBEDDING, "rerank": RERANKING}
_GENERATING = (CHAT, COMPLETION, TEXT2TEXT)

USUAL_NAMES: Mapping[str, Sequence[str]] = {
    SPEECH: ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe"),
    CHAT: (
        *("gpt-4o-mini", "gpt-4o", "gpt-4.1-mini", "gpt-4.1", "gpt-3.5-turbo"),
        *("gpt-5", "gpt-5-mini", "gpt-5-nano"),
    ),
}
"""OpenAI's names, which clients have as their defaults, by the kind of model."""

_GENERATES = "does not transcribe: use a speech model"
ENCODING = {
    EMBEDDING: "turns texts into vectors: use /v1/embeddings",
    RERANKING: "ranks documents for a query: use /v1/rerank",
}
NOT_RANKING = dict.fromkeys(
    (SPEECH, *_GENERATING, EMBEDDING), "ranks no documents: use a cross-encoder"
)
"""Kinds of models that an endpoint refuses, with what follows the model's name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Served:
    """A model under a name."""

    name: str
    engine: Engine
    # "speech", "chat" (it has a chat template), "completion", "text2text", "embedding", "reranking"
    kind: str
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    @property
    def model(self) -> Any:
        return self.engine.model

    @property
    def embeds(self) -> bool:
        return hasattr(self.model, "embed")

    @property
    def longest_prompt(self) -> int:
        """Most tokens of a prompt; translation models split longer texts into sentences."""
        generation = self.model.generation
        if generation.tokenizer.translates:
            return MOST_POSITIONS
        limit: int = generation.limits.prompt
        return limit if generation.encodes else min(limit, self.engine.status().capacity - 1)

    @cached_property
    def longest_token(self) -> int:
        """Most bytes of text that a token decodes to; slow on the first call."""
        return longest_token(self.model.tokenizer)

    @property
    def _abilities(self) -> dict[str, Any] | None:
        if self.kind != SPEECH:
            return None
        able = vars(self.model.abilities).items()
        return {name: can for name, can in able if name != "languages"}

    def prepare(self) -> None:
        """Compute in advance the tables that the first request would wait for."""
        if self.kind in _GENERATING:
            _ = self.longest_token
            self.model.generation.grammars.prepare()

    @property
    def document(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "kvcast",
            "kind": self.kind,
            "embeddings": self.embeds,
            "languages": list(self.model.languages) if self.kind == SPEECH else None,
            "abilities": self._abilities,
            "loaded": True,
        }


def with_usual_names(served: Sequence[Served]) -> list[Served]:
    """Return models, and the first of each kind under OpenAI's names, too."""
    names = {each.name for each in served}
    first = {each.kind: each for each in reversed(served)}
    return [
        *served,
        *(
            replace(first[kind], name=name)
            for kind, usual in USUAL_NAMES.items()
            if kind in first
            for name in usual
            if name not in names
        ),
    ]


def kind_of(model: Any) -> str:
    """Return the kind of a loaded model; asks its chat template."""
    if model.task in _BY_TASK:
        return _BY_TASK[model.task]
    if not hasattr(model, "chat_tokens"):
        return TEXT2TEXT
    try:
        model.chat_tokens([{"role": "user", "content": "a"}])
    except UsageError:
        raise
    except KvcastError:
        return COMPLETION
    return CHAT


Opener: TypeAlias = Callable[[Sequence[Engine]], Engine]  # opens a model beside running engines


@dataclass(frozen=True, kw_only=True)
class _Unloaded:
    kind: str
    documents: Mapping[str, dict[str, Any]]
    opener: Opener


class Models:
    """The models of a server, by name; the first comes first in lists."""

    def __init__(
        self, served: Iterable[Served], openers: Mapping[Engine, Opener] | None = None
    ) -> None:
        self._by_name: dict[str, Served] = {}
        for model in served:
            if model.name in self._by_name:
                raise UsageError(f"two models have the name {model.name}: give one an --alias")
            self._by_name[model.name] = model
        self._names = list(self._by_name)
        self._openers = dict(openers or {})
        self._unloaded: dict[str, _Unloaded] = {}
        self._active: dict[Engine, tuple[int, float]] = {}
        self._lock = RLock()
        self.sessions = 0  # live sessions, whose models stay

    def __iter__(self) -> Iterator[Served]:
        return iter([self._by_name[name] for name in self._names if name in self._by_name])

    def named(self, name: str, unfit: Collection[str] = ()) -> Served:
        """Return the model of a name; raises ApiError for none, and for one not in memory.

        The error's advice names no model of an `unfit` kind.
        """
        if (model := self._by_name.get(name)) is not None:
            return model
        if name in self._unloaded:
            raise ApiError(
                503,
                f"the model {name!r} is not loaded: try again later",
                kind="server_error",
                code="model_not_loaded",
            )
        fitting = [known for known in self._names if self._kind(known) not in unfit]
        close = get_close_matches(name.lower().removesuffix(":latest"), fitting, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        advice = f"{meant}GET /v1/models lists all models"
        kind = next((kind for kind, usual in USUAL_NAMES.items() if name in usual), None)
        if own := next((known for known in fitting if self._kind(known) == kind), None):
            advice = f"ask for {own}, or start kvcast serve with --alias {name}={own}"
        raise ApiError(
            404,
            f"the model {name[:100]!r} does not exist here; {advice}",
            code="model_not_found",
            param="model",
        )

    def _kind(self, name: str) -> str:
        return (self._by_name.get(name) or self._unloaded[name]).kind

    def is_unloaded(self, name: str) -> bool:
        return name in self._unloaded

    def load(self, name: str) -> None:
        """Bring a model into memory, if it is not there; may take long. Raises as opening does."""
        with self._lock:
            if (model := self._unloaded.get(name)) is None:
                return
            engine = model.opener(self.engines)
            self._openers[engine] = model.opener
            for each in model.documents:
                self._by_name[each] = Served(name=each, engine=engine, kind=model.kind)
                del self._unloaded[each]

    def unload(self, name: str, drain: float) -> None:
        """Unload a model, once its requests are over, or after `drain` seconds.

        Raises ApiError for an unknown name, and for one that cannot be opened again.
        """
        with self._lock:
            if name in self._unloaded:
                return
            engine = self.named(name).engine
            if (opener := self._openers.pop(engine, None)) is None:
                raise ApiError(400, f"the model {name!r} stays loaded", param="model")
            models = [served for served in self if served.engine is engine]
            documents = {served.name: served.document | {"loaded": False} for served in models}
            resting = _Unloaded(kind=models[0].kind, documents=documents, opener=opener)
            for each in documents:
                del self._by_name[each]
                self._unloaded[each] = resting
            self._active.pop(engine, None)
        del models
        engine.close(drain)
        del engine
        gc.unfreeze()  # objects from before the start are in cycles, too
        gc.collect()
        gc.freeze()
        give_back()

    def unload_idle(self, seconds: float) -> None:
        """Unload models that had no request for this time."""
        for name in [served.name for served in self if self._idle(served) > seconds]:
            self.unload(name, 0)

    def _idle(self, served: Served) -> float:
        """Return the seconds that a model had no request; less than 0 for one that stays."""
        if served.engine not in self._openers or (served.kind == SPEECH and self.sessions):
            return -1
        now, status = time.monotonic(), served.engine.status()
        count = sum(status.finished.values())
        before, last = self._active.get(served.engine, (-1, now))
        if count != before or status.running or status.waiting:
            last = now
        self._active[served.engine] = count, last
        return now - last

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [self.document(name) for name in self._names]

    def document(self, name: str) -> dict[str, Any]:
        if (model := self._unloaded.get(name)) is not None:
            return model.documents[name]
        return self.named(name).document

    def of_kind(self, name: str, kinds: Mapping[str, str]) -> Served:
        """Return a model; raises ApiError with the right endpoint if its kind is one of `kinds`."""
        model = self.named(name, unfit=kinds)
        if model.kind in kinds:
            raise ApiError(400, f"the model {name!r} {kinds[model.kind]}", param="model")
        return model

    def speech_model(self, name: str) -> Served:
        return self.of_kind(name, dict.fromkeys((*_GENERATING, EMBEDDING, RERANKING), _GENERATES))

    def first_name(self, served: Served) -> str:
        """Return the first name of a model, under which it is counted."""
        return next(model.name for model in self if model.engine is served.engine)

    @property
    def names(self) -> list[str]:
        return list(self._names)

    @property
    def alive(self) -> bool:
        return all(engine.alive for engine in self.engines)

    @property
    def engines(self) -> list[Engine]:
        """All engines, each once: a model may have several names."""
        return list(dict.fromkeys(model.engine for model in self))
