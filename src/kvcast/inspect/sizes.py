"""Finds the dimensions of a model by its name, to count its work.

They come from a bundle's manifest or a checkpoint's configuration, so the weights may be missing.
Knows no format.
"""

from pathlib import Path

from kvcast.bundle.manifest import MANIFEST, Manifest, is_bundle
from kvcast.checkpoints.base import Dimensions
from kvcast.checkpoints.source import locate, read_dimensions
from kvcast.errors import InputOutputError, KvcastError, UsageError
from kvcast.spec.t5 import T5Dimensions
from kvcast.tasks.families import family_of
from kvcast.work import work_of
from kvcast.work.base import Counted
from kvcast.work.seq2seq import T5Work

__all__ = ["Counted", "counted"]


def counted(model: str, source: int | None = None) -> Counted:
    """Return a model to count: a bundle, a checkpoint, a folder with a configuration, a hub id.

    `source` is the length of a T5's source; None: the default. Raises KvcastError with one line;
    InputMissingError if nothing has that name.
    """
    located = locate(model)
    dimensions = _of_bundle(located) if is_bundle(located) else read_dimensions(located)
    if source is None:
        return work_of(dimensions)
    if isinstance(dimensions, T5Dimensions):
        return T5Work(dimensions=dimensions, source=source)
    raise UsageError(f"{model} is not a T5, which --source is for: drop it")


def _of_bundle(folder: Path) -> Dimensions:
    # Not `read_bundle`, which would read all weights for their checksums.
    try:
        manifest = Manifest.from_json((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise InputOutputError(f"{folder / MANIFEST} cannot be read: export it again") from None
    try:
        dimensions: Dimensions = family_of(manifest.family).dimensions(manifest.dimensions)
    except KvcastError as error:
        raise KvcastError(f"{folder}: {error}") from None
    return dimensions
