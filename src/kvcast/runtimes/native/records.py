"""The record beside a compiled library: its sources, and its contents.

Knows nothing of compilers, nor of where libraries are kept.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

Fields = Mapping[str, object]


def contents(library: Path) -> Fields:
    """Return the fields by which a damaged library is recognised."""
    data = library.read_bytes()
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def is_whole(library: Path, record: Fields) -> bool:
    """Tell whether a library has the contents that are recorded of it."""
    try:
        if library.stat().st_size != record.get("size"):
            return False
        return contents(library).items() <= record.items()
    except OSError:
        return False


def read_record(path: Path) -> Fields:
    """Return a record's fields; none if it is not there or is damaged."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def write_record(path: Path, fields: Fields) -> None:
    """Write a record; raises OSError."""
    path.write_text(json.dumps(dict(fields)) + "\n", encoding="utf-8")
