"""Frames in which a window's tokens were spoken. Knows no text, no model and no seconds."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from kvcast.runtimes.base import Float32, Int64

FRAMES_PER_SECOND = 50
"""Frames of the encoder."""


@dataclass(frozen=True, eq=False)
class TokenTimes:
    """The frames of a window's n text tokens, and their probabilities.

    Attributes:
        begins_n: frame at which each token begins, and the one at which the last ends, [n + 1].
        probabilities_n: of each token, given the tokens before it, [n].
        attended_n: frame to which each token attends most, [n]; not ascending.

    """

    begins_n: Int64
    probabilities_n: Float32
    attended_n: Int64

    def padded(self, count: int) -> Self:
        """Return the times of `count` tokens; the last ones may lack times."""
        rest = count - len(self.probabilities_n)
        return replace(
            self,
            begins_n=np.pad(self.begins_n, (0, rest), mode="edge"),
            probabilities_n=np.pad(self.probabilities_n, (0, rest)),
            attended_n=np.pad(self.attended_n, (0, rest), mode="edge"),
        )
