"""Work of a decoder-only model. Knows neither bytes nor rates."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from typing_extensions import override

from kvcast.families.convolutions import ATTENTION, CONVOLUTION, DELTA
from kvcast.families.decoder import DECODER, DecoderDimensions
from kvcast.families.mixtures import is_mixture
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
        keys_values = 2 * self._layers[ATTENTION] * self._keys * sizes.width
        mixers, used = self._mixers, sizes.experts_per_token
        read = min(sizes.experts, each * used)
        skipped = rows * (new - asked) * self._behind_the_last_mixer(used)
        seen = sum(
            layers * (pairs(length + new, window) - pairs(length, window))
            for window, layers in self._windows.items()
        )
        held = sum(
            layers * min(length, window - 1 if window else length)
            for window, layers in self._windows.items()
        )
        return Work(
            keys_values=2 * each * keys_values,
            linear=2 * (each * (mixers + self._feed_forwards(used)) - skipped),
            attention=2 * (2 * rows * self._mixed * seen + 3 * each * self._states),
            head=2 * rows * asked * sizes.vocab_size * sizes.width,
            weights=self._weights(each),
            matrices=keys_values + mixers + self._feed_forwards(read),
            table=sizes.vocab_size * sizes.width,
            held=rows
            * (2 * self._keys * held + self._inputs(length) + (self._states if length else 0)),
            written=each * (2 * self._keys * self._layers[ATTENTION] + self._channels)
            + rows * self._states,
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        whole = prompt + new
        return replace(self.call(0, whole, asked=whole), head=self.call(0, whole).head)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        kinds, layers_of = [], self._layers
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
        if layers := layers_of[CONVOLUTION] + layers_of[DELTA]:
            held = min(positions, max(length for _, _, length in self._convolved) - 1)
            numbers = self._inputs(positions)
            kinds.append(CacheKind(kind="inputs", layers=layers, positions=held, numbers=numbers))
        if layers := layers_of[DELTA]:
            states = CacheKind(kind="state", layers=layers, positions=1, numbers=self._states)
            kinds.append(states)
        return tuple(kinds)

    @cached_property
    def _windows(self) -> Mapping[int | None, int]:
        """Number of layers with attention by window."""
        windows = enumerate(self.dimensions.windows)
        return Counter(window for i, window in windows if self.dimensions.mixer(i) == ATTENTION)

    @cached_property
    def _layers(self) -> Counter[str]:
        """Number of layers by mixer."""
        return Counter(map(self.dimensions.mixer, range(self.dimensions.layers)))

    @cached_property
    def _convolved(self) -> list[tuple[int, int, int]]:
        """Layers with convolutions, channels of each, and the convolutions' lengths."""
        sizes = self.dimensions
        convolved = [(self._layers[CONVOLUTION], sizes.width, sizes.convolution)]
        if sizes.delta is not None:
            delta = sizes.delta
            convolved.append((self._layers[DELTA], delta.channels, delta.convolution))
        return convolved

    @property
    def _channels(self) -> int:
        """Number of channels that are convolved, of all layers."""
        return sum(layers * channels for layers, channels, _ in self._convolved)

    def _inputs(self, positions: int) -> int:
        """Return how many earlier inputs convolutions read after so many positions."""
        return sum(
            layers * channels * min(positions, length - 1)
            for layers, channels, length in self._convolved
            if layers
        )

    @property
    def _states(self) -> int:
        """Numbers of all delta nets' matrices."""
        delta = self.dimensions.delta
        return 0 if delta is None else self._layers[DELTA] * delta.values * delta.key_dim

    @property
    def _mixers(self) -> int:
        """Number of weights that mixers multiply by, without those of attention's keys and values.

        Their last products are counted as `_mixed_out` says.
        """
        width, delta, layers = self.dimensions.width, self.dimensions.delta, self._layers
        queries = (2 if self.dimensions.attention_gate else 1) * self._mixed * width
        deltas = 0 if delta is None else width * sum(delta.projected)
        first = {ATTENTION: queries, CONVOLUTION: 3 * width**2, DELTA: deltas}
        return sum(layers[mixer] * (first[mixer] + self._mixed_out(mixer)) for mixer in layers)

    def _mixed_out(self, mixer: str) -> int:
        """Return the number of weights of a mixer's last product."""
        sizes = self.dimensions
        values = 0 if sizes.delta is None else sizes.delta.values
        return (
            sizes.width * {ATTENTION: self._mixed, CONVOLUTION: sizes.width, DELTA: values}[mixer]
        )

    def _behind_the_last_mixer(self, experts: int) -> int:
        """Return the number of weights that positions which do not meet the head are spared."""
        last = self.dimensions.layers - 1
        return self._mixed_out(self.dimensions.mixer(last)) + self._feed_forward(last, experts)

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
        return sum(self._feed_forward(i, experts) for i in range(self.dimensions.layers))

    def _feed_forward(self, i: int, experts: int) -> int:
        sizes = self.dimensions
        if not is_mixture(sizes, i):
            return self._inner(sizes.dense_inner or sizes.inner)
        gate = 1 if sizes.shared_inner else 0
        beside = sizes.width * (sizes.experts + gate) + self._inner(sizes.shared_inner)
        return beside + experts * self._inner(sizes.inner)

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
