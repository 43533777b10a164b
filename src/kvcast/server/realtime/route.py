"""The WebSocket: messages to a session and back, until the client leaves."""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial

import anyio
from anyio.to_thread import run_sync
from starlette.websockets import WebSocket, WebSocketDisconnect

from kvcast.audio.vad import VoiceDetector
from kvcast.server.dispatch import State
from kvcast.server.errors import ApiError, busy
from kvcast.server.model_registry import SPEECH, Models
from kvcast.server.realtime.events import TranscriptionSettings
from kvcast.server.realtime.session import Event, Session, encoded, failure
from kvcast.server.realtime.turns import PolicyRunner
from kvcast.speech.live import LiveWindow
from kvcast.speech.params import LiveParams
from kvcast.speech.recordings import live_voice_detector

SUBPROTOCOL = "realtime"

_POLICY, _TRY_AGAIN_LATER = 1008, 1013

_LONGEST_REASON = 123  # bytes of a close frame's reason (RFC 6455, 5.5)
_MUCH = 60.0  # backlog of audio, in seconds, from which a client that sends more must wait
_PATIENCE = 5.0  # seconds that it waits for one transcription: its pings stand in the same line
_TOGETHER = 4  # sessions whose messages are read at once


class Realtime:
    def __init__(self, state: State) -> None:
        self._state = state
        self._most = state.limits.live_sessions
        self._sessions = 0
        self._receiving = anyio.CapacityLimiter(_TOGETHER)
        self._transcribing = anyio.CapacityLimiter(max(1, self._most))

    async def serve(self, websocket: WebSocket) -> None:
        """Serve a client until it leaves or is silent for too long."""
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        with suppress(WebSocketDisconnect):
            if self._sessions >= self._most:
                error = busy("too many live sessions are open: try again later")
                await _close(websocket, error, _TRY_AGAIN_LATER)
                return
            self._sessions += 1
            self._state.models.sessions += 1
            try:
                await self._talk(websocket)
            finally:
                self._sessions -= 1
                self._state.models.sessions -= 1

    async def _talk(self, websocket: WebSocket) -> None:
        limits = self._state.limits
        opener = _WindowOpener(self._state, websocket.query_params.get("model"))
        begin = partial(
            Session, opener.open, _detector, model=opener.model, longest=60 * limits.max_audio
        )
        try:
            session = await run_sync(begin, limiter=self._receiving)
        except Exception as error:  # the client asks for what cannot be served
            await _close(websocket, error, _POLICY)
            return
        connection = _Connection(
            websocket, session, limits.live_idle, self._receiving, self._transcribing
        )
        try:
            await connection.run(opener.give_up)
        finally:
            self._state.journal.content(websocket, answer=list(session.transcripts))


class _WindowOpener:
    def __init__(self, state: State, model: str | None) -> None:
        self.model = model or _first(state.models)
        self._models = state.models
        self._runner = PolicyRunner(state.limits.timeout)
        self.give_up = self._runner.give_up

    def open(self, settings: TranscriptionSettings) -> LiveWindow:
        self._models.load(settings.model or self.model)
        served = self._models.speech_model(settings.model or self.model)
        params = LiveParams(
            language=settings.language or None,
            initial_prompt=settings.prompt or None,
            # Fallbacks draw several texts of a window, of which each needs a row.
            best_of=min(LiveParams().best_of, served.engine.status().rows),
        )
        window: LiveWindow = served.model.streaming_window(
            params, partial(self._runner, served.engine)
        )
        return window


class _Connection:
    def __init__(
        self,
        websocket: WebSocket,
        session: Session,
        idle: float,
        receiving: anyio.CapacityLimiter,
        transcribing: anyio.CapacityLimiter,
    ) -> None:
        self._websocket = websocket
        self._session = session
        self._idle = idle
        self._receiving, self._transcribing = receiving, transcribing
        self._sending = anyio.Lock()  # immediate events come before transcripts
        self._arrived = anyio.Event()
        self._transcribed = anyio.Event()
        self._in_vain: anyio.Event | None = None

    async def run(self, give_up: Callable[[], None]) -> None:
        """Go on until the client leaves; `give_up` ends a running transcription then."""
        await self._send([self._session.greeting])
        async with anyio.create_task_group() as tasks:

            async def until_over(part: Callable[[], Awaitable[None]]) -> None:
                try:
                    await part()
                finally:
                    give_up()
                    tasks.cancel_scope.cancel()

            tasks.start_soon(until_over, self._transcribe)
            tasks.start_soon(until_over, self._receive)

    async def _receive(self) -> None:
        with suppress(WebSocketDisconnect):
            while (message := await self._next()) is not None:
                async with self._sending:
                    take = partial(self._session.receive, message)
                    await self._send(await run_sync(take, limiter=self._receiving))
                self._arrived.set()
                await self._slow_down()

    async def _slow_down(self) -> None:
        transcribed = self._transcribed
        if self._session.waiting > _MUCH and transcribed is not self._in_vain:
            with anyio.move_on_after(_PATIENCE):
                await transcribed.wait()
            self._in_vain = transcribed

    async def _next(self) -> str | None:
        try:
            with anyio.fail_after(self._idle):
                message = await self._websocket.receive()
        except TimeoutError:
            error = ApiError(408, f"nothing came for {self._idle:g} seconds", code="session_idle")
            await _close(self._websocket, error, _POLICY)
            return None
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("text") or (message.get("bytes") or b"").decode("utf-8", "replace")

    async def _transcribe(self) -> None:
        with suppress(WebSocketDisconnect):
            while True:
                while self._session.ready:
                    events = await run_sync(self._session.transcribe, limiter=self._transcribing)
                    transcribed, self._transcribed = self._transcribed, anyio.Event()
                    transcribed.set()
                    async with self._sending:
                        await self._send(events)
                await self._arrived.wait()
                self._arrived = anyio.Event()

    async def _send(self, events: Iterable[Event]) -> None:
        for message in events:
            with anyio.move_on_after(self._idle) as limit:
                await self._websocket.send_text(encoded(message))
            if limit.cancelled_caught:  # it reads nothing
                raise WebSocketDisconnect


async def _close(websocket: WebSocket, error: Exception, code: int) -> None:
    failed = failure(error)
    await websocket.send_text(encoded(failed))
    reason = failed["error"]["message"].encode()[:_LONGEST_REASON]
    await websocket.close(code, reason.decode(errors="ignore"))


def _detector() -> VoiceDetector:
    return live_voice_detector()[0]


def _first(models: Models) -> str:
    """Return the first model that takes audio that is still arriving, or else that transcribes."""
    speech = [model for model in models.documents if model["kind"] == SPEECH]
    speech.sort(key=lambda model: not model["abilities"]["live"])
    return speech[0]["id"] if speech else ""
