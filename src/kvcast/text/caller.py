"""A prompt and its texts as a caller in an engine: requests out, pieces of text into a job.

Knows neither families of models nor runtimes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from typing_extensions import override

from kvcast.engine.callers import JobCaller
from kvcast.engine.jobs import Job
from kvcast.engine.requests import Request
from kvcast.text.params import PromptParams
from kvcast.text.requests import SampledText, TextRequest
from kvcast.text.texts import Alternatives, TextGeneration


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The new part of a text after a step.

    Attributes:
        index: of the text among the prompt's n.
        text: that became certain, possibly empty.
        tokens: that were chosen, possibly none.
        logprobs: of these tokens; None unless requested.
        top_logprobs: likeliest alternatives in their places; None unless requested.
        finish_reason: "stop" or "length" with the last of a text; None before.

    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    top_logprobs: tuple[Alternatives, ...] | None
    finish_reason: str | None


TextJob = Job[TextDelta, "TextGeneration | list[TextGeneration]"]


class TextCaller(JobCaller):
    """The texts of a prompt, each a request."""

    job: TextJob

    def __init__(
        self,
        requests: Sequence[TextRequest],
        params: PromptParams,
        finished: Callable[[list[TextGeneration]], list[TextGeneration]],
        parts: int = 1,
    ) -> None:
        """Prepare.

        Args:
            requests: one for each text, or one for a beam search; as many for each part.
            params: options.
            finished: returns the prompt's texts as clients get them, once all are over.
            parts: of the prompt that have texts of their own: of several nothing is told before.

        """
        self._requests = list(requests)
        self._coming = deque(self._requests)
        self._each = len(self._requests) // parts
        # Beams compete to the end, and texts of later parts may be over before others.
        self._tells = params.beam == 1 and parts == 1
        self._running = len(self._requests)
        self._params = params
        self._finished = finished
        self._shown = [(0, 0)] * len(self._requests)  # pieces and tokens that the job has
        self._result: TextGeneration | list[TextGeneration] | None = None
        self._error: Exception | None = None

    @property
    @override
    def ending(self) -> str | None:
        if self._error is not None:
            return "error"
        if self._result is None:
            return None
        whole = self._result[0] if isinstance(self._result, list) else self._result
        return whole.finish_reason

    @override
    def next_request(self) -> Request | None:
        if len(self._coming) == len(self._requests):
            parts = self._requests[:: self._each]
            self.totals.prompt_tokens += sum(part.spec.prompt_tokens for part in parts)
        return self._coming.popleft() if self._coming else None

    @override
    def take(self, request: Request) -> None:
        if request.error is not None:
            raise request.error
        self.job.cached_tokens = max(self.job.cached_tokens, request.reused)
        if self._tells and isinstance(request, SampledText):
            self._tell(request)
        self._running -= request.done
        if not self._running:
            self._finish()

    @override
    def fail(self, error: Exception) -> None:
        self._error = error
        self.totals.cached_tokens += self.job.cached_tokens

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        elif self._result is not None:
            self.job.finish(self._result)

    def _tell(self, request: SampledText) -> None:
        """Put the new part of a text into the job."""
        index = self._requests.index(request)
        text, (pieces, tokens) = request.text, self._shown[index]
        params = self._params
        self._shown[index] = len(text.pieces), len(text.tokens)
        delta = TextDelta(
            index,
            "".join(text.pieces[pieces:]),
            tuple(text.tokens[tokens:]),
            tuple(text.logprobs[tokens:]) if params.logprobs else None,
            tuple(text.top_logprobs[tokens:]) if params.top_logprobs else None,
            text.finish_reason,
        )
        if delta.text or delta.tokens or delta.finish_reason:
            self.job.put(delta)
        self.totals.generated_tokens += len(delta.tokens)

    def _finish(self) -> None:
        """Make up the result."""
        written = [text for request in self._requests for text in request.generations()]
        texts = self._finished(written)
        if not self._tells:
            self.totals.generated_tokens += sum(len(text.tokens) for text in written)
            for index, text in enumerate(texts):
                self.job.put(_whole(index, text))
        self.totals.cached_tokens += self.job.cached_tokens
        self._result = texts if self._params.n > 1 else texts[0]


def _whole(index: int, text: TextGeneration) -> TextDelta:
    top = text.top_logprobs
    return TextDelta(index, text.text, text.tokens, text.logprobs, top, text.finish_reason)
