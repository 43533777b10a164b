"""The T5 model that `kvcast.load` returns, ready to generate text.

Knows no file format and no runtime.
"""

from kvcast.families.t5 import T5Dimensions
from kvcast.runtimes.base import EncoderDecoder
from kvcast.text.sources import EncodedSourceModel
from kvcast.tokenizers.base import TextTokenizer


class T5Model(EncodedSourceModel):
    """A T5 runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5Dimensions
    ) -> None:
        super().__init__(runtime, tokenizer, dimensions, "T5")
        self.dimensions = dimensions
