"""Operations and bytes read of a model's calls, counted from its dimensions alone.

Counted once, for `kvcast inspect cost` and for the floors of `kvcast bench`. Each family has a
class that meets `kvcast.inspect.work.base.Counted`; `kvcast.inspect.work.floor` alone knows bytes
and rates. Knows no clocks.
"""

from typing import Any

from kvcast.families.table import family_with
from kvcast.inspect.work.base import Counted
from kvcast.spec.runtimes import imported


def work_of(dimensions: Any, **sizes: int) -> Counted:
    """Return the work counter of a model with these dimensions.

    `sizes` are what the family's class takes beside them.
    """
    counted: Counted = imported(family_with(dimensions).work_class)(dimensions=dimensions, **sizes)
    return counted
