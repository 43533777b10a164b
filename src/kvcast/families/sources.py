"""What encoder-decoders over sources of tokens share: T5, BART and their relatives.

Knows neither, only the sizes that both have.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from kvcast.families.base import Probe
from kvcast.families.caches import EncoderDecoderSizes, self_and_cross_caches
from kvcast.families.programs import SOURCE as SOURCE_NAME
from kvcast.families.programs import (
    Argument,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
)
from kvcast.spec.program import Node

SOURCE, SOURCE_LENGTHS = Node(SOURCE_NAME), Node("source_lengths")
"""Inputs of `encode`: tokens [batch, t] and lengths [batch]; `decode` takes the lengths, too."""

PROBED = 40
"""Tokens of a proof's longest source."""


class SourceSizes(EncoderDecoderSizes, Protocol):
    """The dimensions of such a model that determine its programs' arguments and its proof."""

    @property
    def start_token(self) -> int:
        """The first token of a target."""


def source_programs(dimensions: SourceSizes) -> Mapping[str, ProgramSignature]:
    """Return the signatures of `encode` and `decode`."""
    own, cross = self_and_cross_caches(dimensions)
    source = Argument(name="source", shape=("batch", "source"), dtype="int64")
    lengths = Argument(name="source_lengths", shape=("batch",), dtype="int32", example=(5, 3))
    return {
        "encode": encode_program(cross, source, lengths),
        "decode": decode_program([own], ["logits"], cross_argument(cross, "source"), lengths),
    }


def source_probe(dimensions: SourceSizes, tokens: int, longest: int) -> Probe:
    """Return two sources of different lengths, of a vocabulary with so many tokens."""
    generator = np.random.default_rng(0)
    lengths_b = np.array([longest, max(1, longest // 2)], np.int32)
    source_bt = generator.integers(0, tokens, (len(lengths_b), longest))
    return Probe(
        prompts=[np.array([dimensions.start_token])] * len(lengths_b),
        source=(source_bt, lengths_b),
    )
