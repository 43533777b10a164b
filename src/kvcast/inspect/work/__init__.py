"""Operations and bytes read of a model's calls, counted from its dimensions alone.

Counted once, for `kvcast inspect cost` and for the floors of `kvcast bench`. Each family has a
class that meets `kvcast.inspect.work.base.Counted`; `kvcast.inspect.work.floor` alone knows bytes
and rates. Knows no clocks.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvcast.families.decoder import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.families.whisper import WhisperDimensions
from kvcast.inspect.work.base import Counted
from kvcast.inspect.work.decoder import DecoderWork
from kvcast.inspect.work.seq2seq import T5Work, UnilmWork
from kvcast.inspect.work.whisper import WhisperWork

_COUNTED: Mapping[type, Callable[..., Counted]] = {
    WhisperDimensions: WhisperWork,
    DecoderDimensions: DecoderWork,
    T5Dimensions: T5Work,
    UnilmDimensions: UnilmWork,
}


def work_of(dimensions: Any) -> Counted:
    """Return the counter for a model with these dimensions."""
    return _COUNTED[type(dimensions)](dimensions=dimensions)
