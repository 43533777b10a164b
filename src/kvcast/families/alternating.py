"""Alternating updates (AltUp, Baykal et al. 2023, arXiv:2301.13310), as in Gemma 3n.

A token has several hidden states, its streams, as one value [rows, new, streams, width]. A layer
predicts all of them, computes one, the active, and corrects the others by how far that one is from
its prediction.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcast.errors import KvcastError
from kvcast.families.blocks import TOKENS
from kvcast.spec.program import Node, ProgramWriter

if TYPE_CHECKING:
    from kvcast.families.decoder_dimensions import DecoderDimensions

MOST_STREAMS = 8
_LEAST = math.sqrt(1e-5)  # magnitude of a stream that others are scaled by


@dataclass(frozen=True, kw_only=True)
class Alternating:
    streams: int
    active: int  # index of the stream that layers compute
    scaled: bool  # whether the active stream is scaled where a layer's embedding is gated by it
    rank: int  # of the products beside attention (LAuReL)

    def __post_init__(self) -> None:
        if not 2 <= self.streams <= MOST_STREAMS:
            raise KvcastError(f"{self.streams} streams of a token: from 2 to {MOST_STREAMS}")
        if not 0 <= self.active < self.streams:
            raise KvcastError(f"stream {self.active} is none of {self.streams}")
        if self.rank < 1:
            raise KvcastError(f"a rank of {self.rank} is not possible")

    def expand(self, write: ProgramWriter, x: Node, width: int) -> Node:
        """Project embeddings [rows, new, width] to streams of the same magnitude."""
        target = _magnitude(write, x)
        others = [
            _scaled_to(write, write.linear(x, f"decoder.streams.{i}.in", (width, width)), target)
            for i in range(1, self.streams)
        ]
        parts = [write.step("unsqueeze", part, 2) for part in (x, *others)]
        return write.step("cat", parts, 2)

    def contract(self, write: ProgramWriter, streams: Node, width: int) -> Node:
        """Return the mean of projected streams, [rows, new, width]."""
        first, *others = (self._stream(write, streams, i) for i in range(self.streams))
        target, total = _magnitude(write, first), first
        for i, stream in enumerate(others, start=1):
            projected = write.linear(stream, f"decoder.streams.{i}.out", (width, width))
            total = write.step("add", total, _scaled_to(write, projected, target))
        return write.step("mul", total, 1 / self.streams)

    def predict(
        self, write: ProgramWriter, streams: Node, i: int, dimensions: "DecoderDimensions"
    ) -> Node:
        """Add a mix of all streams to each."""
        count = self.streams
        routed = self._route(write, self.activated(write, streams), i, dimensions)
        name = f"decoder.layers.{i}.streams.predict"
        shares = write.step(
            "unflatten", write.linear(routed, name, (count**2, count)), -1, [count, count]
        )
        predicted = streams
        for stream in range(count):
            share = write.step("slice", shares, 3, stream, stream + 1)
            part = write.step("slice", streams, 2, stream, stream + 1)
            predicted = write.step("add", predicted, write.step("mul", share, part))
        return predicted

    def correct(
        self,
        write: ProgramWriter,
        predicted: Node,
        activated: Node,
        i: int,
        dimensions: "DecoderDimensions",
    ) -> Node:
        routed = self._route(write, activated, i, dimensions)
        shape = self.streams, self.streams
        shares = write.linear(routed, f"decoder.layers.{i}.streams.correct", shape)
        shares = write.step("unsqueeze", write.step("add", shares, 1.0), 3)
        change = write.step("sub", activated, self.activated(write, predicted))
        changes = write.step("mul", shares, write.step("unsqueeze", change, 2))
        return write.step("add", predicted, changes)

    def add_to_others(self, write: ProgramWriter, streams: Node, x: Node) -> Node:
        """Add [rows, new, width] to all streams but the first."""
        spans = (0, 1), (1, self.streams)
        first, others = (write.step("slice", streams, 2, *span) for span in spans)
        added = write.step("add", others, write.step("unsqueeze", x, 2))
        return write.step("cat", [first, added], 2)

    def gating(self, write: ProgramWriter, streams: Node, i: int, width: int) -> Node:
        """Return what gates a layer's embedding."""
        active = self.activated(write, streams)
        if not self.scaled:
            return active
        return write.step("mul", active, write.tensor(f"decoder.layers.{i}.streams.scale", width))

    def activated(self, write: ProgramWriter, streams: Node) -> Node:
        return self._stream(write, streams, self.active)

    def _stream(self, write: ProgramWriter, streams: Node, i: int) -> Node:
        return write.step("flatten", write.step("slice", streams, 2, i, i + 1), 2)

    def _route(
        self, write: ProgramWriter, x: Node, i: int, dimensions: "DecoderDimensions"
    ) -> Node:
        layer, width = f"decoder.layers.{i}.streams", dimensions.width
        normed = write.rms_norm(x, f"{layer}.router_norm", width, dimensions.norm_eps)
        scaled = write.step("mul", normed, 1 / width)
        routed = write.linear(scaled, f"{layer}.router", (self.streams, width))
        return write.step("tanh", routed)

    def beside_attention(
        self, write: ProgramWriter, normed: Node, i: int, dimensions: "DecoderDimensions"
    ) -> Node:
        """Return attention's input and a normed product of low rank of it."""
        layer, width = f"decoder.layers.{i}.laurel", dimensions.width
        inner = write.linear(normed, f"{layer}.in", (self.rank, width))
        product = write.linear(inner, f"{layer}.out", (width, self.rank))
        own = write.rms_norm(product, f"{layer}_norm", width, dimensions.norm_eps)
        return write.step("add", normed, own)


def _magnitude(write: ProgramWriter, x: Node) -> Node:
    """Root mean square, [rows, new, 1]."""
    return write.step("slice", write.step("moments", x), 2, 2, 3)


def _scaled_to(write: ProgramWriter, x: Node, magnitude: Node) -> Node:
    own = write.step("clamp", _magnitude(write, x), _LEAST, math.inf)
    return write.step("mul", x, write.step("div", magnitude, own))


def rarest(write: ProgramWriter, gate: Node, deviations: float) -> Node:
    """Return by how much gates exceed their mean by some standard deviations, or 0."""
    moments = write.step("moments", gate)
    mean, deviation = (write.step("slice", moments, 2, i, i + 1) for i in range(2))
    least = write.step("add", mean, write.step("mul", deviation, deviations))
    return write.step("relu", write.step("sub", gate, least))


def tokens_in(write: ProgramWriter, vocabulary: int) -> Node:
    """Return tokens with 0 in place of those beyond a vocabulary."""
    return write.step("where", write.step("lt", TOKENS, vocabulary), TOKENS, 0)


def check_sparsities(sparsities: Sequence[float], layers: int) -> None:
    if len(sparsities) not in (0, layers):
        raise KvcastError(f"{len(sparsities)} sparsities are not one for each layer")
    if not all(0 <= sparsity < 1 for sparsity in sparsities):
        raise KvcastError("the share of gates that are zero is from 0 to below 1")
