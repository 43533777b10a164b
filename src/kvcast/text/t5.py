"""The T5 model that `kvcast.load` returns, ready to generate text.

Knows no file format and no runtime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from typing_extensions import override

from kvcast.engine.requests import Input, Prompt
from kvcast.families.t5 import T5Dimensions
from kvcast.runtimes.base import EncoderDecoder, Int32, Int64
from kvcast.text.generation import GenerationTask, Limits
from kvcast.text.grammars import Grammars
from kvcast.text.sources import SourceTextModel
from kvcast.tokenizers.base import TextTokenizer


@dataclass(frozen=True, eq=False)
class Source(Input):
    """Tokens [t] of a source."""

    tokens: Int64

    @property
    @override
    def positions(self) -> int:
        return len(self.tokens)

    @classmethod
    @override
    def batch(cls, inputs: Sequence[Self]) -> tuple[Int64, Int32]:
        lengths_b = np.array([len(source.tokens) for source in inputs], np.int32)
        tokens_bt = np.zeros((len(inputs), lengths_b.max()), np.int64)
        for tokens_t, source in zip(tokens_bt, inputs, strict=True):
            tokens_t[: len(source.tokens)] = source.tokens
        return tokens_bt, lengths_b


class T5Model(SourceTextModel):
    """A T5 runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5Dimensions
    ) -> None:
        start = np.array([dimensions.start_token], np.int64)
        limits = Limits(
            prompt=dimensions.source_positions,
            sequence=dimensions.target_positions,
            vocabulary=dimensions.vocab_size,
        )
        super().__init__(
            GenerationTask(
                runtime=runtime,
                tokenizer=tokenizer,
                limits=limits,
                family="T5",
                read=lambda tokens: Prompt(start, input=Source(tokens)),
                encodes=True,
                grammars=Grammars(tokenizer, limits.vocabulary),
            )
        )
        self.dimensions = dimensions

    @property
    @override
    def input_bytes(self) -> int:
        sizes = self.dimensions
        numbers = 2 * sizes.decoder_layers * sizes.heads * sizes.head_dim * sizes.source_positions
        return 4 * numbers  # in fp32; there may be narrower ones
