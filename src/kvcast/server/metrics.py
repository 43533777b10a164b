"""The log, one line a request, and metrics for Prometheus.

Prompts and answers are only logged with --log-content. Metrics have vLLM's names where vLLM has
them, so that its dashboards work.
"""

import asyncio
import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import HTTPConnection
from typing_extensions import override

from kvcast.engine import Engine, Job, Status
from kvcast.server.model_registry import Models
from kvcast.text.texts import TextGeneration
from kvcast.transcripts.segments import Transcript

_LOG = logging.getLogger("kvcast.server")


@dataclass
class _Usage:
    """What a request took and was given, for its line in the log."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token: float = math.inf  # seconds until the first of all texts
    seconds: float = 0.0  # until the last token of all
    audio_seconds: float = 0.0

    def add(self, texts: Sequence[TextGeneration]) -> None:
        self.prompt_tokens += texts[0].prompt_tokens
        self.completion_tokens += sum(len(text.tokens) for text in texts)
        self.first_token = min(self.first_token, *(text.timings.first_token for text in texts))
        self.seconds = max(self.seconds, *(text.timings.seconds for text in texts))

    def fields(self) -> dict[str, Any]:
        """Return usage and timings; silence has no completion tokens, audio no prompt tokens."""
        seconds, audio = max(self.seconds, 1e-9), self.audio_seconds
        fields: dict[str, Any] = {}
        if audio:
            fields |= {"audio_seconds": round(audio, 1)}
            fields |= {"times_real_time": round(audio / seconds, 1)}
        if self.prompt_tokens:
            fields |= {"prompt_tokens": self.prompt_tokens}
        if math.isfinite(self.first_token):
            fields |= {
                "completion_tokens": self.completion_tokens,
                "first_token": round(self.first_token, 3),
                "tokens_per_second": round(self.completion_tokens / seconds, 1),
            }
        return fields


class RequestLog:
    def __init__(self, *, with_content: bool) -> None:
        self._with_content = with_content

    def content(self, request: HTTPConnection, **content: Any) -> None:
        """Remember a prompt or an answer, if content is logged."""
        if self._with_content:
            known = request.scope["state"].get("content", {})
            request.scope["state"]["content"] = known | content

    def texts(self, request: HTTPConnection, texts: Sequence[TextGeneration]) -> None:
        """Count the tokens of a prompt's texts; a request may have several prompts."""
        request.scope["state"].setdefault("usage", _Usage()).add(texts)

    def prompts(self, request: HTTPConnection, tokens: int) -> None:
        """Count the tokens of texts that are only read."""
        request.scope["state"]["usage"] = _Usage(prompt_tokens=tokens)

    def recording(
        self,
        request: HTTPConnection,
        transcript: Transcript,
        *,
        first_token: float | None,
        seconds: float,
    ) -> None:
        """Count a recording's tokens; times are seconds since its submission."""
        request.scope["state"]["usage"] = _Usage(
            audio_seconds=transcript.duration,
            completion_tokens=sum(len(segment.tokens) for segment in transcript.segments),
            first_token=math.inf if first_token is None else first_token,
            seconds=seconds,
        )

    def notices(self, request: HTTPConnection, notices: Sequence[str]) -> None:
        """Remember notices about a recording; they reveal nothing of its content."""
        request.scope["state"]["notices"] = list(notices)

    def write(self, scope: Any, *, status: int, began: float, kind: str | None) -> None:
        """Log a request that is over; `status` is 499 for a client that left before its answer."""
        client = scope.get("client") or ("-", 0)
        fields = {
            "client": client[0],
            "method": scope.get("method", "WS"),
            "path": scope["path"],
            "status": status,
            "model": scope["state"].get("model"),
            **scope["state"].get("usage", _Usage()).fields(),
            "seconds": round(time.perf_counter() - began, 4),
            "request": scope["state"].get("request_id"),
            "error": kind,
            "notices": scope["state"].get("notices") or None,
            "ignored": scope["state"].get("ignored") or None,
            "content": scope["state"].get("content"),
        }
        known = {name: value for name, value in fields.items() if value is not None}
        _LOG.info("request", extra={"fields": known})


class LogFormatter(logging.Formatter):
    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    @override
    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = getattr(record, "fields", None)
        message = record.getMessage()
        if self._as_json:
            document = {"time": when, "level": record.levelname.lower(), "message": message}
            if record.exc_info:
                document["traceback"] = self.formatException(record.exc_info)
            return json.dumps(document | (fields or {}), ensure_ascii=False)
        if fields is not None:
            message = " ".join(f"{name}={_plain(value)}" for name, value in fields.items())
        trace = "\n" + self.formatException(record.exc_info) if record.exc_info else ""
        return f"{when} {record.levelname.lower()} {message}{trace}"


def _plain(value: object) -> str:
    """Return a value without characters that would break a line or a field."""
    text = str(value)
    simple = text.isprintable() and " " not in text and '"' not in text
    return text if simple else json.dumps(value)


def note(message: str) -> None:
    _LOG.info(message)


