"""Finds the dimensions of a model by its name, to count its work.

They come from a bundle's manifest or a checkpoint's configuration, so the weights may be missing.
Knows no format.
"""

from kvcast.checkpoints.source import locate
from kvcast.errors import UsageError
from kvcast.families.t5 import T5Dimensions
from kvcast.inspect.work import work_of
from kvcast.inspect.work.base import Counted
from kvcast.inspect.work.seq2seq import T5Work
from kvcast.loading.families import dimensions_of

__all__ = ["Counted", "counted"]


def counted(model: str, source: int | None = None) -> Counted:
    """Return a model to count: a bundle, a checkpoint, a folder with a configuration, a hub id.

    `source` is the length of a T5's source; None: the default. Raises KvcastError with one line;
    InputMissingError if nothing has that name.
    """
    dimensions = dimensions_of(locate(model))
    if source is None:
        return work_of(dimensions)
    if isinstance(dimensions, T5Dimensions):
        return T5Work(dimensions=dimensions, source=source)
    raise UsageError(f"{model} is not a T5, which --source is for: drop it")
