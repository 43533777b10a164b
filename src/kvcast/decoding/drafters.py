"""Drafters guess a sequence's next tokens, so that a model verifies several in one call."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from typing_extensions import override

from kvcast.decoding.logits_processors import LogitsProcessor
from kvcast.engine.requests import Prompt
from kvcast.runtimes.base import EncoderDecoder, Float32, Int64, Runtime, exclusive
from kvcast.runtimes.trial import Trial, roll_back

SURE = 0.4
"""Least probability, to a drafting model, of a token that is worth checking."""


class Guess(NamedTuple):
    """Tokens that may come next; guesses of one kind have about the same acceptance rate."""

    tokens: Sequence[int]
    kind: int = 0


NO_GUESS = Guess(())


class Drafter(Protocol):
    @property
    def is_free(self) -> bool:
        """Whether a guess costs almost nothing compared with a model call."""

    def guess(self, history: Sequence[int], most: int) -> Guess:
        """Return up to `most` tokens; `history`, with the prompt, only grows between calls."""


class Drafting(Protocol):
    def begin(
        self, prompt: Prompt, capacity: int, filters: Sequence[LogitsProcessor] = ()
    ) -> Drafter:
        """Return a drafter of up to `capacity` positions; `filters` bar tokens as the request's."""


class PromptLookup(Drafter):
    """Prompt lookup: the longest suffix that occurred before continues as it did then.

    Text that quotes its prompt, a `former` text or itself is guessed well (A. Saxena, "Prompt
    Lookup Decoding", 2023). As in LZ77 compressors, a chain links the places that end with the same
    pair of tokens, the latest first; a bounded number is compared.
    """

    is_free = True
    _PLACES = 32
    _LONGEST = 16

    def __init__(self, former: Sequence[int] = ()) -> None:
        self._former = former
        # By a pair of tokens, where it ended last; by such an end, where the pair ended before.
        self._last: dict[tuple[int, int], int] = {}
        self._before: list[int] = [-1]

    @override
    def guess(self, history: Sequence[int], most: int) -> Guess:
        if self._former:
            history = [*self._former, *history]
        place, length = self._match(history)
        if not length:
            return NO_GUESS
        # Source and copy may overlap: a looping text is continued.
        period = len(history) - place
        return Guess([history[place + i % period] for i in range(most)], kind=length.bit_length())

    def _match(self, history: Sequence[int]) -> tuple[int, int]:
        for end in range(len(self._before), len(history)):
            pair = history[end - 1], history[end]
            self._before.append(self._last.get(pair, -1))
            self._last[pair] = end
        best, longest = -1, 0
        end = self._before[-1]
        for _ in range(self._PLACES):
            if end < 0 or longest == self._LONGEST:
                break
            length = self._length(history, end)
            if length > longest:
                best, longest = end, length
            end = self._before[end]
        return best + 1, longest

    def _length(self, history: Sequence[int], end: int) -> int:
        """Return the length of the common suffix of the text and its part up to `end`."""
        last, length = len(history) - 1, 2  # the pair
        most = min(end + 1, self._LONGEST)
        while length < most and history[end - length] == history[last - length]:
            length += 1
        return length


class NgramDrafting(Drafting):
    @override
    def begin(
        self, prompt: Prompt, capacity: int, filters: Sequence[LogitsProcessor] = ()
    ) -> Drafter:
        return PromptLookup()


class FormerText(Drafting):
    """Drafts from the previous text of almost the same input, such as audio that has grown."""

    def __init__(self) -> None:
        self.tokens: Sequence[int] = ()

    @override
    def begin(
        self, prompt: Prompt, capacity: int, filters: Sequence[LogitsProcessor] = ()
    ) -> Drafter:
        return PromptLookup(self.tokens)


