"""The arguments of self-attention over a cache, as records for all runtimes.

`kvcast.models.ops.attention` defines the operator. A runtime's own form of it takes this record, of
tensors, of values of an interpreter, or of nodes of a graph. Knows no tensor library.
"""

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class SelfAttention(NamedTuple, Generic[T]):
    """A call of self-attention.

    Letters in shapes: r rows, s new positions, c capacity, h heads, d head_dim; b encoded inputs,
    of which row i reads input i // (r // b), and t their positions.

    Attributes:
        query: [r, s, h * d].
        key: [r, s, kv_heads * d].
        value: like `key`.
        key_cache: [r, kv_heads, c, d], written at the new positions.
        value_cache: like `key_cache`.
        lengths: int32 [r], positions in each row's cache before the call.
        scale: factor on the products of queries and keys.
        window: positions that a query sees, its own among them; 0: all.
        softcap: c in c tanh(x / c), applied to the scaled products; 0: none.
        cosines: [positions, d / 2], for rotary embeddings; None: no rotation.
        sines: like `cosines`.
        bias: [r or 1, h or 1, s, c], added to the scaled products; linear caches only.
        causal: whether a position sees only those up to itself.
        sinks: [h], a logit beside those of a head's queries, whose share gives nothing.
        cross_key: [b, kv_heads, t, d], keys of encoded inputs, which all queries see beside the
            cache, in the same softmax; they are not rotated, and have no bias. None: none.
        cross_value: like `cross_key`.
        cross_lengths: int32 [b], how many of an input's t positions are valid; None: all.

    """

    query: T
    key: T
    value: T
    key_cache: T
    value_cache: T
    lengths: T
    scale: float
    window: int = 0
    softcap: float = 0.0
    cosines: T | None = None
    sines: T | None = None
    bias: T | None = None
    causal: bool = True
    sinks: T | None = None
    cross_key: T | None = None
    cross_value: T | None = None
    cross_lengths: T | None = None

    @property
    def crosses(self) -> bool:
        """Whether queries see an encoded input beside the cache."""
        return self.cross_key is not None


class SharedAttention(NamedTuple, Generic[T]):
    """A call of attention over a cache that an earlier layer has written in the same call.

    Attributes:
        query: [r, a, h * d], of some of the new positions.
        key_cache: [r, kv_heads, c, d], linear: no new position has displaced another.
        value_cache: like `key_cache`.
        lengths: as of `SelfAttention`.
        offsets: int64 [a], the new positions that queries are of, of every row.
        scale: as of `SelfAttention`, and so are the others.
        window: positions that a query sees; 0: all.
        softcap: of the scaled products.
        cosines: for rotary embeddings of queries.
        sines: like `cosines`.
        sinks: [h].

    """

    query: T
    key_cache: T
    value_cache: T
    lengths: T
    offsets: T
    scale: float
    window: int = 0
    softcap: float = 0.0
    cosines: T | None = None
    sines: T | None = None
    sinks: T | None = None
