"""Counts what one call of a model multiplies and reads, from its dimensions alone.

A multiplication and an addition are two operations (FLOP). Matrix products and attention are
counted. Norms, activations, softmax and rotation are not, nor are embedding lookups, which read one
row per token. One sequence at a time. Knows no bytes and no clocks.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Protocol, Self

from typing_extensions import override

from kvcast.checkpoints import decoder_names, names
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.whisper import WhisperDimensions


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations by purpose, and how many values are read from memory.

    Attributes:
        encoder: the whole encoder.
        cross_keys_values: projecting the encoder's output to the decoder's keys and values.
        keys_values: projecting positions to keys and values.
        linear: all other products with weights in the decoder's layers.
        attention: queries with keys, and attention weights with values.
        head: hidden states to logits.
        weights: number of weights read.
        cached: number of cached key and value entries read.

    """

    encoder: int = 0
    cross_keys_values: int = 0
    keys_values: int = 0
    linear: int = 0
    attention: int = 0
    head: int = 0
    weights: int = 0
    cached: int = 0

    def __add__(self, other: Self) -> Self:
        names = (field.name for field in fields(self))
        return type(self)(**{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def flop(self) -> Mapping[str, int]:
        """Operations by part."""
        return {part: getattr(self, part) for part in PARTS}

    @property
    def operations(self) -> int:
        """All operations."""
        return sum(self.flop.values())


PARTS = tuple(f.name for f in fields(Work) if f.name not in ("weights", "cached"))


@dataclass(frozen=True, kw_only=True)
class CacheKind:
    """Cache layers of one kind, for one sequence; `numbers`: entries of all keys and values."""

    kind: str
    layers: int
    positions: int
    numbers: int


class Counted(Protocol):
    """A model whose work can be counted."""

    @property
    def parameters(self) -> int:
        """Number of weights."""

    @property
    def most_positions(self) -> int:
        """Length of the longest sequence."""

    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def usual_prompt(self) -> int:
        """Default length of a prompt."""

    def encode(self) -> Work:
        """Count what is done once, with or without a cache."""

    def project(self) -> Work:
        """Count the cross keys and values, computed once if they are cached."""

    def call(self, length: int, new: int) -> Work:
        """Count `new` tokens over a cache of `length` positions, with logits for the last one.

        The cache entries read are those from before the call that its queries see.
        """

    def recompute(self, prompt: int, new: int) -> Work:
        """Count the logits after a prompt and `new` tokens, with nothing cached."""

    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        """Return the size of the cache for a sequence of that many positions."""


@dataclass(frozen=True, kw_only=True)
class DecoderWork(Counted):
    """A decoder-only model. Each token multiplies by the experts that it is routed to.

    A call reads every expert that its tokens could be routed to, at most all, once.
    """

    dimensions: DecoderDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return sum(map(prod, decoder_names.tensor_shapes(self.dimensions).values()))

    @property
    @override
    def most_positions(self) -> int:
        return self.dimensions.max_positions

    @property
    @override
    def width(self) -> int:
        return self.dimensions.width

    @property
    @override
    def usual_prompt(self) -> int:
        return 1000

    @override
    def encode(self) -> Work:
        return Work()

    @override
    def project(self) -> Work:
        return Work()

    @override
    def call(self, length: int, new: int) -> Work:
        sizes = self.dimensions
        mixed, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        routed = max(sizes.experts_per_token, 1) * self._expert + sizes.experts * sizes.width
        linear = 2 * mixed * sizes.width + routed
        seen = sum(
            layers * (pairs(length + new, window) - pairs(length, window))
            for window, layers in self._windows.items()
        )
        held = sum(
            layers * min(length, window - 1 if window else length)
            for window, layers in self._windows.items()
        )
        return Work(
            keys_values=2 * new * sizes.layers * 2 * keys * sizes.width,
            linear=2 * new * sizes.layers * linear,
            attention=2 * 2 * mixed * seen,
            head=2 * sizes.vocab_size * sizes.width,
            weights=self._weights(new),
            cached=2 * keys * held,
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        return self.call(0, prompt + new)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        keys = self.dimensions.kv_heads * self.dimensions.head_dim
        kinds = []
        for window, layers in self._windows.items():
            held = min(window or positions, positions)
            kinds.append(
                CacheKind(
                    kind="ring" if window else "linear",
                    layers=layers,
                    positions=held,
                    numbers=layers * 2 * keys * held,
                )
            )
        return tuple(kinds)

    @cached_property
    def _windows(self) -> Mapping[int | None, int]:
        """Number of layers by window."""
        return Counter(self.dimensions.windows)

    @property
    def _expert(self) -> int:
        """Number of weights of one feed-forward: gate, up and down."""
        return 3 * self.dimensions.width * self.dimensions.inner

    def _weights(self, new: int) -> int:
        sizes = self.dimensions
        looked_up = 0 if sizes.tied else sizes.vocab_size * sizes.width
        idle = sizes.experts - min(sizes.experts, new * sizes.experts_per_token)
        return self.parameters - looked_up - sizes.layers * idle * self._expert


@dataclass(frozen=True, kw_only=True)
class WhisperWork(Counted):
    """A Whisper and one window of sound."""

    dimensions: WhisperDimensions

    @cached_property
    @override
    def parameters(self) -> int:
        return self._count("")

    @property
    @override
    def most_positions(self) -> int:
        return self.dimensions.target_positions

    @property
    @override
    def width(self) -> int:
        return self.dimensions.d_model

    @property
    @override
    def usual_prompt(self) -> int:
        """Start of transcript, language, task and no timestamps."""
        return 4

    @override
    def encode(self) -> Work:
        sizes = self.dimensions
        t, d = sizes.source_positions, sizes.d_model
        # Kernels of 3; the second convolution halves the positions.
        convolutions = 2 * 3 * (2 * t * sizes.n_mels * d + t * d * d)
        layers = sizes.encoder_layers * (2 * 12 * t * d * d + 2 * 2 * t * t * d)
        return Work(encoder=convolutions + layers, weights=self._count("encoder."))

    @override
    def project(self) -> Work:
        sizes = self.dimensions
        matrices = sizes.decoder_layers * 2 * sizes.d_model**2
        return Work(
            cross_keys_values=2 * sizes.source_positions * matrices, weights=self._cross_weights
        )

    @override
    def call(self, length: int, new: int) -> Work:
        sizes = self.dimensions
        t, d, layers = sizes.source_positions, sizes.d_model, sizes.decoder_layers
        seen = pairs(length + new, None) - pairs(length, None) + new * t
        return Work(
            keys_values=2 * new * layers * 2 * d * d,
            # Query and output of both attentions, and a feed-forward four times as wide.
            linear=2 * new * layers * 12 * d * d,
            attention=2 * 2 * layers * d * seen,
            head=2 * sizes.vocab_size * d,
            weights=self._step_weights,
            cached=layers * 2 * d * (length + t),
        )

    @override
    def recompute(self, prompt: int, new: int) -> Work:
        """Count them with the encoder's output kept, as it is kept in any case."""
        work = self.call(0, prompt + new) + self.project()
        return replace(work, cached=0)

    @override
    def cache(self, positions: int) -> tuple[CacheKind, ...]:
        sizes = self.dimensions
        held = {"linear": positions, "cross": sizes.source_positions}
        return tuple(
            CacheKind(
                kind=kind,
                layers=sizes.decoder_layers,
                positions=many,
                numbers=sizes.decoder_layers * 2 * sizes.d_model * many,
            )
            for kind, many in held.items()
        )

    @cached_property
    def _step_weights(self) -> int:
        looked_up = self._count("decoder.positions")
        return self._count("decoder.") - self._cross_weights - looked_up

    @cached_property
    def _cross_weights(self) -> int:
        return self._count("decoder.", "cross_attention.key_value")

    def _count(self, start: str, part: str = "") -> int:
        """Return the number of weights in tensors named `start`... that contain `part`."""
        shapes = names.tensor_shapes(self.dimensions)
        return sum(
            prod(shape) for name, shape in shapes.items() if name.startswith(start) and part in name
        )


def pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of a query and a key that it sees among `length` positions.

    This is the sum of min(q + 1, window) over all q below `length`.
    """
    ramp = min(length, window or length)
    return ramp * (ramp + 1) // 2 + (length - ramp) * ramp
