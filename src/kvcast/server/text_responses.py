"""Answers with generated texts: reasoning, tool calls, log-probabilities and usage, and streams.

`Answer` reads the texts of a job, at once or as they come; each endpoint has a subclass for
its own format. Source of server-sent events: WHATWG HTML, 9.2.
"""

import asyncio
import math
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from kvcast.chat.output_parsers import ReasoningParser, ToolCall
from kvcast.engine import Job
from kvcast.server.dispatch import Calls, State
from kvcast.server.errors import ApiError, api_error
from kvcast.server.model_registry import CHAT, Served
from kvcast.server.prompts import Tools
from kvcast.server.request_bodies import encoded
from kvcast.text.logits_pipeline import has_begun
from kvcast.text.requests import TextDelta
from kvcast.text.texts import TextGeneration

DONE = "data: [DONE]\n\n"
_NO_TOOLS = Tools()


@dataclass
class MadePrompt:
    """A prompt that `make` makes later, in a thread; `tokens` has its tokens then."""

    make: Callable[[], Any]
    tokens: Sequence[int] = ()

    def __call__(self) -> Any:
        prompt = self.make()
        self.tokens = getattr(prompt, "tokens", prompt)
        return prompt


@dataclass(frozen=True, kw_only=True)
class CalledTool:
    index: int
    id: str
    name: str
    arguments: str

    @property
    def document(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(frozen=True)
class Part:
    """The part of a text that a step has made certain, or all of it."""

    reasoning: str
    content: str
    calls: Sequence[CalledTool]
    logprobs: list[dict[str, Any]] | None  # as chat completions have them; None unless requested
    finish_reason: str | None  # "tool_calls", "stop" or "length" at the end of the text
    is_first: bool


class _Reader:
    """Divides one text into reasoning, content and calls, piece by piece."""

    def __init__(self, served: Served, tools: Tools, prompt: MadePrompt | None) -> None:
        self._reasoning: ReasoningParser | None = None
        if prompt is not None:
            begun = served.kind == CHAT and has_begun(served.model.tokenizer, prompt.tokens)
            self._reasoning = ReasoningParser(begun=begun)
        self._parser, self._parallel = tools.parser(), tools.parallel
        self.calls: list[CalledTool] = []

    def push(self, piece: str, *, last: bool) -> tuple[str, str, list[CalledTool]]:
        reasoning = ""
        if self._reasoning is not None:
            reasoning, piece = self._reasoning.push(piece, last=last)
        if self._parser is None:
            return reasoning, piece, []
        parts = self._parser.push(piece)
        if last:
            parts += self._parser.finish()
        content = "".join(part for part in parts if isinstance(part, str))
        found = [part for part in parts if isinstance(part, ToolCall)]
        if not self._parallel:
            found = found[: 1 - len(self.calls)]
        calls = [
            CalledTool(
                index=index,
                id=f"call_{secrets.token_hex(12)}",
                name=call.name,
                arguments=call.arguments,
            )
            for index, call in enumerate(found, start=len(self.calls))
        ]
        self.calls += calls
        return reasoning, content, calls


class Answer(ABC):
    """The texts of one request, whole or streamed, as an endpoint's clients read them."""

    def __init__(
        self,
        served: Served,
        tools: Tools = _NO_TOOLS,
        prompt: MadePrompt | None = None,
        *,
        copies: int = 1,
        logprobs: bool = False,
    ) -> None:
        """Prepare; `prompt` None leaves reasoning in the content, `copies` repeats each text."""
        self.served = served
        self._begin_reader = partial(_Reader, served, tools, prompt)
        self._copies, self.has_logprobs = copies, logprobs
        self._readers: dict[int, _Reader] = {}

    @abstractmethod
    def whole(self, texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> Any:
        """Return the document of all texts; `cached`: each prompt's tokens from the cache."""

    @abstractmethod
    def events(self, delta: TextDelta) -> Iterable[str]:
        """Return the events for the new part of a text."""

    @abstractmethod
    def ended(self, texts: list[TextGeneration], cached: int) -> Iterable[str]:
        """Return the last events."""

    def failed(self, error: ApiError) -> str:
        return event(error.document)

    async def send(
        self, state: State, request: Request, jobs: Sequence[Job[Any, Any]], *, stream: bool | None
    ) -> Response:
        """Answer with the texts of jobs, one for each prompt; of a stream there is one."""

        def texts_of(result: Any) -> list[TextGeneration]:
            return state.generated_texts(request, result) * self._copies

        if stream:
            [job] = jobs

            def events(delta: TextDelta) -> list[str]:
                return [text for copy in self._copied(delta) for text in self.events(copy)]

            def ended(result: Any, cached: int) -> list[str]:
                return list(self.ended(texts_of(result), cached))

            return await streamed(state.calls, request, job, events, ended, self.failed)
        texts = [texts_of(result) for result in await state.calls.results(request, jobs)]
        cached = [job.cached_tokens for job in jobs]
        return await state.calls.answer(lambda: self.whole(texts, cached), _values_of(texts))

    def read(self, text: TextDelta | TextGeneration, index: int = 0) -> Part:
        """Read the next part of the text with this index."""
        is_first = index not in self._readers
        reader = self.reader(index)
        reason = text.finish_reason
        reasoning, content, calls = reader.push(text.text, last=reason is not None)
        probabilities = None
        if self.has_logprobs:
            tokenizer = self.served.model.tokenizer
            probabilities = logprobs(tokenizer, text.tokens, text.logprobs or (), text.top_logprobs)
        if reason == "stop" and reader.calls:
            reason = "tool_calls"
        return Part(reasoning, content, calls, probabilities, reason, is_first)

    def reader(self, index: int = 0) -> _Reader:
        if index not in self._readers:
            self._readers[index] = self._begin_reader()
        return self._readers[index]

    def _copied(self, delta: TextDelta) -> list[TextDelta]:
        if self._copies == 1:
            return [delta]
        return [replace(delta, index=index) for index in range(self._copies)]


def head(prefix: str, kind: str, served: Served) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{secrets.token_hex(14)}",
        "object": kind,
        "created": int(time.time()),
        "model": served.name,
    }


def usage(texts: Sequence[list[TextGeneration]], cached: Sequence[int]) -> dict[str, Any]:
    """Return the token counts of prompts and their texts."""
    prompt = sum(several[0].prompt_tokens for several in texts)
    completion = sum(len(text.tokens) for several in texts for text in several)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(cached)},
    }


