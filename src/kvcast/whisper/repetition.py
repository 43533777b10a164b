"""A text that repeats itself without an end, as a model writes that has lost its place.

The text's end is compared with itself, shifted: a sequence has period p where each token equals the
one p before it. Knows tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvcast.whisper.tokenizer import timestamps_from

_COPIES = 4
_TOKENS = 48
"""Fewer copies, or shorter ones, are refrains, counts, or a person who says "no, no, no"."""


@dataclass(frozen=True)
class Repetition:
    """The same words over and over, up to a text's end.

    Attributes:
        begin, end: the first copy is `tokens[begin:end]`; there may be timestamps among them.
        copies: how many whole ones there are.

    """

    begin: int
    end: int
    copies: int


def repetition(tokens: Sequence[int], eot: int) -> Repetition | None:
    """Return the repetition that ends a sequence: at least 4 copies and 48 tokens of the same text.

    Args:
        tokens: of a window.
        eot: ids below it are text; timestamps and other tokens may stand between.

    """
    ids_n = np.asarray(tokens, np.int64)
    [places_t] = np.nonzero(ids_n < eot)
    text_t = ids_n[places_t]
    if len(text_t) < _TOKENS:
        return None
    backwards_t = text_t[::-1]
    # The last copy's last token is that of the one before it.
    periods = np.flatnonzero(backwards_t[1 : len(text_t) // _COPIES + 1] == backwards_t[0]) + 1
    for period in periods.tolist():
        differs = np.flatnonzero(text_t[period:] != text_t[:-period])
        begin = int(differs[-1]) + 1 if differs.size else 0
        length = len(text_t) - begin
        if length >= max(_TOKENS, _COPIES * period):
            return Repetition(
                begin=int(places_t[begin]),
                end=int(places_t[begin + period - 1]) + 1,
                copies=length // period,
            )
    return None


def without_repetition(
    tokens: Sequence[int], repetition: Repetition, timestamp_begin: int
) -> tuple[int, ...]:
    """Return the tokens to keep of a sequence that ends in a repetition.

    Where a segment was finished before it, everything before it: the window ends there, and the
    rest can be decoded again from there. Otherwise the first copy as well, with the timestamp that
    closes it, if there is one.
    """
    tokens = tuple(tokens)
    timestamps = timestamps_from(timestamp_begin)
    is_timestamp = [token in timestamps for token in tokens]
    if any(map(all, pairwise(is_timestamp[: repetition.begin]))):
        return tokens[: repetition.begin]
    closed = repetition.end < len(tokens) and is_timestamp[repetition.end]
    return tokens[: repetition.end + closed]
