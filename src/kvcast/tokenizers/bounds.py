"""Limits on a tokenizer.json that keep the tokenizers library from hanging or filling the memory.

The library does not check its input. With an empty piece it never returns, and with a huge id it
lists every unused id below.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_MOST_TOKENS = 1 << 24
_LONGEST_PATTERN = 4096  # the longest of a published model has 400 characters
_MOST_PARTS = 256
_PARTS = ("normalizers", "pretokenizers", "processors", "decoders")
_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_bounds(description: Mapping[str, Any]) -> None:
    """Raise ValueError, KeyError or TypeError for a file that could make the library hang."""
    model = description["model"]
    if model.get("type") == "Unigram":
        _check_pieces(model["vocab"])
    else:
        _check_ids(model["vocab"].values())
    _check_ids(token["id"] for token in description.get("added_tokens") or [])
    every = [step for name in _STEPS for step in steps(description.get(name))]
    if len(every) > _MOST_PARTS:
        raise ValueError(f"it has {len(every)} steps")
    for step in every:
        for text in _texts(step):
            if len(text) > _LONGEST_PATTERN:
                raise ValueError(f"its step {step.get('type')!r} has a text too long to be one")


def _check_pieces(pieces: Iterable[Any]) -> None:
    for piece, score in pieces:
        if not isinstance(piece, str) or not piece:
            raise ValueError("its vocabulary has a piece of no characters")
        if not math.isfinite(score):
            raise ValueError(f"the score of its piece {piece!r} is not a finite number")


def _check_ids(ids: Iterable[Any]) -> None:
    if any(type(i) is not int or not 0 <= i < _MOST_TOKENS for i in ids):
        raise ValueError(f"an id of its vocabulary is not a whole number below {_MOST_TOKENS}")


def steps(step: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield a step of a tokenizer.json, and the steps nested in sequences."""
    if step is None:
        return
    yield step
    for name in _PARTS:
        for part in step.get(name) or []:
            yield from steps(part)


def _texts(step: Mapping[str, Any]) -> Iterator[str]:
    pattern = step.get("pattern")
    values = (*pattern.values(),) if isinstance(pattern, Mapping) else ()
    for value in (*values, step.get("content"), step.get("prepend")):
        if isinstance(value, str):
            yield value
