"""One call for text: which drafts to write, how, and what comes of them.

Puts together the parts of `kvcast.decoding` for prompts that are tokens already. Knows no
checkpoint, no bundle and no words of prompts.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from kvcast.decoding.beam_writing import write_beams
from kvcast.decoding.beams import Hypothesis, NormalisedBeamSearch
from kvcast.decoding.drafts import Draft, Endings, Stopwatch
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.readers import Reader
from kvcast.decoding.rows import Tokens
from kvcast.decoding.sampling import RepetitionPenalty, Sampler
from kvcast.errors import KvcastError, UsageError
from kvcast.tasks.generations import TextGeneration, TextPieces, finished
from kvcast.text.base import TextTokenizer
from kvcast.text.stops import StopStrings


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a model can take.

    Attributes:
        prompt: most tokens of a prompt, or of a source.
        sequence: most tokens of a text and what precedes it in the same sequence.
        vocabulary: number of tokens to choose from.

    """

    prompt: int
    sequence: int
    vocabulary: int

    def room(self, preceding: Tokens) -> int:
        """Return how many tokens a text can have."""
        return self.sequence - len(preceding)

    def check(self, tokens: Tokens, held: int = 0) -> None:
        """Raise UsageError for a prompt, `held` tokens and these, that is empty or too long.

        Raises KvcastError for a token that the model does not have.
        """
        length = held + len(tokens)
        if not length:
            raise UsageError("the prompt is empty: give at least one character")
        if length > self.prompt:
            raise UsageError(
                f"the prompt has {length} tokens and the model takes {self.prompt} "
                "at most: shorten it"
            )
        self.check_known(tokens)

    def check_known(self, tokens: Tokens) -> None:
        """Raise KvcastError for a token that the model does not have."""
        if (last := max(tokens, default=0)) >= self.vocabulary:
            raise KvcastError(
                f"the tokenizer has a token {last}, but the model only {self.vocabulary} tokens: "
                "the files belong to two models"
            )


