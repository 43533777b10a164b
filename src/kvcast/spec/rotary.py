"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864): the angle at each position.

All published ways of extending it to longer texts only change the frequencies and one factor, so
models just use a table of cosines and one of sines. Pairs are in halves: channel i of a head is
rotated with channel i + head_dim / 2, as in Hugging Face's checkpoints. Knows no configuration
files.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError

SCALINGS = ("none", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """The angles of one kind of layer.

    Attributes:
        base: the slowest pair turns by base ** -(1 - 2 / head_dim) radians per position.
        scaling: one of SCALINGS, which decides on the attributes below.
        factor: how many times longer than in training ("linear", "llama3", "yarn").
        low_frequency: "llama3": pairs with fewer turns over `trained_positions` are scaled fully;
            "yarn": its beta_slow.
        high_frequency: "llama3": pairs with more turns are not scaled; "yarn": its beta_fast.
        trained_positions: the length used in training, before the context was extended.
        attention_factor: "yarn": factor on cosines and sines; None: 0.1 ln(factor) + 1.

    """

    base: float
    scaling: str = "none"
    factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    trained_positions: int = 0
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise KvcastError(
                f"rotary scaling {self.scaling!r} is not supported: one of {', '.join(SCALINGS)}"
            )
        if not (self.base > 1 and self.factor >= 1 and math.isfinite(self.base * self.factor)):
            raise KvcastError(f"rotary base {self.base} or factor {self.factor} is out of range")
        if self.scaling in ("llama3", "yarn") and self.trained_positions <= 0:
            raise KvcastError(f"rotary scaling {self.scaling} needs the trained length")
        if self.scaling in ("llama3", "yarn") and not 0 < self.low_frequency < self.high_frequency:
            raise KvcastError(
                f"rotary frequencies {self.low_frequency} and {self.high_frequency} must be above "
                "0 and in this order"
            )

    def tables(
        self, positions: int, head_dim: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return cosines and sines [positions, head_dim / 2] for positions 0, 1, 2, ..."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * self.frequencies(head_dim)
        amplitude = np.float32(self._amplitude())
        return np.cos(angles) * amplitude, np.sin(angles) * amplitude

    def frequencies(self, head_dim: int) -> NDArray[np.float32]:
        """Return radians per position, [head_dim / 2], fastest first.

        Rounds to float32 at the same steps as transformers: at position 8,000, the last bit of a
        frequency changes a cosine by 5e-4.
        """
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        # NumPy's float32 power may be wrong by two bits.
        periods = np.power(self.base, exponents, dtype=np.float64).astype(np.float32)
        plain: NDArray[np.float32] = np.float32(1) / periods
        slowed: NDArray[np.float32] = np.float32(1) / (np.float32(self.factor) * periods)
        if self.scaling == "linear":
            return np.asarray(plain / np.float32(self.factor), np.float32)
        if self.scaling == "llama3":
            return self._llama3(plain)
        return self._yarn(plain, slowed) if self.scaling == "yarn" else plain

    def _amplitude(self) -> float:
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _llama3(self, plain: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale slow pairs, keep fast ones, blend in between (Llama 3.1's rule)."""
        turns = np.float32(self.trained_positions) / (np.float32(2 * math.pi) / plain)
        blend = (turns - self.low_frequency) / (self.high_frequency - self.low_frequency)
        kept = blend.clip(0, 1)
        blended = (1 - kept) * plain / self.factor + kept * plain
        return np.asarray(blended, np.float32)

    def _yarn(self, plain: NDArray[np.float32], slowed: NDArray[np.float32]) -> NDArray[np.float32]:
        """Blend by a pair's index (Peng et al. 2023, arXiv:2309.00071, section 3.2)."""
        head_dim = 2 * len(plain)

        def index_at(turns: float) -> float:
            ratio = self.trained_positions / (turns * 2 * math.pi)
            return head_dim * math.log(ratio) / (2 * math.log(self.base))

        low = max(math.floor(index_at(self.high_frequency)), 0)
        high = min(math.ceil(index_at(self.low_frequency)), head_dim - 1)
        ramp = (np.arange(len(plain), dtype=np.float32) - low) / max(high - low, 0.001)
        kept = 1 - ramp.clip(0, 1)
        return np.asarray(slowed * (1 - kept) + plain * kept, np.float32)
