"""Names of the transcripts of a folder's recordings: no two share a file.

A transcript lies where its recording does, below the other folder: `talks/a.mp3` becomes
`talks/a.txt`. Where recordings of one folder differ in their extension alone, each keeps its
whole name: `a.mp3.txt` and `a.wav.txt`. Knows no format: names come without their extension.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath


def named(paths: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return a name for each recording's transcripts, by the recording's path.

    Args:
        paths: of recordings, relative to their folder.
        given: names by path that were given before, which stay, whether the recording is among
            `paths` or not.

    Returns:
        Names relative to the other folder. They differ even where capitals and the composition
        of accents do not count, as in macOS's and Windows's file systems.

    """
    taken = {folded(name) for name in given.values()}
    names = {path: given[path] for path in paths if path in given}
    fresh = [path for path in paths if path not in given]
    claims = Counter(claim for path in paths for claim in {folded(_stem(path)), folded(path)})
    for path in fresh:
        stem = _stem(path)
        bare = [stem] if claims[folded(stem)] == 1 else []
        numbered = (f"{path}-{number}" for number in itertools.count(2))
        candidates = itertools.chain(bare, [path], numbered)
        names[path] = next(name for name in candidates if folded(name) not in taken)
        taken.add(folded(names[path]))
    return names


def may_be_named(path: str, name: str) -> bool:
    """Tell whether `name` is one that `named` could have given to the recording at `path`."""
    number = name.removeprefix(f"{path}-")
    return name in {path, _stem(path)} or (number != name and number.isdecimal())


def _stem(path: str) -> str:
    return PurePosixPath(path).with_suffix("").as_posix()


def folded(name: str) -> str:
    """Return an equal key for names that some file systems take for the same."""
    return unicodedata.normalize("NFC", name).casefold()
