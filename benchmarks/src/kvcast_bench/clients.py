"""Clients over HTTP, all in this process; they keep answers and parse them when all are there.

So parsing takes no processor from a server on the same machine while a client waits.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvcast.errors import KvcastError
from kvcast_bench.backend import Samples

if TYPE_CHECKING:
    from aiohttp import ClientSession


@dataclass(frozen=True, kw_only=True)
class ServerAnswer:
    """The answer to one request; times are of one clock, in seconds."""

    sent: float
    times: Sequence[float]  # when each piece that has text came
    text: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # of the prompt; None where the server does not say

    @property
    def first(self) -> float:
        """Seconds until the first piece."""
        return self.times[0] - self.sent

    @property
    def last(self) -> float:
        """Seconds until the last piece."""
        return self.times[-1] - self.sent


@dataclass(frozen=True, kw_only=True)
class ServingTurn:
    seconds: float  # from the first request to the last answer
    processor: float  # seconds of a processor that the clients themselves used
    answers: Sequence[ServerAnswer]  # the first client's first, in its order


class TextServer(Protocol):
    turns: int  # that it has had: prompts differ from turn to turn

    def serve_texts(self, prompts: Sequence[Sequence[str]], new: int) -> ServingTurn:
        """Continue each client's prompts by `new` tokens, the likeliest but for end tokens."""


class SpeechServer(Protocol):
    def serve_clips(
        self, clips: Sequence[Sequence[Samples]], language: str, beam: int
    ) -> ServingTurn:
        """Transcribe each client's clips, mono 16 kHz float32, in a language, given by its code."""


_EVENT = b"data: "
_END = b"[DONE]"
_SHOWN = 200


@dataclass(frozen=True, kw_only=True)
class Post:
    """A request: a document, or a form with a file."""

    path: str
    document: Any = None
    form: Any = None  # names and values
    file: bytes | None = None  # the form's

    def body(self) -> Any:
        from aiohttp import FormData

        if self.file is None:
            return json.dumps(self.document).encode()
        form = FormData(self.form)
        form.add_field("file", self.file, filename="clip.wav", content_type="audio/wav")
        return form


@dataclass(frozen=True)
class _RawAnswer:
    """An answer as it came: pieces, and when each of them did."""

    sent: float
    pieces: Sequence[tuple[float, bytes]]

    def read(self) -> ServerAnswer:
        """Make sense of it: events of a stream, or one document."""
        times, texts, usage = list[float](), list[str](), dict[str, Any]()
        for came, line in self._lines():
            data = line.removeprefix(_EVENT).strip()
            if not data or data == _END:
                continue
            document = json.loads(data)
            if "error" in document:
                raise KvcastError(f"answered {str(document['error'])[:_SHOWN]}")
            # A clip may say nothing; an event of a stream without text is no piece.
            if (text := _text(document)) or "text" in document:
                texts.append(text)
                times.append(came)
            usage = document.get("usage") or usage
        if not times:
            raise KvcastError("answered with no text")
        return ServerAnswer(
            sent=self.sent,
            times=times,
            text="".join(texts),
            tokens=usage.get("completion_tokens") or 0,
            prompt_tokens=usage.get("prompt_tokens") or 0,
            cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        )

    def _lines(self) -> Iterator[tuple[float, bytes]]:
        begun = b""
        for came, piece in self.pieces:
            *whole, begun = (begun + piece).split(b"\n")
            yield from ((came, line) for line in whole)
        if begun:
            yield self.pieces[-1][0], begun


def _text(document: Any) -> str:
    if "text" in document:
        return str(document["text"])
    return "".join(choice.get("text") or "" for choice in document.get("choices", ()))


def ask(url: str, posts: Sequence[Sequence[Post]]) -> ServingTurn:
    """Send every client's requests in turn, all clients at once.

    Raises KvcastError for a server that refuses one, ends, or gives no text.
    """
    from aiohttp import ClientError

    try:
        return asyncio.run(_post_all(url, posts))
    except ClientError as error:
        raise KvcastError(f"the server does not answer: {type(error).__name__}: {error}") from None


async def _post_all(url: str, posts: Sequence[Sequence[Post]]) -> ServingTurn:
    from aiohttp import ClientSession, ClientTimeout, TCPConnector

    connector = TCPConnector(limit=0)
    async with ClientSession(url, connector=connector, timeout=ClientTimeout()) as session:
        start, used = time.perf_counter(), time.process_time()
        by_client = await asyncio.gather(*(_post_in_turn(session, own) for own in posts))
        seconds, used = time.perf_counter() - start, time.process_time() - used
    answers = [answer.read() for client in by_client for answer in client]
    return ServingTurn(seconds=seconds, processor=used, answers=answers)


async def _post_in_turn(session: "ClientSession", posts: Sequence[Post]) -> list[_RawAnswer]:
    answers = []
    for post in posts:
        body, sent = post.body(), time.perf_counter()
        headers = {} if post.file is not None else {"content-type": "application/json"}
        async with session.post(post.path, data=body, headers=headers) as response:
            if not response.ok:
                text = " ".join((await response.text()).split())[:_SHOWN]
                raise KvcastError(f"answered with status {response.status}: {text}")
            pieces = [(time.perf_counter(), piece) async for piece in response.content.iter_any()]
        answers.append(_RawAnswer(sent, pieces))
    return answers
