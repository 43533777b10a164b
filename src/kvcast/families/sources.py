"""What encoder-decoders over sources of tokens share: T5, BART and their relatives.

Knows neither, only the sizes that both have.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from kvcast.families.base import Probe
from kvcast.families.caches import EncoderDecoderSizes, self_and_cross_caches
from kvcast.families.programs import (
    LENGTHS_OF_SOURCES,
    Argument,
    ProgramSignature,
    cross_argument,
    decode_program,
    encode_program,
)
from kvcast.families.programs import SOURCE as SOURCE_NAME
from kvcast.spec.program import Node

SOURCE, SOURCE_LENGTHS = Node(SOURCE_NAME), Node(LENGTHS_OF_SOURCES.name)
"""Inputs of `encode`: tokens [batch, t] and lengths [batch]; `decode` takes the lengths, too."""

PROBED = 40
"""Tokens of a proof's longest source."""


class SourceSizes(EncoderDecoderSizes, Protocol):
    """The dimensions of such a model that determine its programs' arguments and its texts."""

    @property
    def vocab_size(self) -> int:
        """Number of tokens to choose from."""

    @property
    def start_token(self) -> int:
        """The first token of a target."""


def source_programs(dimensions: SourceSizes) -> Mapping[str, ProgramSignature]:
    """Return the signatures of `encode` and `decode`."""
    own, cross = self_and_cross_caches(dimensions)
    source = Argument(name="source", shape=("batch", "source"), dtype="int64")
    read = cross_argument(cross, "source"), LENGTHS_OF_SOURCES
    return {
        "encode": encode_program(cross, source, LENGTHS_OF_SOURCES),
        "decode": decode_program([own], ["logits"], *read),
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
