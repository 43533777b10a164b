"""What a bundle's files hold of its programs and their constants, beside what they should hold.

Each runtime reads its own files (`Target.stored`). Knows no file format and no model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.spec.program import Program


@dataclass(frozen=True)
class StoredNumbers:
    """A constant as a file holds it.

    Attributes:
        numbers: in the checkpoint's shape; a quantised matrix's are its codes' numbers.
        steps: the distance of neighbouring codes, fp32, one an output or one for each block of
            inputs: [..., outputs, blocks]; None where numbers are not quantised.
        bits: of a code; of a number where there are none.

    """

    numbers: NDArray[Any]
    steps: NDArray[np.float32] | None = None
    bits: int = 32


@dataclass(frozen=True)
class Stored:
    """What can be read of a bundle's files.

    Attributes:
        constants: by the name in programs, read when called; empty where no file tells.
        programs: by name; empty where files hold no programs as families write them.

    """

    constants: Mapping[str, Callable[[], StoredNumbers]] = field(default_factory=dict)
    programs: Mapping[str, Program] = field(default_factory=dict)
