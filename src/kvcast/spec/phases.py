"""The phases of opening and exporting a model, for progress callbacks.

A phase's text starts with reading, calibrating, exporting, quantising, compiling, proving or
sealing; if a model has several programs, the program's name follows, as in "compiling decode".
While a checkpoint is downloaded or packed, it says how much is done, as in "packing 3 of 47
tensors".
"""

from collections.abc import Callable
from typing import TypeAlias

OnPhase: TypeAlias = Callable[[str], None]
"""Called with the text of each phase when it starts."""


def ignore_phase(phase: str) -> None:
    """Do nothing; the default for callers that show no progress."""
