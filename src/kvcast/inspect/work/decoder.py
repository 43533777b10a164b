"""Work of a decoder-only model. Knows neither bytes nor rates."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from typing_extensions import override

from kvcast.families.caches import KEY_VALUE
from kvcast.families.convolutions import ATTENTION, CONVOLUTION
from kvcast.families.decoder import DECODER
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.delta_nets import DeltaNet
from kvcast.families.state_spaces import StateSpace
from kvcast.inspect.work.base import CacheKind, DecoderOnlyWork, Work, pairs

_MATRIX = re.compile(r"decoder\.layers\.(\d+)\.(?!.*(?:kernel|bias)$)")
"""Names of layers' matrices and of smaller tensors, but not of what no product is made with."""
_BEFORE_MIXING = (".attention.qkv.weight", ".attention.gate.weight", ".in.weight", ".input.weight")


class _Matrices(NamedTuple):
    """Numbers of weights of a layer's matrices.

    Attributes:
        keys_values: of the projections to keys and values.
        mixing: of other projections before positions are mixed.
        others: of all others, but for experts that a token is routed to.
        expert: of one of these.

    """

    keys_values: int
    mixing: int
    others: int
    expert: int


@dataclass(frozen=True, kw_only=True)
class DecoderWork(DecoderOnlyWork):
    """A decoder-only model. Each token multiplies by the experts that it is routed to.

    A call reads every expert that its tokens could be routed to, at most all, once.
    """

    dimensions: DecoderDimensions

    @property
    @override
    def usual_prompt(self) -> int:
        return 1000

    @override
    def call(
        self, length: int, new: int, *, rows: int = 1, inputs: int = 1, asked: int = 1
    ) -> Work:
        sizes, each, end = self.dimensions, rows * new, length + new
        # What follows the last cache that is written is computed of the asked positions alone.
        mixed = [new if i < sizes.reading else asked for i in range(sizes.layers)]
        computed = [*mixed[1:], asked]
        used = sizes.experts_per_token
        read = min(sizes.experts, each * used)
        attention = held = 0
        for i, keys in self._keys.items():
            window = sizes.windows[i]
            seen = pairs(end, window) - pairs(end - mixed[i], window)
            attention += sizes.heads * sizes.head_dim_of(i) * seen
            held += 2 * keys * min(length, window - 1 if window else length)
        multiplied = sum(
            before * of.mixing + after * (of.others + used * of.expert)
            for of, before, after in zip(self._matrices, mixed, computed, strict=True)
        )
        return Work(
            keys_values=2 * each * sum(of.keys_values for of in self._matrices),
            linear=2 * (each * self._projection + rows * multiplied),
            attention=2 * (2 * rows * attention + each * self._rewriting),
            head=2 * rows * asked * sizes.vocab_size * sizes.width,
            weights=self._weights(each),
            matrices=self._projection
            + sum(
                of.keys_values + of.mixing + of.others + read * of.expert for of in self._matrices
            ),
            table=sizes.vocab_size * sizes.width,
            held=rows * (held + self._inputs(length) + (self._states if length else 0)),
            written=each * (2 * self._written_keys + self._channels) + rows * self._states,
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        whole = prompt + new
        return replace(self.call(0, whole, asked=whole), head=self.call(0, whole).head)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        kinds, layers_of = [], self._layers
        attending = [layer for layer in DECODER.caches(self.dimensions) if layer.parts == KEY_VALUE]
        for kind, capacity in dict.fromkeys((layer.kind, layer.capacity) for layer in attending):
            alike = [
                layer for layer in attending if (layer.kind, layer.capacity) == (kind, capacity)
            ]
            held = min(capacity, positions)
            numbers = 2 * held * sum(layer.heads * layer.head_dim for layer in alike)
            kinds.append(CacheKind(kind=kind, layers=len(alike), positions=held, numbers=numbers))
        if layers := layers_of[CONVOLUTION] + len(self._state_layers):
            held = min(positions, max(length for _, _, length in self._convolved) - 1)
            numbers = self._inputs(positions)
            kinds.append(CacheKind(kind="inputs", layers=layers, positions=held, numbers=numbers))
        if layers := len(self._state_layers):
            states = CacheKind(kind="state", layers=layers, positions=1, numbers=self._states)
            kinds.append(states)
        return tuple(kinds)

    @cached_property
    def _keys(self) -> Mapping[int, int]:
        """Size of the keys of a position that each layer with attention reads."""
        sizes, layers = self.dimensions, range(self.dimensions.layers)
        attending = (i for i in layers if sizes.mixer(i) == ATTENTION)
        return {i: sizes.kv_heads_of(i) * sizes.head_dim_of(i) for i in attending}

    @property
    def _written_keys(self) -> int:
        """Size of the keys of a position that all layers write."""
        return sum(keys for i, keys in self._keys.items() if i < self.dimensions.reading)

    @cached_property
    def _matrices(self) -> list[_Matrices]:
        """Numbers of weights of each layer."""
        sizes = self.dimensions
        mixing, others, experts = ([0] * sizes.layers for _ in range(3))
        for name, shape in self.shapes.items():
            if (layer := _MATRIX.match(name)) is None:
                continue
            if len(shape) == 2:
                kind = mixing if name.endswith(_BEFORE_MIXING) else others
                kind[int(layer[1])] += prod(shape)
            elif len(shape) == 3:
                experts[int(layer[1])] += prod(shape[1:])
        own = [sum(sizes.projected(i)[1:]) if i in self._keys else 0 for i in range(sizes.layers)]
        return [
            _Matrices(keys * sizes.width, before - keys * sizes.width, *after)
            for keys, before, *after in zip(own, mixing, others, experts, strict=True)
        ]

    @property
    def _projection(self) -> int:
        """Number of weights of what gives all layers embeddings."""
        sizes = self.dimensions
        return sizes.layers * sizes.layer_embedding * sizes.width

    @cached_property
    def _layers(self) -> Counter[str]:
        """Number of layers by mixer."""
        return Counter(map(self.dimensions.mixer, range(self.dimensions.layers)))

    @cached_property
    def _convolved(self) -> list[tuple[int, int, int]]:
        """Layers with convolutions, channels of each, and the convolutions' lengths."""
        sizes = self.dimensions
        convolved = [(self._layers[CONVOLUTION], sizes.width, sizes.convolution)]
        return convolved + [(1, state.channels, state.convolution) for state in self._state_layers]

    @cached_property
    def _state_layers(self) -> list[DeltaNet | StateSpace]:
        """Sizes of each layer with a state."""
        states = map(self.dimensions.state, range(self.dimensions.layers))
        return [state for state in states if state is not None]

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
        """Numbers of all states."""
        return sum(state.values * state.key_dim for state in self._state_layers)

    @property
    def _rewriting(self) -> int:
        """Number of products that a position has with all states."""
        return sum(state.products * state.values * state.key_dim for state in self._state_layers)

    def _weights(self, tokens: int) -> int:
        sizes = self.dimensions
        rows = 0 if sizes.tied else sizes.vocab_size
        looked_up = (rows + sizes.learned_positions * sizes.max_positions) * sizes.width
        looked_up += sizes.vocab_size * sizes.layers * sizes.layer_embedding
        idle = sizes.experts - min(sizes.experts, tokens * sizes.experts_per_token)
        return self.parameters - looked_up - idle * sum(of.expert for of in self._matrices)
