"""The BART, or relative of it, that `kvcast.load` returns, ready to generate text.

Knows no file format and no runtime.
"""

from kvcast.families.bart import BartDimensions
from kvcast.runtimes.base import EncoderDecoder
from kvcast.text.sources import EncodedSourceModel
from kvcast.tokenizers.base import TextTokenizer


class BartModel(EncodedSourceModel):
    """A runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: BartDimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, "BART", dimensions.source_tokens)
        self.dimensions = dimensions
