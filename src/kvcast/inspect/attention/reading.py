"""Runs a checkpoint's own programs over a sequence, for the attention in it.

Knows no family, and neither tokens' meaning nor how a sequence was written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint
from kvcast.families.base import Family
from kvcast.families.programs import empty_caches
from kvcast.families.table import family_with
from kvcast.inspect.attention.recording import FedSequence
from kvcast.inspect.attention.weights import Kind, LayerWeights, attention_kinds, layer_weights
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Program

_ENCODE, _DECODE = "encode", "decode"


@dataclass(frozen=True)
class AttentionReader:
    """A checkpoint and the reference that runs its programs in fp32."""

    checkpoint: Checkpoint
    reference: Reference

    @cached_property
    def family(self) -> Family:
        """The family's record."""
        return family_with(self.checkpoint.dimensions)

    @property
    def kinds(self) -> set[Kind]:
        """Kinds of attention that the decoder has."""
        return attention_kinds(self._written[_DECODE])

    def layers(self, sequence: FedSequence, kind: Kind) -> Iterator[LayerWeights]:
        """Yield the weights of each layer with attention of a kind, over all that was fed."""
        dimensions, tokens_s = self.checkpoint.dimensions, sequence.tokens_s
        program = self._written[_DECODE]
        inputs = {
            **self._encoded(sequence),
            **empty_caches(self.family.caches(dimensions), len(tokens_s)),
            "tokens": tokens_s[None],
            "lengths": np.zeros(1, np.int32),
            "offsets": np.arange(len(tokens_s)),
        }
        if self.family.whole is not None:
            program = self.family.whole(dimensions)
            inputs["sources"] = np.array([sequence.prompt], np.int32)
        inputs = {name: inputs[name] for name in program.inputs}
        return layer_weights(self.reference, program, inputs, self._constant, kind)

    def _encoded(self, sequence: FedSequence) -> dict[str, NDArray[Any]]:
        """Return the inputs of `encode` and its results, by name; nothing without an encoder."""
        if _ENCODE not in self._written:
            return {}
        program = self._written[_ENCODE]
        inputs = dict(zip(program.inputs, sequence.source, strict=True))
        return {**inputs, **self.reference.results(program, inputs, list(program.outputs))}

    @cached_property
    def _written(self) -> Mapping[str, Program]:
        return self.family.written(self.checkpoint.dimensions)

    @cached_property
    def _constants(self) -> Mapping[str, NDArray[Any]]:
        return self.family.constants(self.checkpoint.dimensions, self.checkpoint.tensors)

    def _constant(self, name: str) -> NDArray[Any]:
        own = self._constants.get(name)
        return np.asarray(self.checkpoint.tensors[name] if own is None else own, np.float32)
