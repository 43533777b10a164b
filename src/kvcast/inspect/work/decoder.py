"""Work of a decoder-only model. Knows neither bytes nor rates."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from typing_extensions import override

from kvcast.families.convolutions import ATTENTION
from kvcast.families.decoder import DECODER, DecoderDimensions
from kvcast.inspect.work.base import CacheKind, DecoderOnlyWork, Work, pairs


@dataclass(frozen=True, kw_only=True)
class DecoderWork(DecoderOnlyWork):
    """A decoder-only model. Each token multiplies by the experts that it is routed to.

    A call reads every expert that its tokens could be routed to, at most all, once.
    """

    dimensions: DecoderDimensions

    @cached_property
    @override
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return DECODER.tensor_shapes(self.dimensions)

    @property
    @override
    def usual_prompt(self) -> int:
        return 1000

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        sizes, each = self.dimensions, rows * new
        attending, convolving = sum(self._windows.values()), self._convolutions
        convolution = 4 * sizes.width**2
        keys_values = 2 * self._keys * sizes.width
        attention = 2 * self._mixed * sizes.width
        read = min(sizes.experts, each * sizes.experts_per_token)
        seen = sum(
            layers * (pairs(length + new, window) - pairs(length, window))
            for window, layers in self._windows.items()
        )
        held = sum(
            layers * min(length, window - 1 if window else length)
            for window, layers in self._windows.items()
        )
        return Work(
            keys_values=2 * each * attending * keys_values,
            linear=2
            * each
            * (
                attending * attention
                + convolving * convolution
                + self._feed_forwards(sizes.experts_per_token)
            ),
            attention=2 * 2 * rows * self._mixed * seen,
            head=2 * rows * asked * sizes.vocab_size * sizes.width,
            weights=self._weights(each),
            matrices=attending * (keys_values + attention)
            + convolving * convolution
            + self._feed_forwards(read),
            table=sizes.vocab_size * sizes.width,
            held=rows * (2 * self._keys * held + convolving * sizes.width * self._inputs(length)),
            written=each * (2 * self._keys * attending + convolving * sizes.width),
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        return self.call(0, prompt + new)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        kinds, sizes = [], self.dimensions
        for window, layers in self._windows.items():
            held = min(window or positions, positions)
            kinds.append(
                CacheKind(
                    kind="ring" if window else "linear",
                    layers=layers,
                    positions=held,
                    numbers=layers * 2 * self._keys * held,
                )
            )
        if layers := self._convolutions:
            held = self._inputs(positions)
            numbers = layers * sizes.width * held
            kinds.append(CacheKind(kind="inputs", layers=layers, positions=held, numbers=numbers))
        return tuple(kinds)

    @cached_property
    def _windows(self) -> Mapping[int | None, int]:
        """Number of layers with attention by window."""
        windows = enumerate(self.dimensions.windows)
        return Counter(window for i, window in windows if self.dimensions.mixer(i) == ATTENTION)

    @property
    def _convolutions(self) -> int:
        """Number of layers with convolutions."""
        return self.dimensions.layers - sum(self._windows.values())

    def _inputs(self, positions: int) -> int:
        """Return how many earlier inputs a convolution reads after so many positions."""
        return min(positions, self.dimensions.convolution - 1)

    @property
    def _mixed(self) -> int:
        """Size of all heads together."""
        return self.dimensions.heads * self.dimensions.head_dim

    @property
    def _keys(self) -> int:
        """Size of one position's keys in one layer."""
        return self.dimensions.kv_heads * self.dimensions.head_dim

    @property
    def _mixtures(self) -> int:
        """Number of layers with experts."""
        sizes = self.dimensions
        return sizes.layers - len(sizes.dense_layers) if sizes.experts else 0

    def _feed_forwards(self, experts: int) -> int:
        """Return the number of weights of all feed-forwards, with so many experts of each."""
        sizes = self.dimensions
        gate = 1 if sizes.shared_inner else 0
        beside = sizes.width * (sizes.experts + gate) + self._inner(sizes.shared_inner)
        dense = (sizes.layers - self._mixtures) * self._inner(sizes.dense_inner or sizes.inner)
        return dense + self._mixtures * (beside + experts * self._inner(sizes.inner))

    def _inner(self, inner: int) -> int:
        """Return the number of weights of one feed-forward: up, down and, in most models, gate."""
        matrices = 3 if self.dimensions.gated else 2
        return matrices * self.dimensions.width * inner

    def _weights(self, tokens: int) -> int:
        sizes = self.dimensions
        rows = 0 if sizes.tied else sizes.vocab_size
        looked_up = (rows + sizes.learned_positions * sizes.max_positions) * sizes.width
        idle = sizes.experts - min(sizes.experts, tokens * sizes.experts_per_token)
        return self.parameters - looked_up - self._mixtures * idle * self._inner(sizes.inner)
