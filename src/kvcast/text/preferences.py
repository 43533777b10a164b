"""Preferences: a text's bias and penalties on scores, before a token is chosen.

The order is vLLM's: bias, repetition penalty, then presence and frequency penalties. A first or
last token that is forced takes the place of all of them.
Knows nothing of how a token is chosen.
"""

import numpy as np

from kvcast.decoding.filters import (
    LogitBias,
    LogitFilter,
    NoRepeatNgram,
    NoSourceNgram,
    OccurrencePenalties,
    RepetitionPenalty,
    SuppressSequences,
)
from kvcast.decoding.params import SamplingParams
from kvcast.engine.requests import Histories, Prompt
from kvcast.runtimes.base import Float32


class Preferences:
    """The preferences of one text, or of the rows of a search."""

    def __init__(self, params: SamplingParams) -> None:
        self._bias: list[LogitFilter] = [LogitBias(b)] if (b := params.biases) else []
        self._of_all: list[LogitFilter] = []
        if params.repetition_penalty != 1:
            self._of_all.append(RepetitionPenalty(params.repetition_penalty))
        if params.no_repeat_ngram_size is not None:
            self._of_all.append(NoRepeatNgram(params.no_repeat_ngram_size))
        if params.suppress_sequences:
            self._of_all.append(SuppressSequences(params.suppress_sequences))
        self._of_written: list[LogitFilter] = []
        if params.presence_penalty or params.frequency_penalty:
            self._of_written.append(
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
        """Tell whether there are any for the token after those seen."""
        return (
            bool(self._bias or self._of_all or self._of_written) or self._forced(seen) is not None
        )

    def apply(self, scores_rv: Float32, seen: Histories) -> None:
        """Change scores [rows, vocab], by which tokens are chosen after those seen."""
        if (forced := self._forced(seen)) is not None:
            scores_rv[:] = -np.inf
            scores_rv[:, forced] = 0
            return
        for of_all in (*self._bias, *self._of_all):
            of_all.apply(scores_rv, seen.all_rn)
        for of_written in self._of_written:
            of_written.apply(scores_rv, seen.written_rn)

    def _forced(self, seen: Histories) -> int | None:
        """Return the token that must follow those seen."""
        if self._last is not None and seen.length == self._room - 1:
            return self._last
        return self._first if seen.length == 0 else None
