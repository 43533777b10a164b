"""The application: every route, and how errors become answers."""

from collections.abc import Callable
from concurrent.futures import CancelledError
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Form
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi_offline import FastAPIOffline
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse
from starlette.types import ASGIApp

import kvcast
from kvcast.errors import KvcastError
from kvcast.server.anthropic_messages import count_tokens, messages
from kvcast.server.chat_completions import chat_completions, completions
from kvcast.server.dispatch import Calls, State
from kvcast.server.embeddings import embeddings, rerank
from kvcast.server.errors import MESSAGES, ApiError, GoneError, api_error, document_for
from kvcast.server.metrics import Metrics, RequestLog
from kvcast.server.middleware import Guard
from kvcast.server.model_registry import Models, Served
from kvcast.server.openai_responses import responses
from kvcast.server.params import ServeParams
from kvcast.server.realtime import Realtime
from kvcast.server.request_bodies import FormRoute, JsonRoute
from kvcast.server.request_models import (
    KINDS,
    ChatRequest,
    CompletionRequest,
    CountTokensRequest,
    EmbeddingsRequest,
    MessagesRequest,
    ModelRequest,
    RerankRequest,
    ResponsesRequest,
    Text2TextRequest,
)
from kvcast.server.text2text import text2text
from kvcast.server.transcriptions import Recordings, SpeechForm, TranscriptionForm, speech

PAGE = Path(__file__).parent / "page"

_POLICY = (
    "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}  # the system's own table may differ, and browsers insist on these
_FORM = Form(media_type="multipart/form-data")
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": description}
    for status, description in {
        400: "The request is wrong; `param` says where.",
        401: "The API key is missing or wrong.",
        404: "There is no such model.",
        413: "The body is too large.",
        429: "Too many requests wait; `Retry-After` says when to try again.",
        503: "The server stops.",
    }.items()
}


def create(
    models: Models, params: ServeParams, draining: Callable[[], bool] = lambda: False
) -> ASGIApp:
    """Return the application that serves these models; if `draining`, it refuses new requests."""
    state = State(
        models=models,
        limits=params,
        calls=Calls(params.timeout),
        metrics=Metrics(models),
        journal=RequestLog(with_content=params.log_content),
    )
    app = FastAPIOffline(
        title="kvcast",
        version=kvcast.__version__,
        summary="OpenAI's interface to models with a key-value cache",
        redoc_url=None,
    )
    _add_errors(app)
    _add_text_routes(app, state)
    _add_speech(app, state)
    _add_models(app, state)
    _add_status(app, state, draining)
    _add_page(app)
    guarded = Guard(app, state, draining)
    if not params.origins:
        return guarded
    return CORSMiddleware(
        guarded,
        allow_origins=params.origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "x-ignored-fields", "retry-after"],
    )


def _add_errors(app: FastAPI) -> None:
    async def refuse(request: Request, error: Exception) -> Response:
        cause = error.__cause__
        if isinstance(error, GoneError) or isinstance(cause, GoneError):
            return Response(status_code=499)
        if getattr(error, "status_code", None) == 404:
            error = ApiError(404, _no_path(request.url.path[:_LONGEST_PATH], app))
        answer = _as_api_error(error, cause)
        request.state.error = answer.code or answer.kind
        headers = getattr(error, "headers", None) or {}  # of a 405: the allowed methods
        document = document_for(request.url.path, answer)
        return JSONResponse(document, answer.status, {**headers, **answer.headers})

    known = (ApiError, GoneError, HTTPException, RequestValidationError, KvcastError)
    for kind in (*known, CancelledError, Exception):
        app.add_exception_handler(kind, refuse)


_LONGEST_PATH = 100  # characters of a path in a message


def _no_path(path: str, app: FastAPI) -> str:
    known = [*app.openapi()["paths"]]
    if path.startswith("/api/"):
        return "this is OpenAI's API, not Ollama's: the base URL of clients ends in /v1"
    if f"/v1{path}" in known:
        return f"there is no {path}, but /v1{path}: the base URL of clients ends in /v1"
    close = get_close_matches(path, known, n=1)
    return f"there is no {path}" + (f": did you mean {close[0]}?" if close else "; see /docs")


def _as_api_error(error: Exception, cause: BaseException | None) -> ApiError:
    if isinstance(cause, ApiError):  # of the body, while it was read
        return cause
    if isinstance(cause, OSError):  # a full disk
        return ApiError(
            507, "the server has no room for the upload", kind="server_error", code="no_room"
        )
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        return ApiError(error.status_code, str(error.detail))
    return api_error(error)


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["loc"] == ("body",) and first["type"] != "missing":
        return ApiError(
            400, "the body must be a JSON object, sent as content-type: application/json"
        )
    if "UploadFile" in first["msg"]:
        return ApiError(
            400, "file must be an upload, as curl -F file=@talk.mp3 sends", param="file"
        )
    parts = (str(part) for part in first["loc"][1:])
    place = ".".join(part for part in parts if part not in KINDS and part != "[key]")
    where = f"{place}: " if place else ""
    return ApiError(400, f"{where}{first['msg']}", param=place or None)


