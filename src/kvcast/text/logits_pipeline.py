"""Logits processors of a text: bias, penalties, forced tokens; and the budget of its reasoning.

The order is vLLM's: bias, repetition penalty, then presence and frequency penalties. A forced first
or last token replaces all of them.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np

from kvcast.chat.output_parsers import BEGIN, END, ReasoningParser
from kvcast.decoding.logits_processors import (
    LogitBias,
    LogitsProcessor,
    NoRepeatNgram,
    NoSourceNgram,
    OccurrencePenalties,
    RepetitionPenalty,
    SuppressSequences,
)
from kvcast.decoding.params import SamplingParams
from kvcast.engine.requests import Histories, Prompt
from kvcast.runtimes.base import Float32, Int64
from kvcast.tokenizers.base import TextTokenizer


class LogitsProcessors:
    def __init__(self, params: SamplingParams) -> None:
        self._bias: list[LogitsProcessor] = [LogitBias(b)] if (b := params.biases) else []
        self._of_all: list[LogitsProcessor] = []
        if params.repetition_penalty != 1:
            self._of_all.append(RepetitionPenalty(params.repetition_penalty))
        if params.no_repeat_ngram_size is not None:
            self._of_all.append(NoRepeatNgram(params.no_repeat_ngram_size))
        if params.suppress_sequences:
            self._of_all.append(SuppressSequences(params.suppress_sequences))
        self._of_generated: list[LogitsProcessor] = []
        if params.presence_penalty or params.frequency_penalty:
            self._of_generated.append(
                OccurrencePenalties(params.presence_penalty, params.frequency_penalty)
            )
        self._first, self._last = params.forced_bos_token_id, params.forced_eos_token_id
        self._source_ngram = params.encoder_no_repeat_ngram_size
        self._room = 0

    def histories(self, room: int, prompt: Prompt) -> Histories:
        """Return room for tokens, after the prompt's tokens where a penalty counts them."""
        if prompt.length > 1:  # as transformers has it
            self._first = None
        self._room = room
        if self._source_ngram is not None and prompt.input is not None:
            self._of_all.append(NoSourceNgram(self._source_ngram, prompt.input.tokens))
        return Histories(room, prompt.sequence if self._of_all else ())

    def matter(self, seen: Histories) -> bool:
        return (
            bool(self._bias or self._of_all or self._of_generated) or self._forced(seen) is not None
        )

    def apply(self, scores_rv: Float32, seen: Histories) -> None:
        if (forced := self._forced(seen)) is not None:
            scores_rv[:] = -np.inf
            scores_rv[:, forced] = 0
            return
        for of_all in (*self._bias, *self._of_all):
            of_all.apply(scores_rv, seen.all_rn)
        for of_generated in self._of_generated:
            of_generated.apply(scores_rv, seen.generated_rn)

    def _forced(self, seen: Histories) -> int | None:
        if self._last is not None and seen.length == self._room - 1:
            return self._last
        return self._first if seen.length == 0 else None


_TAIL = 16
"""Tokens at the end of a prompt that may begin the reasoning."""


class ReasoningBudget:
    def __init__(self, most: int, tokenizer: TextTokenizer, prompt_s: Int64) -> None:
        self._left = most
        self._parser = ReasoningParser(begun=has_begun(tokenizer, prompt_s))
        self._ending = _tokens_of_end(tokenizer)
        self._forced: deque[int] = deque()
        self._check()

    def forced(self) -> int | None:
        return self._forced.popleft() if self._forced else None

    def record(self, text: str) -> None:
        """Record a token by its newly certain text."""
        self._left -= self._parser.reasons
        self._parser.push(text)
        self._check()

    def _check(self) -> None:
        if self._left <= 0 and self._parser.reasons and not self._forced:
            self._forced.extend(self._ending)


def has_begun(tokenizer: TextTokenizer, prompt_s: Sequence[int] | Int64) -> bool:
    """Whether a prompt ends with the start of reasoning, as some templates' do."""
    tail = [int(token) for token in prompt_s[-_TAIL:]]
    return tokenizer.decode(tail).rstrip().endswith(BEGIN)


def _tokens_of_end(tokenizer: TextTokenizer) -> list[int]:
    if (token := tokenizer.control_tokens([END]).get(END)) is not None:
        return [token]
    empty = tokenizer.encode("")
    tokens = tokenizer.encode(END)
    return tokens[len(empty) :] if tokens[: len(empty)] == empty else tokens