@dataclass(frozen=True, kw_only=True)
class Call:
    """What was asked for, checked; `watch` runs since.

    Attributes:
        reader: takes prompts.
        tokenizer: of the model.
        limits: of the model.
        params: how texts are written.
        watch: when it was asked.

    """

    reader: Reader
    tokenizer: TextTokenizer
    limits: Limits
    params: SamplingParams
    watch: Stopwatch

    def __post_init__(self) -> None:
        if self.params.beam > self.limits.vocabulary:
            raise UsageError(
                f"beam must be at most {self.limits.vocabulary}, the model's tokens, "
                f"not {self.params.beam}"
            )

    @cached_property
    def endings(self) -> Endings:
        """When a text is over."""
        return Endings(
            end_tokens=self.tokenizer.end_tokens,
            stops=StopStrings(self.params.stops),
            max_new_tokens=self.params.max_new_tokens,
            min_new_tokens=self.params.min_new_tokens,
        )

    def each(self, prompts: Sequence[Tokens]) -> Iterator[list[TextGeneration]]:
        """Return the texts of each prompt, in order, as they are done.

        Several texts of one prompt share its computation.

        Raises:
            UsageError: for no prompt, or one that is empty, or too long for the model.
            KvcastError: for a prompt's token that the model does not have.

        """
        if not prompts:
            raise UsageError("there is no prompt: give at least one")
        for prompt in prompts:
            self._check(prompt)
        return self._searched(prompts) if self.params.beam > 1 else self._written(prompts)

    def pieces(self, prompt: Tokens) -> TextPieces:
        """Return the pieces of one text; raises as `each`."""
        self._check(prompt)
        draft = self._draft(prompt, 0, self.watch)
        return TextPieces(draft, self.reader.write([prompt], [[draft]], 1))

    def _written(self, prompts: Sequence[Tokens]) -> Iterator[list[TextGeneration]]:
        streams = self._streams(prompts)
        # Texts of several prompts at once, but of no more than find room.
        n, batch = self.params.n, self.params.batch
        together = len(prompts) if n == 1 else max(1, batch // n)
        for first in range(0, len(prompts), together):
            some = prompts[first : first + together]
            drafts = [
                [self._draft(prompt, stream, self.watch.another()) for stream in several]
                for prompt, several in zip(some, streams[first:], strict=False)
            ]
            done = 0
            for _ in self.reader.write(some, drafts, batch):
                while done < len(some) and all(draft.finish_reason for draft in drafts[done]):
                    yield [finished(draft) for draft in drafts[done]]
                    done += 1

    def _searched(self, prompts: Sequence[Tokens]) -> Iterator[list[TextGeneration]]:
        params = self.params
        search = NormalisedBeamSearch(params.beam, params.length_penalty, params.early_stopping)
        for first in range(0, len(prompts), params.batch):
            some = prompts[first : first + params.batch]
            preceding = [self.reader.preceding(prompt) for prompt in some]
            rooms = [self._endings(tokens).max_new_tokens for tokens in preceding]
            ends = [len(tokens) + room for tokens, room in zip(preceding, rooms, strict=True)]
            watches = [self.watch.another() for _ in some]
            found = write_beams(
                self.reader.begin(some, max(ends) - 1),
                search,
                ended=[partial(self._ends, room) for room in rooms],
                endings=self.endings,
                penalty=RepetitionPenalty(params.repetition_penalty),
                on_step=lambda i, watches=watches: watches[i].tick(),  # type: ignore[misc]
            )
            for prompt, watch, hypotheses in zip(some, watches, found, strict=True):
                yield [self._text(prompt, watch, one) for one in hypotheses[: params.n]]

    def _text(self, prompt: Tokens, watch: Stopwatch, hypothesis: Hypothesis) -> TextGeneration:
        draft = self._draft(prompt, 0, watch)
        for token, logprob in zip(hypothesis.tokens, hypothesis.logprobs, strict=True):
            draft.push(token, logprob)
        return replace(finished(draft), score=hypothesis.score)

    def _streams(self, prompts: Sequence[Tokens]) -> list[range]:
        """Return numbers that seed each prompt's texts.

        They depend on how often the same prompt came before, and on nothing else of its
        neighbours: the order of prompts does not matter, and no text of a prompt repeats another's.
        """
        used: Counter[tuple[int, ...]] = Counter()
        streams = []
        for prompt in map(tuple, prompts):
            streams.append(range(used[prompt], used[prompt] + self.params.n))
            used[prompt] += self.params.n
        return streams

    def _draft(self, prompt: Tokens, stream: int, watch: Stopwatch) -> Draft:
        preceding = self.reader.preceding(prompt)
        return Draft(
            preceding,
            read=len(self.reader.held),
            endings=self._endings(preceding),
            choose=Sampler(self.params, stream),
            tokenizer=self.tokenizer,
            watch=watch,
            prompt_tokens=self._length(prompt),
        )

    def _endings(self, preceding: Tokens) -> Endings:
        return self.endings.within(self.limits.room(preceding))

    def _ends(self, room: int, tokens: Tokens) -> bool:
        """Tell whether the last of these new tokens ends a text."""
        if tokens[-1] in self.endings.end_tokens or len(tokens) == room:
            return True
        stops = self.endings.stops.strings
        return bool(stops) and any(stop in self.tokenizer.decode(tokens) for stop in stops)

    def _length(self, prompt: Tokens) -> int:
        return len(self.reader.held) + len(prompt)

    def _check(self, prompt: Tokens) -> None:
        self.limits.check(prompt, len(self.reader.held))


class Author:
    """Turns options into a call."""

    def __init__(
        self, reader: Callable[[int | None], Reader], tokenizer: TextTokenizer, limits: Limits
    ) -> None:
        """`reader` makes one from the option `chunk`, which is None where it was not given.

        Raises KvcastError for a token that ends texts and that the model does not have.
        """
        limits.check_known(tokenizer.end_tokens)
        self._reader = reader
        self._tokenizer = tokenizer
        self.limits = limits

    def call(self, params: SamplingParams) -> Call:
        """Return what these options ask for; raises UsageError where that cannot be served."""
        return Call(
            watch=Stopwatch(),
            reader=self._reader(params.chunk),
            tokenizer=self._tokenizer,
            limits=self.limits,
            params=params,
        )


def as_asked(
    texts: Iterator[list[TextGeneration]], prompt: str | Sequence[str], n: int
) -> TextGeneration | list[Any]:
    """Return a text where one was asked for, a list where several were."""
    found: list[Any] = [several if n > 1 else several[0] for several in texts]
    return found[0] if isinstance(prompt, str) else found
