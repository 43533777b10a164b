"""Layout of each family's caches, whatever the target. Knows dimensions and no graphs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kvcast.bundle.manifest import CacheLayers
from kvcast.families.t5 import T5Dimensions
from kvcast.families.whisper import WhisperDimensions


class CacheSizes(Protocol):
    """The dimensions of a model that determine its caches."""

    @property
    def windows(self) -> Sequence[int | None]:
        """How many positions a query of each layer sees; None: all of them."""

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads."""

    @property
    def head_dim(self) -> int:
        """Size of a head."""

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence."""


def of_layers(dimensions: CacheSizes) -> tuple[CacheLayers, ...]:
    """Describe self caches, one entry per layer, in order.

    A ring's capacity is its window, the smallest possible.
    """
    return tuple(
        CacheLayers(
            kind="ring" if window else "linear",
            layers=1,
            heads=dimensions.kv_heads,
            head_dim=dimensions.head_dim,
            capacity=window or dimensions.max_positions,
        )
        for window in dimensions.windows
    )


def of_decoder(dimensions: WhisperDimensions | T5Dimensions) -> tuple[CacheLayers, ...]:
    """Describe the self caches and the cross caches of a decoder over encoded sources."""
    capacities = {"linear": dimensions.target_positions, "cross": dimensions.source_positions}
    return tuple(
        CacheLayers(
            kind=kind,
            layers=dimensions.decoder_layers,
            heads=dimensions.decoder_heads,
            head_dim=dimensions.head_dim,
            capacity=capacity,
        )
        for kind, capacity in capacities.items()
    )


CACHES: Mapping[str, Callable[[Any], tuple[CacheLayers, ...]]] = {
    "whisper": of_decoder,
    "t5": of_decoder,
    "decoder": of_layers,
    "unilm": of_layers,
}
