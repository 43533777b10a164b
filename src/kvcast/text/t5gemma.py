"""The T5Gemma that `kvcast.load` returns, ready to generate text.

Knows no file format and no runtime.
"""

from kvcast.families.t5gemma import T5GemmaDimensions
from kvcast.runtimes.base import EncoderDecoder
from kvcast.text.sources import EncodedSourceModel
from kvcast.tokenizers.base import TextTokenizer


class T5GemmaModel(EncodedSourceModel):
    """A T5Gemma runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: EncoderDecoder, tokenizer: TextTokenizer, dimensions: T5GemmaDimensions
    ) -> None:
        sources = dimensions.source_vocab_size
        super().__init__(runtime, tokenizer, dimensions, "T5Gemma", sources)
        self.dimensions = dimensions
