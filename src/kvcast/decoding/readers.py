"""How a kind of model takes prompts, and which loop writes after them.

Puts together a runtime, the rows over it and the loops. Knows nothing of how tokens are chosen, or
what they mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from kvcast.decoding.continuous import write
from kvcast.decoding.drafts import Draft
from kvcast.decoding.in_step import write_in_step
from kvcast.decoding.prefixes import Prefix, Start
from kvcast.decoding.rows import Beginning, Tokens, read_prompts, read_sources
from kvcast.errors import UsageError
from kvcast.runtimes.base import EncoderDecoder


class Reader(Protocol):
    """Takes prompts: to continue them, or to answer them."""

    @property
    def held(self) -> Tokens:
        """What is in the cache before any prompt."""

    def preceding(self, prompt: Tokens) -> Tokens:
        """Return what a sequence holds before the text: what was held is its begin."""

    def begin(self, prompts: Sequence[Tokens], capacity: int) -> Beginning:
        """Read prompts; no sequence will come to more than `capacity` positions."""

    def write(
        self, prompts: Sequence[Tokens], drafts: Sequence[Sequence[Draft]], rows: int
    ) -> Iterator[Draft]:
        """Write the drafts of each prompt, as many for each, at most `rows` at once.

        Yields each draft whenever it has got a token. The drafts of one prompt share its
        computation.
        """


@dataclass(frozen=True)
class PromptReader:
    """A decoder-only model, whose texts continue their prompts.

    Attributes:
        start: what is computed already.
        chunk: most tokens of a prompt that are read in one call.

    """

    start: Start
    chunk: int

    def __post_init__(self) -> None:
        if self.chunk < 1:
            raise UsageError(f"chunk must be 1 or more, not {self.chunk}")

    @property
    def held(self) -> Tokens:
        """See the protocol."""
        return self.start.tokens

    def preceding(self, prompt: Tokens) -> Tokens:
        """See the protocol."""
        return (*self.start.tokens, *prompt)

    def compute(self, prompt: Tokens) -> Prefix:
        """Read one prompt, to be continued any number of times."""
        return self.start.after(prompt, self.chunk)

    def begin(self, prompts: Sequence[Tokens], capacity: int) -> Beginning:
        """See the protocol."""
        return read_prompts(self.start, prompts, chunk=self.chunk, capacity=capacity)

    def write(
        self, prompts: Sequence[Tokens], drafts: Sequence[Sequence[Draft]], rows: int
    ) -> Iterator[Draft]:
        """See the protocol: drafts of one each in any order, several of one prompt after it."""
        if all(len(several) == 1 for several in drafts):
            flat = list(chain.from_iterable(drafts))
            yield from write(self.start, flat, rows=rows, chunk=self.chunk)
            return
        for prompt, several in zip(prompts, drafts, strict=True):
            prefix = self.compute(prompt)
            for draft in several:
                draft.feed(len(prompt))  # the prefix holds it
            yield from write(prefix, several, rows=rows, chunk=self.chunk)


@dataclass(frozen=True)
class SourceReader:
    """An encoder-decoder model, whose targets begin with a token of their own."""

    runtime: EncoderDecoder
    start_token: int

    @property
    def held(self) -> Tokens:
        """See the protocol."""
        return ()

    def preceding(self, prompt: Tokens) -> Tokens:  # noqa: ARG002
        """See the protocol."""
        return (self.start_token,)

    def begin(self, prompts: Sequence[Tokens], capacity: int) -> Beginning:
        """See the protocol."""
        return read_sources(self.runtime, prompts, start_token=self.start_token, capacity=capacity)

    def write(
        self, prompts: Sequence[Tokens], drafts: Sequence[Sequence[Draft]], rows: int
    ) -> Iterator[Draft]:
        """See the protocol: several sources at once, or a part of one source's drafts."""
        copies = len(drafts[0])
        together = max(1, rows // copies)
        for first in range(0, len(prompts), together):
            some = drafts[first : first + together]
            capacity = max(draft.capacity for several in some for draft in several)
            beginning = self.begin(prompts[first : first + together], capacity)
            for k in range(0, copies, rows):
                part = [draft for several in some for draft in several[k : k + rows]]
                for draft in part:
                    draft.feed(1)  # the token that begins a target
                yield from write_in_step(beginning, part)
