"""Names of result files: after their input, without collisions.

Knows no format and no model.
"""

from collections.abc import Iterable
from pathlib import Path

from kvcast.errors import UsageError
from kvcast.transcripts.folders.finding import folded

STANDARD_INPUT = "-"


def shown(source: str) -> str:
    """Return the name of an input for messages."""
    return "standard input" if source == STANDARD_INPUT else source


def stem(source: str) -> str:
    """Return the name, without extension, of the files that belong to an input."""
    return "stdin" if source == STANDARD_INPUT else Path(source).stem


def refuse_shared_names(sources: Iterable[str]) -> None:
    """Raise UsageError if two inputs would write the same files."""
    owners: dict[str, str] = {}
    for source in sources:
        name = folded(stem(source))
        if name in owners:
            other = owners[name]
            same = stem(source) == stem(other)
            where = "" if same else " where capitals and accents do not count"
            raise UsageError(
                f"{other} and {source} would both be saved as {stem(other)}.*{where}; "
                "transcribe them in two runs, each with its own --output-dir"
            )
        owners[name] = source
