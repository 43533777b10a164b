"""Draw the pictures of docs/concepts.md, from what is computed: `python scripts/pictures.py`.

Each is what `kvcast inspect masks --svg` draws. With `--check` nothing is written; the exit code is
1 if a picture is not what it would be.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvcast.inspect.masks import MaskedCalls, SourceAndTarget, draw, masks
from kvcast.inspect.schedule import Schedule

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES: Mapping[str, MaskedCalls] = {
    "linear": Schedule.of((3,), window=None, chunk=2, new=2),
    "ring": Schedule.of((4, 1, 3), window=3, chunk=2, new=5),
    "written-first": Schedule.of((4,), window=3, chunk=2, new=2, capacity=4),
    "unilm": SourceAndTarget(source=5, target=3),
}


def drawn(name: str) -> str:
    """Return a picture's SVG document."""
    calls = PICTURES[name]
    return draw(calls.title(), list(masks(calls)))


def main(arguments: Sequence[str]) -> int:
    """Write all pictures, or compare them; return the exit code."""
    different = []
    for name in PICTURES:
        file, picture = FOLDER / f"{name}.svg", drawn(name)
        if not file.exists() or file.read_text("utf-8") != picture:
            different.append(file)
            if "--check" not in arguments:
                file.write_text(picture, "utf-8")
    print(*different, sep="\n", end="\n" * bool(different))
    return int("--check" in arguments and bool(different))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
