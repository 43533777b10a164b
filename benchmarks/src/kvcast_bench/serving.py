"""The protocols of servers that take part, and their clients' reports.

A client sends its next request when the last one is answered: a closed loop. Knows no protocol, no
server and no process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcast_bench.backend import Samples


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
    """The answers to all clients of a turn."""

    seconds: float  # from the first request to the last answer
    processor: float  # seconds of a processor that the clients themselves used
    answers: Sequence[ServerAnswer]  # the first client's first, in its order


class TextServer(Protocol):
    """A backend that continues texts for many clients."""

    turns: int  # that it has had: prompts differ from turn to turn

    def serve_texts(self, prompts: Sequence[Sequence[str]], new: int) -> ServingTurn:
        """Continue each client's prompts by `new` tokens, the likeliest but for end tokens."""


class SpeechServer(Protocol):
    """A backend that transcribes recordings for many clients."""

    def serve_clips(
        self, clips: Sequence[Sequence[Samples]], language: str, beam: int
    ) -> ServingTurn:
        """Transcribe each client's clips, mono 16 kHz float32, in a language, given by its code."""
