"""A scripted text model for the command line's tests, and a program that runs the CLI with it.

As a program: `python generate_fakes.py ARGS…` is `kvcast ARGS…` with the scripted model; a prompt
"slow" holds the run after its first piece until somebody interrupts it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcast.cli import main
from kvcast.decoding.speculative_decoding import DraftCounts
from kvcast.errors import KvcastError, UsageError
from kvcast.loading import opening as loading
from kvcast.text.params import NO_DEFAULTS, GenerationDefaults

PIECES = (" in", " 東京,\n", "well")
TEXT = "".join(PIECES)
LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class FakeTimings:
    first_token: float = 0.25
    seconds: float = 0.5
    per_token: float = 0.125
    tokens_per_second: float = 6.0


@dataclass(frozen=True, kw_only=True)
class FakeGeneration:
    text: str = TEXT
    tokens: tuple[int, ...] = (11, 12, 13)
    logprobs: tuple[float, ...] = (-0.5, -1.25, float("-inf"))
    finish_reason: str = "stop"
    prompt_tokens: int = 4
    timings: FakeTimings = FakeTimings()
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None
    score: float | None = None
    similarity: float | None = None
    draft: DraftCounts | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)


class FakePieces(Iterator[str]):
    def __init__(self, pieces: Iterator[str], result: FakeGeneration) -> None:
        self._pieces = pieces
        self.result = result

    def __next__(self) -> str:
        return next(self._pieces)


@dataclass
class FakeTextModel:
    """Streams PIECES, or answers "PROMPT#k"; a prompt in `failures` fails after it began.

    One that `ranks` leaves out a text, and tells similarities and scores.
    """

    task: str = "generate"
    defaults: GenerationDefaults = NO_DEFAULTS
    failures: dict[str, BaseException] = field(default_factory=dict)
    refuses: KvcastError | None = None
    calls: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    ranks: bool = False
    drafts: DraftCounts | None = None
    tops: tuple[tuple[tuple[int, float], ...], ...] | None = None

    def stream(self, prompt: str, **keywords: Any) -> FakePieces:
        self._begin(prompt, [prompt], keywords)
        return FakePieces(self._pieces(prompt), FakeGeneration(draft=self.drafts))

    def generate_each(
        self, prompts: Sequence[str], *, n: int = 1, **keywords: Any
    ) -> Iterator[list[FakeGeneration]]:
        self._begin(prompts, prompts, {"n": n, **keywords})
        return self._texts(prompts, n)

    def _begin(self, given: object, prompts: Sequence[str], keywords: dict[str, Any]) -> None:
        self.calls.append((given, keywords))
        if self.refuses:
            raise self.refuses
        if any(len(prompt) > LONGEST for prompt in prompts):
            raise UsageError(f"the prompt is longer than {LONGEST}: shorten it")

    def _pieces(self, prompt: str) -> Iterator[str]:
        yield PIECES[0]
        if prompt in self.failures:
            raise self.failures[prompt]
        if prompt == "slow":
            time.sleep(600)
        yield from PIECES[1:]

    def _texts(self, prompts: Sequence[str], n: int) -> Iterator[list[FakeGeneration]]:
        for prompt in prompts:
            if prompt in self.failures:
                raise self.failures[prompt]
            if prompt == "slow":
                time.sleep(600)
            self.taken.append(prompt)
            if self.ranks:
                yield [
                    FakeGeneration(text=f"{prompt}#{k}", score=-0.5 - k, similarity=1 / (1 + k))
                    for k in range(max(1, n - 1))
                ]
            else:
                told = {"draft": self.drafts, "top_logprobs": self.tops}
                yield [FakeGeneration(text=f"{prompt}#{k}", **told) for k in range(n)]


if __name__ == "__main__":
    loading.open_model = lambda *_, **__: loading.OpenedModel(model=FakeTextModel(), runtime="onnx")
    raise SystemExit(main())
