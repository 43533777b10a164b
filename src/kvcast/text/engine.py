"""Jobs of models that write texts: prompts in, pieces of text out.

Knows neither families of models nor runtimes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from kvcast.engine.jobs import Job
from kvcast.engine.loop import Loop
from kvcast.engine.memory import fitting
from kvcast.engine.prefix_cache import HeldTokens
from kvcast.engine.requests import Request
from kvcast.engine.worker import Prepared, Task, Worker
from kvcast.errors import UsageError
from kvcast.runtimes.exclusive import exclusive
from kvcast.text.generation import GenerationTask, TextGenerator, TextPrompt
from kvcast.text.params import PromptParams
from kvcast.text.requests import SampledText, TextRequest
from kvcast.text.texts import Alternatives, TextGeneration


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What a step brought of a text.

    Attributes:
        index: which text of the prompt's n.
        text: that is certain now, possibly none.
        tokens: chosen, possibly none.
        logprobs: of these tokens; None unless asked for.
        top_logprobs: what else could have come in their places; None unless asked for.
        finish_reason: "stop" or "length" with the last of a text; None before.

    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    top_logprobs: tuple[Alternatives, ...] | None
    finish_reason: str | None


TextJob = Job[TextDelta, "TextGeneration | list[TextGeneration]"]


@dataclass(frozen=True)
class PreparedTexts(Prepared):
    """Requests for the texts of a prompt."""

    prompt: TextPrompt
    params: PromptParams
    requests: Sequence[TextRequest]


class TextTask(Task):
    """The texts of a prompt under way."""

    def __init__(self, prepared: PreparedTexts, job: TextJob, generator: TextGenerator) -> None:
        self.job: TextJob = job
        self.requests = list(prepared.requests)
        self._prepared = prepared
        self._generator = generator
        self._result: TextGeneration | list[TextGeneration] | None = None
        self._shown = [(0, 0)] * len(self.requests)  # pieces and tokens that the job has

    def tell(self, request: TextRequest) -> int:
        """Put what is new of a text into the job; return how many tokens that is."""
        self.job.cached_tokens = max(self.job.cached_tokens, request.reused)
        if not isinstance(request, SampledText):
            return 0  # beams compete to the end
        index = self.requests.index(request)
        text, (pieces, tokens) = request.text, self._shown[index]
        params = self._prepared.params
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
        return len(delta.tokens)

    def finish(self) -> int:
        """Make up the result; return tokens that the job was not told of before."""
        if self._error is not None:
            return 0
        prepared = self._prepared
        texts = [text for request in self.requests for text in request.generations()]
        late = 0
        if prepared.params.beam > 1:
            late = sum(len(text.tokens) for text in texts)
            for index, text in enumerate(texts):
                self.job.put(_whole(index, text))
        texts = self._generator.finished(prepared.prompt, texts, prepared.params)
        self._result = texts if prepared.params.n > 1 else texts[0]
        return late

    @override
    def end(self) -> str | None:
        if not all(request.done for request in self.requests):
            return None
        if self._error is not None:
            return "error"
        return self.requests[0].generations()[0].finish_reason

    @override
    def settle(self) -> None:
        if self._error is not None:
            self.job.fail(self._error)
        elif self._result is not None:
            self.job.finish(self._result)

    @property
    def _error(self) -> Exception | None:
        errors = (request.error for request in self.requests)
        return next((error for error in errors if error is not None), None)


class TextWorker(Worker):
    """Writes texts over one cache."""

    def __init__(self, generator: TextGenerator, rows: int, budget: int, chunk: int) -> None:
        """Work out the cache's sizes; memory is taken when the first text begins."""
        self._generator = generator
        generation = generator.generation
        runtime, limits = generation.runtime, generation.limits
        self.sizes = fitting(
            runtime.row_bytes,
            longest=limits.sequence,
            rows=rows,
            budget=budget,
            fixed=generator.input_bytes,
        )
        capacity, encodes = self.sizes.capacity, generation.encodes
        if capacity < limits.sequence:
            longest = limits.prompt if encodes else min(limits.prompt, capacity - 1)
            limits = replace(limits, sequence=capacity, prompt=longest)
        self._generation: GenerationTask = replace(generation, limits=limits)
        self._tasks: dict[Request, TextTask] = {}
        self._loop = Loop(
            runtime,
            rows=self.sizes.rows,
            capacity=capacity,
            inputs=self.sizes.rows if encodes else 0,
            chunk=chunk if generation.chunk else None,
            turn=chunk,
            # A source is read in both directions: nothing of it serves another one.
            held=HeldTokens(self.sizes.rows, capacity) if generation.continues else None,
        )

    @override
    def prepare(self, given: TextPrompt, options: Mapping[str, Any]) -> PreparedTexts:
        params = PromptParams(**options)
        if params.beam > self.sizes.rows:
            raise UsageError(f"beam must be at most {self.sizes.rows}, the rows of the engine")
        tokens = self._generator.prompt_tokens(given, params)
        return PreparedTexts(given, params, self._generation.requests(tokens, params))

    @override
    def has_room(self, opening: int) -> bool:
        return not self._loop.waiting and len(self._loop.busy) < self.sizes.rows

    @override
    def begin(self, prepared: Prepared, job: TextJob) -> TextTask:
        assert isinstance(prepared, PreparedTexts)
        task = TextTask(prepared, job, self._generator)
        self.prompt_tokens += task.requests[0].spec.prompt_tokens
        for request in task.requests:
            self._tasks[request] = task
            self._loop.add(request)
        return task

    @override
    def cancel(self, task: Task) -> None:
        assert isinstance(task, TextTask)
        self._forget(task)
        for request in task.requests:
            self._loop.cancel(request)

    @override
    def step(self) -> Sequence[TextTask]:
        news: dict[TextTask, None] = {}
        for request in self._loop.step():
            task = self._tasks[request]
            news[task] = None
            if not request.error:
                self.generated_tokens += task.tell(request)  # type: ignore[arg-type]
        for task in news:  # only now, as several texts of a prompt may end in one step
            if task.end():
                self.cached_tokens += task.job.cached_tokens
                self._forget(task)
                with exclusive(self._generator.runtime):
                    self.generated_tokens += task.finish()
        return list(news)

    @property
    @override
    def idle(self) -> bool:
        return self._loop.idle

    @property
    @override
    def held(self) -> list[int]:
        return self._loop.lengths

    @property
    @override
    def busy(self) -> list[int]:
        return self._loop.busy

    def _forget(self, task: TextTask) -> None:
        for request in task.requests:
            self._tasks.pop(request, None)


def _whole(index: int, text: TextGeneration) -> TextDelta:
    top = text.top_logprobs
    return TextDelta(index, text.text, text.tokens, text.logprobs, top, text.finish_reason)