class ModelDrafting(Drafting):
    """A smaller model of the same vocabulary drafts, with a cache of one row.

    Another sequence is prefilled from the start. `exclusive` is locked until logits are read.
    """

    def __init__(
        self, runtime: Runtime, *, longest: int, vocabulary: int, chunk: int | None = None
    ) -> None:
        """Memory is allocated by a drafter's first guess; embedding tables may be padded."""
        self._runtime = runtime
        self.exclusive = exclusive(runtime)
        self._longest = longest
        self.vocabulary = vocabulary
        self._chunk = chunk
        self._reader: object = None
        self._cache: Any = None
        self._held: list[int] = []  # the row's tokens

    @override
    def begin(
        self, prompt: Prompt, capacity: int, filters: Sequence[LogitsProcessor] = ()
    ) -> Drafter:
        return _ModelDrafter(self, prompt, min(capacity, self._longest), filters)

    def read(
        self, reader: object, prompt: Prompt, capacity: int, history: Sequence[int]
    ) -> Float32:
        """Bring the row to a reader's history, longer than its prompt; return logits [vocab]."""
        if self._reader is not reader:
            self._take_over(prompt, capacity)
            self._reader = reader
        # The last token is always fed, for its logits.
        same, most = 0, min(len(self._held), len(history) - 1)
        while same < most and self._held[same] == history[same]:
            same += 1
        if same < len(self._held):
            self._cache, same = roll_back(self._runtime, self._cache, 0, same)
            del self._held[same:]
        return self.feed(history[same:])

    def begin_trial(self, most: int) -> int:
        trial = Trial(self._runtime, self._cache, 0, kept=0, most=most)
        self._cache = trial.begin(self._cache, trial.most)
        return trial.most

    def feed(self, tokens: Sequence[int] | Int64) -> Float32:
        """Append tokens to the row; return the logits [vocabulary] after them, to be changed."""
        fed_s = np.array(tokens, np.int64)
        logits_rpv, self._cache = self._runtime.decode([fed_s], self._cache)
        self._held += fed_s.tolist()
        return logits_rpv[0, -1, : self.vocabulary]

    def _take_over(self, prompt: Prompt, capacity: int) -> None:
        inputs = [] if prompt.input is None else [prompt.input]
        if self._cache is None or self._cache.capacity < capacity:
            self._cache = self._runtime.new_cache(1, capacity, len(inputs))
        elif self._held:
            self._cache = self._runtime.reset(self._cache, [0])
        if inputs:
            encoder = cast(EncoderDecoder, self._runtime)
            self._cache = encoder.encode(self._cache, [0], *inputs[0].batch(inputs))
            self._cache = encoder.reset(self._cache, [0], [0])
        self._held = []
        tokens_s: Int64 = prompt.sequence
        size = self._chunk or len(tokens_s)
        for first in range(0, len(tokens_s), size):
            chunk_s = np.array(tokens_s[first : first + size], np.int64)
            _, self._cache = self._runtime.prefill([chunk_s], self._cache)
            self._held += chunk_s.tolist()


class _ModelDrafter(Drafter):
    """Continues greedily while the model's probability is high."""

    is_free = False

    def __init__(
        self,
        drafting: ModelDrafting,
        prompt: Prompt,
        capacity: int,
        filters: Sequence[LogitsProcessor],
    ) -> None:
        self._drafting = drafting
        self._prompt = prompt
        self._capacity = capacity
        self._filters = filters

    @override
    def guess(self, history: Sequence[int], most: int) -> Guess:
        if len(history) > self._capacity or max(history) >= self._drafting.vocabulary:
            return NO_GUESS
        with self._drafting.exclusive:
            return self._guess(history, most)

    def _guess(self, history: Sequence[int], most: int) -> Guess:
        drafting, guessed = self._drafting, list[int]()
        logits_v = drafting.read(self, self._prompt, self._capacity, history)
        # The last token of a guess is not fed.
        most = min(most, drafting.begin_trial(most - 1) + 1)
        while (token := self._likeliest(logits_v, [*history, *guessed])) is not None:
            guessed.append(token)
            if len(guessed) == most:
                break
            logits_v = drafting.feed([token])
        return Guess(guessed)

    def _likeliest(self, logits_v: Float32, history: list[int]) -> int | None:
        generated = np.array(history[self._prompt.length :], np.int64)
        for logit_filter in self._filters:
            logit_filter.apply(logits_v[None], generated[None])
        token = int(logits_v.argmax())
        weight = float(np.exp(logits_v - logits_v[token]).sum())
        # No comparison with NaN is true.
        return token if SURE * weight <= 1 else None