def _values_of(texts: Sequence[list[TextGeneration]]) -> int:
    return sum(
        len(text.tokens) * (1 + (len(text.top_logprobs[0]) if text.top_logprobs else 0))
        for several in texts
        for text in several
    )


class _Spelling(NamedTuple):
    """The bytes and the text of a token."""

    spelled: bytes
    text: str
    values: tuple[int, ...]  # a tuple, as the garbage collector untracks tuples of atoms


_SPELLED: "WeakKeyDictionary[Any, dict[int, _Spelling]]" = WeakKeyDictionary()


def spelling(tokenizer: Any, token: int) -> _Spelling:
    """Return the bytes and the text of a token; texts of different tokens differ."""
    known = _SPELLED.setdefault(tokenizer, {})
    if token not in known:
        if tokenizer.decoder is not None:
            spelled: bytes = tokenizer.decoder.token_bytes(token)
        else:
            spelled = tokenizer.decode([token]).encode()
        try:
            text = spelled.decode()
        except UnicodeDecodeError:  # part of a character; in OpenAI's spelling
            text = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        known[token] = _Spelling(spelled, text, tuple(spelled))
    return known[token]


def logprobs(
    tokenizer: Any,
    tokens: Sequence[int],
    values: Sequence[float],
    tops: Sequence[Sequence[tuple[int, float]]] | None,
) -> list[dict[str, Any]]:
    """Return the log-probabilities of tokens as chat completions have them."""

    def entry(token: int, value: float) -> dict[str, Any]:
        spelled = spelling(tokenizer, token)
        return {"token": spelled.text, "logprob": finite(value), "bytes": spelled.values}

    return [
        entry(token, value)
        | {"top_logprobs": [entry(*other) for other in (tops[i] if tops else ())]}
        for i, (token, value) in enumerate(zip(tokens, values, strict=True))
    ]


def finite(value: float) -> float:
    """Return a log-probability that JSON can hold: OpenAI's -9999 for minus infinity."""
    return float(value) if math.isfinite(value) else -9999.0


def event(document: Any, name: str | None = None) -> str:
    """Return one server-sent event, of this name if it has one."""
    data = encoded(document)
    return f"data: {data}\n\n" if name is None else f"event: {name}\ndata: {data}\n\n"


def _may_be_long(item: Any) -> bool:
    """Whether an item's events may repeat a text's logprobs: its last item does."""
    ends = getattr(item, "finish_reason", None) is not None
    return ends and item.logprobs is not None


class Events(StreamingResponse):
    """Events as they come; `ended` is called however it ends, also when the client leaves."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._ended = ended

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


async def streamed(
    calls: Calls,
    request: Request,
    job: Job[Any, Any],
    of_item: Callable[[Any], Sequence[str]],
    end: Callable[[Any, int], Sequence[str]],
    of_error: Callable[[ApiError], str] = lambda failure: event(failure.document),
) -> Events:
    """Return the stream of a job's events, once the first has arrived; raises errors before it.

    `end`: the events of the result, and of how many of its prompt's tokens were cached.
    """
    first = await calls.unless_gone(request, job.arrived(), job.cancel)

    async def events() -> AsyncIterator[str]:
        items, is_long = first, False
        try:
            while items:
                for item in items:
                    is_long = _may_be_long(item)
                    for text in await calls.off_loop(partial(of_item, item), is_long):
                        yield text
                    # Nothing above waits while items are there: others have their turn here.
                    await asyncio.sleep(0)
                items = await job.arrived()
            result = await job
            for text in await calls.off_loop(lambda: end(result, job.cached_tokens), is_long):
                yield text
        except Exception as error:
            failure = api_error(error)
            request.state.error = failure.code or failure.kind
            yield of_error(failure)

    return Events(events(), job.cancel)
