"""Rotary position embedding's angles (RoPE, Su et al. 2021, arXiv:2104.09864), and T5's buckets.

All published ways of extending RoPE to longer texts change only the frequencies and one factor, so
models use a table of cosines and one of sines. Pairs are in halves: channel i of a head is rotated
with channel i + head_dim / 2. In a partial rotation, the other pairs have angle 0.

"longrope" and "dynamic" depend on the length of the text. A cache holds rotated keys, so the
frequencies cannot change in the middle of a text: all texts use the frequencies of the model's
longest sequence, as in vLLM and llama.cpp; transformers chooses by the length of each text.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError

SCALINGS = ("none", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
_TRAINED = ("llama3", "yarn", "longrope", "dynamic")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    base: float  # the slowest pair turns by base ** -(1 - 2 / head_dim) radians per position
    scaling: str = "none"  # one of SCALINGS, which selects the attributes below
    factor: float = 1.0
    # "llama3": pairs with fewer turns over `trained_positions` are scaled fully; "yarn": its
    # beta_slow
    low_frequency: float = 1.0
    high_frequency: float = 4.0  # "llama3": more turns are not scaled; "yarn": its beta_fast
    trained_positions: int = 0  # the length used in training, before the context was extended
    # factor on cosines and sines; None: of "yarn" 0.1 ln(factor) + 1, of "longrope" sqrt(1 +
    # ln(factor) / ln(trained_positions))
    attention_factor: float | None = None
    truncate: bool = True  # "yarn": whether whole pairs bound the blend
    # the share of a head's channels that turn, from the first on; "proportional": the share of its
    # pairs, at frequencies as if all of them turned
    partial: float = 1.0
    divisors: tuple[float, ...] = ()  # "longrope": divisor of each pair's frequency
    long_divisors: tuple[float, ...] = ()  # for sequences longer than `trained_positions`
    # queries at position p are multiplied by 1 + query_beta ln(1 + floor(p / trained_positions))
    # (Llama 4, Ministral 3)
    query_beta: float = 0.0
    # whether each pair's frequency is multiplied by exp of a number of the checkpoint (LeRoPE)
    learned: bool = False

    def __post_init__(self) -> None:
        for name in ("divisors", "long_divisors"):  # lists in manifests
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.scaling not in SCALINGS:
            raise KvcastError(
                f"rotary scaling {self.scaling!r} is not supported: one of {', '.join(SCALINGS)}"
            )
        if not (self.base > 1 and self.factor >= 1 and math.isfinite(self.base * self.factor)):
            raise KvcastError(f"rotary base {self.base} or factor {self.factor} is out of range")
        if not 0 < self.partial <= 1:
            raise KvcastError(f"the rotated share of a head is above 0 to 1, not {self.partial}")
        if (self.scaling in _TRAINED or self.query_beta) and self.trained_positions <= 0:
            raise KvcastError(f"rotary scaling {self.scaling} needs the trained length")
        if self.scaling in ("llama3", "yarn") and not 0 < self.low_frequency < self.high_frequency:
            raise KvcastError(
                f"rotary frequencies {self.low_frequency} and {self.high_frequency} must be above "
                "0 and in this order"
            )
        if not (math.isfinite(self.query_beta) and self.query_beta >= 0):
            raise KvcastError(f"rotary query_beta {self.query_beta} is out of range")
        if not all(0 < x < math.inf for x in (*self.divisors, *self.long_divisors)):
            raise KvcastError("rotary divisors must be numbers above 0")

    def check(self, head_dim: int) -> None:
        pairs = self._pairs(head_dim)
        if pairs < 1 or (self.scaling == "dynamic" and self._rotated(head_dim) <= 2):
            raise KvcastError(f"{self.partial} of a head of {head_dim} has no pairs that turn")
        counts = {len(self.divisors), len(self.long_divisors)}
        if self.scaling == "longrope" and counts != {pairs}:
            raise KvcastError(f"rotary scaling longrope needs {pairs} divisors, not {counts}")
        usual = self.scaling == "longrope" and self.attention_factor is None
        if usual and self.trained_positions < 2:
            raise KvcastError("rotary scaling longrope needs a trained length of 2 or more")

    def channels(self, head_dim: int) -> int:
        """Channels of a head, from the first on, that make up pairs in files."""
        return head_dim if self.scaling == "proportional" else 2 * self._pairs(head_dim)

    def tables(
        self, positions: int, head_dim: int, learned: NDArray[Any] | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines [positions, head_dim / 2] of positions from 0 on."""
        frequencies = self.frequencies(head_dim, positions)
        if learned is not None:
            frequencies *= np.exp(learned.astype(np.float32))
        angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
        amplitude = np.ones(head_dim // 2, np.float32)
        amplitude[: self._pairs(head_dim)] = self._amplitude()
        return np.cos(angles) * amplitude, np.sin(angles) * amplitude

    def query_scales(self, positions: int) -> NDArray[np.float32]:
        """Factors on queries [positions, 1], of positions from 0 on."""
        lengths = np.arange(positions)[:, None] // max(self.trained_positions, 1)
        return (1 + self.query_beta * np.log1p(lengths)).astype(np.float32)

    def frequencies(self, head_dim: int, positions: int = 0) -> NDArray[np.float32]:
        """Radians per position [head_dim / 2], fastest first, unrotated pairs last.

        Rounded to float32 at the same steps as transformers: at position 8,000, the last bit of a
        frequency changes a cosine by 5e-4.
        """
        rotated, pairs = self._rotated(head_dim), self._pairs(head_dim)
        exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
        # NumPy's float32 power may be wrong by two bits.
        base = self._extended_base(rotated, positions)
        periods = np.power(base, exponents, dtype=np.float64).astype(np.float32)
        turning = np.zeros(head_dim // 2, np.float32)
        turning[:pairs] = self._scaled(periods, rotated, positions)[:pairs]
        return turning

    def _rotated(self, head_dim: int) -> int:
        return head_dim if self.scaling == "proportional" else int(head_dim * self.partial)

    def _pairs(self, head_dim: int) -> int:
        if self.scaling == "proportional":
            return int(self.partial * head_dim // 2)
        return -(-self._rotated(head_dim) // 2)

    def _scaled(
        self, periods: NDArray[np.float32], rotated: int, positions: int
    ) -> NDArray[np.float32]:
        plain: NDArray[np.float32] = np.float32(1) / periods
        if self.scaling in ("linear", "proportional"):
            return np.asarray(plain / np.float32(self.factor), np.float32)
        if self.scaling == "llama3":
            return self._llama3(plain)
        if self.scaling == "yarn":
            slowed: NDArray[np.float32] = np.float32(1) / (np.float32(self.factor) * periods)
            return self._yarn(plain, slowed, rotated)
        if self.scaling == "longrope":
            is_long = positions > self.trained_positions
            divisors = np.array(self.long_divisors if is_long else self.divisors, np.float32)
            return np.asarray(np.float32(1) / (divisors * periods), np.float32)
        return plain

    def _extended_base(self, rotated: int, positions: int) -> float:
        """Bloc97's and emozilla's dynamic NTK scaling, if sequences may be longer than trained."""
        if self.scaling != "dynamic" or positions <= self.trained_positions:
            return self.base
        longer = self.factor * positions / self.trained_positions - (self.factor - 1)
        return float(self.base * longer ** (rotated / (rotated - 2)))

    def _amplitude(self) -> float:
        if self.scaling not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        if self.scaling == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.trained_positions))
        return 0.1 * math.log(self.factor) + 1.0

    def _llama3(self, plain: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale slow pairs, keep fast ones, blend in between (Llama 3.1's rule)."""
        turns = np.float32(self.trained_positions) / (np.float32(2 * math.pi) / plain)
        blend = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
        kept = blend.clip(0, 1)
        blended = (1 - kept) * plain / self.factor + kept * plain
        return np.asarray(blended, np.float32)

    def _yarn(
        self, plain: NDArray[np.float32], slowed: NDArray[np.float32], rotated: int
    ) -> NDArray[np.float32]:
        """Blend by a pair's index (Peng et al. 2023, arXiv:2309.00071, section 3.2)."""

        def index_at(turns: float) -> float:
            ratio = self.trained_positions / (turns * 2 * math.pi)
            return rotated * math.log(ratio) / (2 * math.log(self.base))

        low, high = index_at(self.high_frequency), index_at(self.low_frequency)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        high += 0.001 if low == high else 0
        ramp = (np.arange(len(plain), dtype=np.float32) - low) / (high - low)
        kept = 1 - ramp.clip(0, 1)
        return np.asarray(slowed * (1 - kept) + plain * kept, np.float32)


def bucket_of(
    distances: NDArray[np.int64], buckets: int, max_distance: int, *, bidirectional: bool
) -> NDArray[np.int64]:
    """Bucket, 0 .. buckets - 1, of each distance (key minus query position); same shape.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, by mesh-tensorflow's formula: short distances
    have a bucket each, longer ones share logarithmically growing ones, up to `max_distance`, which
    is above buckets / 2; `buckets` is a multiple of 4. Bidirectionally, keys after the query have
    half of the buckets; otherwise they count as distance 0.
    """
    buckets //= 2 if bidirectional else 1
    far = np.abs(distances) if bidirectional else -np.minimum(distances, 0)
    exact = buckets // 2
    # In float32 throughout, as in mesh-tensorflow and transformers: rounding decides where the
    # logarithm falls on the border of two buckets.
    ratio = np.maximum(far, exact).astype(np.float32) / np.float32(exact)
    scaled = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(exact)
    shared = np.minimum(exact + scaled.astype(np.int64), buckets - 1)
    indices: NDArray[np.int64] = np.where(far < exact, far, shared)
    return indices + buckets * (distances > 0) if bidirectional else indices


def farthest_of(max_distance: int) -> int:
    """Return the distance from which on all share their biases."""
    return max_distance + 1


def biases_by_distance(
    table: NDArray[Any], buckets: int, max_distance: int, *, bidirectional: bool
) -> NDArray[Any]:
    """Biases [heads, distances] from a table [buckets, heads], of distances up to the farthest."""
    farthest = farthest_of(max_distance)
    distances = np.arange(-farthest, farthest + 1)
    chosen = bucket_of(distances, buckets, max_distance, bidirectional=bidirectional)
    return np.ascontiguousarray(table[chosen].T)
