"""Time texts with and without drafts, in turns: the table of drafts in docs/benchmarks.md.

Two prompts ask for what they hold, in code and in prose; two let the model write freely, where
drafts can only cost. Every text is the same with drafts as without, or this fails.

    python benchmarks/scripts/time_drafts.py [MODEL [DRAFT]]     (default: demo-chat, ngram)

Needs kvcast[demo-chat].
"""

import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import kvcast

ROOT = Path(__file__).parents[2]
RUNS = 5
TOKENS = 256
CODE = (ROOT / "benchmarks/src/kvcast_bench/turns.py").read_text("utf-8").split("def say")[0]
PROSE = (ROOT / "tests/data/pride-and-prejudice.txt").read_text("utf-8")[:2500]
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "code, one name changed": (
        f"Write this file again, with `players` called `programs`:\n\n```python\n{CODE}```",
        {},
    ),
    "a summary of a given text": (f"{PROSE}\n\nSummarise the text above.", {}),
    "a story, temperature 1": ("Write a story about a lighthouse.", {"temperature": 1.0}),
    "a list, temperature 1.5": ("Name some animals and plants.", {"temperature": 1.5}),
}


def main(model: str = "demo-chat", draft: str = "ngram") -> None:
    """Print a row for each text."""
    opened = kvcast.load(model, quantize="int8", threads=2)
    ways: dict[str, dict[str, Any]] = {"plain": {}, "drafts": {"draft": draft}}
    print("| text | plain, ms a token | with drafts | speed | accepted |")
    print("| --- | --- | --- | --- | --- |")
    for name, (prompt, sampling) in TEXTS.items():
        write = partial(
            opened.generate, prompt, chat=True, max_new_tokens=TOKENS, seed=1, **sampling
        )
        times: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(RUNS + 1):
            written = {way: write(**options) for way, options in ways.items()}
            assert written["plain"].tokens == written["drafts"].tokens
            for way, text in written.items():
                if run:  # the first one warms up
                    times[way].append(1000 * text.timings.per_token)
        counts = written["drafts"].draft
        ratio = median(times["plain"]) / median(times["drafts"])
        print(
            f"| {name} | {_shown(times['plain'])} | {_shown(times['drafts'])} | {ratio:.2f} "
            f"| {counts.accepted} of {counts.proposed} |"
        )


def _shown(times: list[float]) -> str:
    return f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    main(*sys.argv[1:])