def _add_text_routes(app: FastAPI, state: State) -> None:
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/chat/completions", tags=["texts"], responses=_ERRORS)
    async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
        """Answer a conversation, at once or, with `stream`, token by token."""
        await state.enter(request, body)
        return await chat_completions(state, request, body)

    @routes.post("/v1/completions", tags=["texts"], responses=_ERRORS)
    async def create_completion(request: Request, body: CompletionRequest) -> Response:
        await state.enter(request, body)
        return await completions(state, request, body)

    @routes.post("/v1/responses", tags=["texts"], responses=_ERRORS)
    async def create_response(request: Request, body: ResponsesRequest) -> Response:
        """Answer an input; nothing is stored."""
        await state.enter(request, body)
        return await responses(state, request, body)

    @routes.post(MESSAGES, tags=["texts"], responses=_ERRORS)
    async def create_message(request: Request, body: MessagesRequest) -> Response:
        await state.enter(request, body)
        return await messages(state, request, body)

    @routes.post(f"{MESSAGES}/count_tokens", tags=["texts"], responses=_ERRORS)
    async def count_message_tokens(body: CountTokensRequest) -> Response:
        await state.load(body.model)
        return await count_tokens(state, body)

    @routes.post("/v1/text2text", tags=["texts"], responses=_ERRORS)
    async def create_text2text(request: Request, body: Text2TextRequest) -> Response:
        """Answer sources, by T5, BART and UniLM models."""
        await state.enter(request, body)
        return await text2text(state, request, body)

    @routes.post("/v1/embeddings", tags=["texts"], responses=_ERRORS)
    async def create_embeddings(request: Request, body: EmbeddingsRequest) -> Response:
        await state.enter(request, body)
        return await embeddings(state, request, body)

    @routes.post("/v1/rerank", tags=["texts"], responses=_ERRORS)
    async def create_ranking(request: Request, body: RerankRequest) -> Response:
        """Order documents by their relevance for a query."""
        await state.enter(request, body)
        return await rerank(state, request, body)

    app.include_router(routes)


def _add_speech(app: FastAPI, state: State) -> None:
    recordings = Recordings(state.limits.max_audio)
    routes = APIRouter(route_class=FormRoute)

    @routes.post("/v1/audio/transcriptions", tags=["speech"], responses=_ERRORS)
    async def create_transcription(
        request: Request, form: Annotated[TranscriptionForm, _FORM]
    ) -> Response:
        await state.enter(request, form)
        return await speech(state, recordings, request, form, "transcribe")

    @routes.post("/v1/audio/translations", tags=["speech"], responses=_ERRORS)
    async def create_translation(request: Request, form: Annotated[SpeechForm, _FORM]) -> Response:
        await state.enter(request, form)
        return await speech(state, recordings, request, form, "translate")

    app.include_router(routes)
    app.add_api_websocket_route("/v1/realtime", Realtime(state).serve)


def _add_models(app: FastAPI, state: State) -> None:
    @app.get("/v1/models", tags=["models"])
    async def list_models() -> dict[str, Any]:
        return {"object": "list", "data": state.models.documents}

    @app.get("/v1/models/{model:path}", tags=["models"], responses=_ERRORS)
    async def retrieve_model(model: str) -> dict[str, Any]:
        return state.models.document(model)

    @app.post("/v1/models/load", tags=["models"], responses=_ERRORS)
    async def load_model(body: ModelRequest) -> dict[str, Any]:
        """Bring a model into memory; a request for it does so, too."""
        await state.load(body.model)
        return state.models.document(body.model)

    @app.post("/v1/models/unload", tags=["models"], responses=_ERRORS)
    async def unload_model(body: ModelRequest) -> dict[str, Any]:
        """Unload a model, once its requests are over or `--drain` has passed."""
        unload = partial(state.models.unload, body.model, state.limits.drain)
        await state.calls.in_thread(unload)
        return state.models.document(body.model)


def _add_status(app: FastAPI, state: State, draining: Callable[[], bool]) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["status"], responses={503: {"description": "An engine failed."}})
    async def health() -> Response:
        """Whether the process and its engines live, or it must be restarted."""
        if draining() or state.models.alive:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "failed"}, 503)

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["status"], responses={503: {"description": "The server stops."}})
    async def ready() -> Response:
        status = "stopping" if draining() else "ready" if state.models.alive else "failed"
        return JSONResponse({"status": status}, 200 if status == "ready" else 503)

    @app.get("/metrics", tags=["status"])
    async def metrics() -> Response:
        return Response(state.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/engine", tags=["status"])
    async def engine() -> dict[str, Any]:
        """Return the status of each model's engine; further names are an `alias_of` the first."""
        return {"models": [_status(state.models, served) for served in state.models]}


def _status(models: Models, served: Served) -> dict[str, Any]:
    first = models.first_name(served)
    alias_of = None if first == served.name else first
    return {"id": served.name, "alias_of": alias_of, **vars(served.engine.status())}


def _add_page(app: FastAPI) -> None:
    names = {path.name: path for path in PAGE.glob("*.*")}
    headers = {
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",  # a page of two versions would break
    }

    @app.get("/page/{name}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in names:
            raise ApiError(404, "there is no such file")
        path = names[name]
        return FileResponse(path, headers=headers, media_type=_TYPES[path.suffix])

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return await file("index.html")
