"""Measure a frontier again: `python scripts/measure_recipe.py QUANTIZE.json`.

QUANTIZE.json is what `kvcast quantize --json` printed. Each point is opened as a user opens it, and
its likeliest tokens are compared with those of fp32. Nothing of the search is used: the calls that
the model in fp32 makes of its runtime are noted one by one, and made again, a token a call. The
exit code is 1 if a share of flips is another one.
"""

import copy
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import kvcast

CALLS = ("new_cache", "encode", "reset", "prefill", "decode", "truncate", "reorder")
PIECE = 512
"""Tokens of a text that are read together."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def main(words: Sequence[str]) -> int:
    """Print each point's flips as they were told and as they are; return the exit code."""
    document = json.loads(Path(words[0]).read_text(encoding="utf-8"))
    name, positions = document["model"], document["positions"]
    exact = kvcast.load(name, runtime="native", quantize="none")
    calls = list(_calls(exact, document["on"], positions))
    expected = list(_likeliest(exact.runtime, calls, positions))
    wrong = 0
    for point in document["points"]:
        likeliest = list(_likeliest(_opened(name, point).runtime, calls, positions))
        flips = sum(a != b for a, b in zip(likeliest, expected, strict=True)) / len(expected)
        wrong += flips != point["flips"]
        print(f"{point['name']:12} told {point['flips']:.4%}, measured {flips:.4%}")
    print(f"{len(expected)} tokens; {wrong} of {len(document['points'])} points differ")
    return 1 if wrong or len(expected) != positions else 0


def _opened(name: str, point: dict[str, Any]) -> Any:
    if point["recipe"] is None:
        return kvcast.load(name, runtime="native", quantize=point["name"])
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.json"
        recipe.write_text(json.dumps(point["recipe"]), encoding="utf-8")
        return kvcast.load(name, quantize=str(recipe))


def _calls(model: Any, on: str, positions: int) -> Iterator[Call]:
    """Yield the calls of a runtime that make the model's tokens of a recording or a text."""
    if model.task == "transcribe":
        yield from _noted(model, model.transcribe(on, temperature=0.0), positions)
        return
    text = Path(on).read_text(encoding="utf-8-sig")
    if hasattr(model, "chat_tokens"):  # decoder-only: the text is read as it is
        yield from _reading(model.encoded(text).tokens[:positions], model.dimensions.max_positions)
        return
    lines = (line for line in text.splitlines() if line.strip())
    options = {"max_new_tokens": 128, "temperature": 0.0, "beam": 1, "n": 1}
    yield from _noted(model, (model.generate(line, **options) for line in lines), positions)


def _reading(tokens: Any, most: int) -> Iterator[Call]:
    each = min(PIECE, most)
    for first in range(0, len(tokens), each):
        piece = tokens[first : first + each]
        if len(piece) > 1:
            yield "new_cache", (1, len(piece)), {}
            yield "prefill", ([piece[:1]],), {}
            for i in range(1, len(piece)):
                yield "decode", ([piece[i : i + 1]],), {}


def _noted(model: Any, results: Any, positions: int) -> list[Call]:
    """Take results until there are enough tokens; return the calls, without their caches."""
    calls: list[Call] = []

    def noting(name: str, method: Any) -> Any:
        def call(*given: Any, **keywords: Any) -> Any:
            own = given if name == "new_cache" else (given[0], *given[2:])
            if name in ("encode", "reset", "truncate", "reorder"):
                own = given[1:]
            calls.append((name, copy.deepcopy(own), dict(keywords)))
            return method(*given, **keywords)

        return call

    for name in CALLS:
        if hasattr(model.runtime, name):
            setattr(model.runtime, name, noting(name, getattr(model.runtime, name)))
    for _ in results:
        if sum(name in ("prefill", "decode") for name, _, _ in calls) >= 2 * positions:
            break
    for name in CALLS:
        vars(model.runtime).pop(name, None)
    return calls


def _likeliest(runtime: Any, calls: Sequence[Call], positions: int) -> Iterator[int]:
    """Yield the likeliest token after each prompt that is continued, and after each token."""
    cache, waiting, count = None, list[int](), 0
    for name, given, keywords in calls:
        if name == "new_cache":
            cache = runtime.new_cache(*given, **keywords)
        elif name in ("prefill", "decode"):
            logits, cache = getattr(runtime, name)(given[0], cache, *given[1:], **keywords)
            best = int(logits[0, -1].argmax())
            waiting = [best] if name == "prefill" else [*waiting, best]
            if name == "decode":
                yield from waiting[: positions - count]
                count, waiting = count + len(waiting), []
        else:
            cache = getattr(runtime, name)(cache, *given, **keywords)
        if count >= positions:
            return


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
