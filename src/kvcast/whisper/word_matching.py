"""Matches a text's words with those recognized in a recording; either may lack parts of the other.

A chain of *runs* is found: stretches of words that are mostly equal, in order on both sides. What
lies before, between and after runs costs nothing, however long. It is a local alignment (Smith and
Waterman 1981) that may jump.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import Int64

_DIFFERENT = -0.5  # of two words in a run that differ; equal ones count 1
_JUMP = -1.5  # of each run: more than one word brings, as some words occur anywhere

Pair = tuple[int, int]
"""The index of a given word, and of an equal recognized word."""


def matched(given: Sequence[str], recognized: Sequence[str]) -> list[Pair]:
    """Return the pairs of equal words in the best chain of runs; empty words match nothing."""
    spelled_n = [i for i, word in enumerate(given) if word]
    spelled_m = [j for j, word in enumerate(recognized) if word]
    numbers = {word: number for number, word in enumerate(dict.fromkeys([*given, *recognized]))}
    given_n = np.array([numbers[given[i]] for i in spelled_n], np.int64)
    recognized_m = np.array([numbers[recognized[j]] for j in spelled_m], np.int64)
    pairs = list(_traced(_choices(given_n, recognized_m), len(spelled_m)))
    return [
        (spelled_n[i], spelled_m[j]) for i, j in reversed(pairs) if given_n[i] == recognized_m[j]
    ]


Choices = list[NDArray[np.uint8]]
"""For each given word 3 rows of bits: continues a run, skips the recognized word, or the given."""


def _choices(given_n: Int64, recognized_m: Int64) -> Choices:
    m = len(recognized_m)
    best_m = np.zeros(m + 1, np.float32)  # of chains within the words so far, by recognized words
    run_m = np.full(m + 1, -np.inf, np.float32)  # of chains that end with the last given word
    choices = []
    for word in given_n:
        begun_m = best_m[:-1] + np.float32(_JUMP)
        continues_m = run_m[:-1] > begun_m
        scores_m = np.where(recognized_m == word, 1, _DIFFERENT).astype(np.float32)
        run_m[1:] = scores_m + np.where(continues_m, run_m[:-1], begun_m)
        before_m = best_m
        best_m = np.maximum.accumulate(np.maximum(before_m, run_m))
        skips_m = best_m[1:] == best_m[:-1], best_m[1:] == before_m[1:]
        choices.append(np.packbits([continues_m, *skips_m], axis=1))
    return choices


def _traced(choices: Choices, recognized: int) -> Iterator[Pair]:
    """Yield the pairs of the best chain's runs, the last first."""
    i, j, in_run = len(choices) - 1, recognized - 1, False
    while i >= 0 and j >= 0:
        continues, skips_recognized, skips_given = (
            int(row[j // 8]) >> (7 - j % 8) & 1 for row in choices[i]
        )
        if in_run or not (skips_recognized or skips_given):
            yield i, j
            in_run = bool(continues)
            i, j = i - 1, j - 1
        elif skips_recognized:
            j -= 1
        else:
            i -= 1
