"""Text-to-text models: a text answers its source, which is read whole.

Knows no family, no file format and no runtime.
"""

from typing_extensions import override

from kvcast.errors import UsageError
from kvcast.runtimes.base import Int64
from kvcast.text.generation import EncodedText, TextGenerator, TextPrompt
from kvcast.text.params import PromptParams


class SourceTextModel(TextGenerator):
    """A model whose texts answer their sources.

    Takes the keywords of `kvcast.text.model.TextModel`, without the ones about conversations and
    chunks of prompts.
    """

    @override
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        if params.chat or params.system is not None:
            raise UsageError("this model answers a source as it is: leave out chat and system")
        if params.chunk is not None:
            raise UsageError("chunk is for prompts that are continued: a source is read whole")
        if params.special_tokens and isinstance(prompt, str):
            return self._limits.known(self.tokenizer.encode_ready(prompt))
        return self._encoded(prompt)

    def _encoded(self, source: TextPrompt | EncodedText) -> Int64:
        """Return a source's tokens; raises UsageError if all of them are special."""
        if isinstance(source, EncodedText):
            return source.tokens
        if not isinstance(source, str):
            return self._limits.ids(source)
        tokens = self.tokenizer.encode(source)
        if tokens == self.tokenizer.encode(""):
            raise UsageError("the source is empty: give at least one word")
        return self._limits.known(tokens)