def install(*, as_json: bool) -> None:
    """Send the log to standard error, with messages of libraries and warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter(as_json=as_json))
    root = logging.getLogger()
    before = [old for old in root.handlers if isinstance(old.formatter, LogFormatter)]
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.captureWarnings(True)
    for name in ("kvcast", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = []
        logger.propagate = True
        logger.setLevel(logging.INFO)
    uvicorn = logging.getLogger("uvicorn.error")
    uvicorn.setLevel(logging.WARNING)
    # To uvicorn a WebSocket that is answered with a status and a body is a mistake of ours.
    uvicorn.addFilter(lambda record: "without completing handshake" not in record.getMessage())


_TICK = 0.02  # seconds between two looks at the event loop
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_WHOLE = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)

_GAUGES = {
    "vllm:num_requests_running": ("Requests that are decoded.", lambda s: s.running),
    "vllm:num_requests_waiting": ("Requests that wait for a row.", lambda s: s.waiting),
    "vllm:kv_cache_usage_perc": (
        "Part of the cache's positions that hold something, from 0 to 1.",
        lambda s: sum(s.held) / max(1, s.rows * s.capacity),
    ),
    "kvcast:rows": ("Rows of the cache.", lambda s: s.rows),
    "kvcast:rows_busy": ("Rows in use.", lambda s: len(s.busy)),
    "kvcast:cache_bytes": ("Bytes of a full cache.", lambda s: s.cache_bytes),
}
_COUNTERS = {
    "vllm:prompt_tokens": ("Tokens of prompts.", lambda s: s.prompt_tokens),
    "vllm:generation_tokens": ("Tokens generated.", lambda s: s.generated_tokens),
    "vllm:prefix_cache_queries": ("Tokens of prompts looked up.", lambda s: s.prompt_tokens),
    "vllm:prefix_cache_hits": ("Tokens of prompts found in rows.", lambda s: s.cached_tokens),
    "kvcast:audio_seconds": ("Seconds of recordings transcribed.", lambda s: s.audio_seconds),
}


class _Engines(Collector):
    def __init__(self, models: Models) -> None:
        self._models = models

    @override
    def collect(self) -> Iterable[Metric]:
        # Under its first name alone: sums over names would count an engine twice.
        names: dict[Engine, str] = {}
        for served in self._models:
            names.setdefault(served.engine, served.name)
        statuses = [(name, engine.status()) for engine, name in names.items()]
        for name, (text, value) in _GAUGES.items():
            yield _filled(GaugeMetricFamily(name, text, labels=["model_name"]), statuses, value)
        for name, (text, value) in _COUNTERS.items():
            yield _filled(CounterMetricFamily(name, text, labels=["model_name"]), statuses, value)
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests that are over, by how they ended.",
            labels=["model_name", "finished_reason"],
        )
        for model, status in statuses:
            for how, count in status.finished.items():
                ended.add_metric([model, how], count)
        yield ended


def _filled(family: Any, statuses: list[tuple[str, Status]], value: Any) -> Any:
    for name, status in statuses:
        family.add_metric([name], value(status))
    return family


class Metrics:
    def __init__(self, models: Models) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Engines(models))

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)

        self._first = histogram(
            "vllm:time_to_first_token_seconds", "Until a text's first token.", _FIRST
        )
        self._each = histogram(
            "vllm:time_per_output_token_seconds", "Mean time of a text's later tokens.", _EACH
        )
        self._whole = histogram(
            "vllm:e2e_request_latency_seconds",
            "Until a text's last token, a recording's, or a vector.",
            _WHOLE,
        )
        self._requests = Counter(
            "kvcast:http_requests",
            "Requests of HTTP.",
            ["method", "path", "status"],
            registry=self.registry,
        )
        self._loop = Gauge(
            "kvcast:loop_delay_seconds_max",
            "Longest time for which the server could answer nobody.",
            registry=self.registry,
        )
        self._errors = Counter(
            "kvcast:errors", "Requests that failed, by kind.", ["kind"], registry=self.registry
        )

    async def watch_loop(self) -> None:
        """Measure for ever how late the event loop is."""
        longest = 0.0
        while True:
            began = time.monotonic()
            await asyncio.sleep(_TICK)
            longest = max(longest, time.monotonic() - began - _TICK)
            self._loop.set(longest)

    def watch_speech(self, model: str, job: Job[Any, Any]) -> None:
        """Measure a recording's job, once it is over."""
        began = time.monotonic()

        def measure() -> None:
            with suppress(BaseException):  # how it failed is counted elsewhere
                job.result(0)
                self._whole.labels(model).observe(time.monotonic() - began)

        job.when_done(measure)

    def took(self, model: str, seconds: float) -> None:
        """Measure a request that generates nothing."""
        self._whole.labels(model).observe(seconds)

    def watch(self, model: str, job: Job[Any, Any]) -> None:
        job.when_done(lambda: self._measure(model, job))

    def _measure(self, model: str, job: Job[Any, Any]) -> None:
        for text in _texts(job):
            self._first.labels(model).observe(text.timings.first_token)
            self._whole.labels(model).observe(text.timings.seconds)
            if len(text.tokens) > 1:
                self._each.labels(model).observe(text.timings.per_token)

    def count(self, method: str, path: str, status: int, kind: str | None) -> None:
        """Count a request of HTTP; `path` is a route's, of which there are few."""
        self._requests.labels(method, path, str(status)).inc()
        if kind is not None:
            self._errors.labels(kind).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


def _texts(job: Job[Any, Any]) -> Iterator[TextGeneration]:
    with suppress(BaseException):  # how it failed is counted elsewhere
        yield from several(job.result(0))


def several(result: Any) -> list[TextGeneration]:
    return result if isinstance(result, list) else [result]
