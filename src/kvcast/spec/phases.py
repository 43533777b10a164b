"""Phases of an export, as a progress callback hears of them.

Each phase begins with one of the words reading, exporting, quantising, compiling, proving and
sealing; where a model has several programs, the program's name follows: "compiling decode".
"""

from collections.abc import Callable
from typing import TypeAlias

OnPhase: TypeAlias = Callable[[str], None]
"""Called with each phase as it begins."""


def ignore_phase(phase: str) -> None:
    """Do nothing: for callers that show no progress."""
