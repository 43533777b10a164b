"""Chooses one token from a row of logits: the likeliest, or a draw.

A draw follows the penalties of `kvcast.text.logits_processors`.
"""

import numpy as np

from kvcast.decoding.numerics import draw, likeliest_token
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.truncation import Distribution
from kvcast.runtimes.base import Float32


class Sampler:
    """Chooses the tokens of one sequence, from numbers that no other sequence draws."""

    def __init__(self, params: SamplingParams, stream: int = 0) -> None:
        """Begin a sequence; sequences of different streams draw different numbers."""
        self._distribution: Distribution | None = None
        if params.temperature > 0:
            self._distribution = Distribution(
                params.temperature, params.top_k, params.top_p, params.min_p
            )
        self._rng = np.random.default_rng((params.seed, stream))

    def __call__(self, logits_v: Float32) -> int:
        """Choose from logits [vocab], which are not changed.

        Raises KvcastError for logits that are NaN or infinite.
        """
        if self._distribution is None:
            return likeliest_token(logits_v)
        return draw(logits_v, self._distribution, self._rng.random())
