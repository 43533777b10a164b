"""Finds the dimensions of a model by its name, to count its work.

They come from a bundle's manifest or a checkpoint's configuration, so the weights may be missing.
Knows no format.
"""

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.table import family_with
from kvcast.inspect.work import work_of
from kvcast.inspect.work.base import Counted
from kvcast.loading.components import dimensions_of

__all__ = ["Counted", "counted"]


def counted(model: str, source: int | None = None) -> Counted:
    """Return a model to count: a bundle, a checkpoint, a folder with a configuration, a hub id.

    `source` is the length of a source of tokens; None: the default. Raises KvcastError with one
    line; InputMissingError if nothing has that name.
    """
    dimensions = dimensions_of(locate(model))
    if source is None:
        return work_of(dimensions)
    if "source" in family_with(dimensions).programs(dimensions)["decode"].sizes:
        return work_of(dimensions, source=source)
    raise UsageError(f"{model} is not a T5, which --source is for: drop it")
