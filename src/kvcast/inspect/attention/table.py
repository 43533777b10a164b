"""Prints a view of attention as text. Knows no model."""

import json
from collections.abc import Iterator

import numpy as np

from kvcast.inspect.attention.view import AttentionView
from kvcast.runtimes.base import Float32

_LEVELS = " .:-=+*#%@"
_WIDTH = 60
_MOST = 3


def render(view: AttentionView) -> str:
    """Return a line for each row: over a sound its course in time, else the heaviest tokens."""
    names = [json.dumps(token.text, ensure_ascii=False) for token in view.rows]
    width = max(map(len, names))
    lines = _courses(view) if view.over == "sound" else _heaviest(view)
    described = [
        f"{name.rjust(width)}  {line}".rstrip() for name, line in zip(names, lines, strict=True)
    ]
    return "\n".join([view.title, _legend(view), "", *described, ""])


def _legend(view: AttentionView) -> str:
    if view.over == "sound":
        bins = min(_WIDTH, view.weights_st.shape[1])
        each = view.weights_st.shape[1] * view.seconds / bins
        return (
            "rows: tokens, as they are written; when the weight is largest, and its course in "
            f"columns of {each:.2g} s"
        )
    rows = "tokens, as they are written" if view.over == "source" else "tokens, as they are read"
    return f"rows: {rows}; the {_MOST} positions with the largest weights"


def _courses(view: AttentionView) -> Iterator[str]:
    for weights_t in view.weights_st:
        seconds = (int(weights_t.argmax()) + 0.5) * view.seconds
        yield f"{seconds:6.2f} s  |{_course(weights_t)}|"


def _course(weights_t: Float32) -> str:
    bins = min(_WIDTH, len(weights_t))
    ends = np.arange(bins) * len(weights_t) // bins
    sums_b = np.add.reduceat(weights_t, ends)
    levels_b = np.rint(sums_b / max(float(sums_b.max()), 1e-30) * (len(_LEVELS) - 1))
    return "".join(_LEVELS[int(level)] for level in levels_b)


def _heaviest(view: AttentionView) -> Iterator[str]:
    for weights_t in view.weights_st:
        best = np.argsort(-weights_t, kind="stable")[:_MOST]
        yield "  ".join(
            f"{weights_t[i]:.2f} {i}:{json.dumps(view.columns[i].text, ensure_ascii=False)}"
            for i in best
            if weights_t[i] > 0
        )
