"""Layers of decoders whose memory is a matrix of each head, which every token rewrites: sizes.

Queries, keys and values are convolved with those before, as the inputs of
`kvcast.families.convolutions` are. Knows no way of rewriting, and no other layers.
"""

from dataclasses import dataclass

from kvcast.errors import KvcastError
from kvcast.families.caches import CacheLayers
from kvcast.spec.sizes import require_positive

_LONGEST_CONVOLUTION, _LARGEST_HEAD = 1024, 4096


@dataclass(frozen=True, kw_only=True)
class StateSizes:
    """Sizes of such layers.

    Attributes:
        key_heads: number of heads of queries and keys.
        value_heads: number of heads of values, and of matrices; a multiple.
        key_dim: size of a head of queries and keys.
        value_dim: size of a head of values.
        convolution: length of the convolution, its own position included.

    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    convolution: int

    def __post_init__(self) -> None:
        names = ("key_heads", "value_heads", "key_dim", "value_dim", "convolution")
        require_positive(**{name: getattr(self, name) for name in names})
        if self.value_heads % self.key_heads:
            raise KvcastError(
                f"{self.value_heads} heads of values are not a multiple of {self.key_heads} of keys"
            )
        if self.convolution > _LONGEST_CONVOLUTION:
            raise KvcastError(f"a convolution of {self.convolution} positions is not possible")
        if max(self.key_dim, self.value_dim) > _LARGEST_HEAD:
            raise KvcastError("heads of a state are larger than any model's")

    @property
    def keys(self) -> int:
        """Size of a position's keys, and of its queries."""
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        """Size of a position's values."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Number of channels that are convolved: queries, keys and values."""
        return 2 * self.keys + self.values

    def cache(self) -> CacheLayers:
        """Describe the cache of a layer."""
        return CacheLayers(
            kind="state",
            layers=1,
            heads=self.value_heads,
            capacity=self.key_dim,
            head_dim=self.value_dim,
            length=self.convolution,
            channels=self.channels,
        )
