"""A decoder-only model that is ready to generate text: what `kvcast.load` returns for one.

The one place where the words of the API meet the parts that own the options.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.numerics import log_probabilities
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.prefixes import Nothing, Prefix, Start
from kvcast.decoding.readers import PromptReader
from kvcast.errors import UsageError
from kvcast.runtimes.base import DecoderOnly
from kvcast.spec.decoder import DecoderDimensions
from kvcast.spec.options import keywords_of
from kvcast.tasks.calls import Author, Limits, as_asked
from kvcast.tasks.generations import TextGeneration, TextPieces
from kvcast.tasks.params import PromptParams
from kvcast.text.base import TextTokenizer

__all__ = ["TextGeneration", "TextModel", "TextPieces", "TextSession"]


CHUNK = 512
"""Most tokens of a prompt in one call of the model, unless another number is given."""


class TextModel:
    """A runtime with its tokenizer and dimensions."""

    task: ClassVar[Literal["generate"]] = "generate"

    def __init__(
        self, runtime: DecoderOnly, tokenizer: TextTokenizer, dimensions: DecoderDimensions
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.dimensions = dimensions
        self._author = _author(Nothing(runtime), tokenizer, dimensions)

    @keywords_of(PromptParams)
    def generate(
        self, prompt: str | Sequence[str], params: PromptParams
    ) -> TextGeneration | list[Any]:
        """Continue a prompt, or several.

        In fp32 neither `batch` nor `chunk` nor the order of prompts changes a text; in int8 what
        is multiplied in one call shares a scale. A text that has no room for `max_new_tokens`
        within what the model takes ends sooner, for its length.

        Args:
            prompt: text to continue, or several.
            params: given as keywords.

        Returns:
            For one prompt a text, for several a list in their order; with n above 1 a list of n
            takes the place of each text.

        Raises:
            UsageError: for options that cannot be served, no prompts, and prompts that are empty
                or too long.

        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        return as_asked(self._each(prompts, params), prompt, params.n)

    @keywords_of(PromptParams)
    def generate_each(
        self, prompts: Sequence[str], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        """Return the n texts of each prompt, in order, as they are done; see `generate`."""
        return self._each(prompts, params)

    @keywords_of(PromptParams)
    def stream(self, prompt: str, params: PromptParams) -> TextPieces:
        """Return an iterator of the text's pieces, which has the `result` at its end.

        Options that are about several texts stay at their defaults; see `generate`.
        """
        params.check_one_text()
        return self._author.call(params).pieces(self._tokens(prompt, params))

    def session(self, prefix: str, *, chunk: int = CHUNK) -> "TextSession":
        """Compute a prefix once, to continue it any number of times.

        Raises UsageError if it is empty or too long.
        """
        reader = PromptReader(Nothing(self.runtime), chunk)
        tokens = self.tokenizer.encode(prefix)
        self._author.limits.check(tokens)
        return TextSession(reader.compute(tokens), self.tokenizer, self.dimensions)

    def score(self, text: str | Sequence[int], *, chunk: int = 128) -> NDArray[np.float32]:
        """Return the log-probability of each token given those before it, [S - 1].

        Args:
            text: or its tokens, two or more.
            chunk: tokens in one call of the model, which gives logits for each.

        Raises:
            UsageError: the text is shorter than that, or longer than the model takes, or a token is
                none of the model's.

        """
        tokens = self.tokenizer.encode(text) if isinstance(text, str) else list(text)
        if foreign := [token for token in tokens if not 0 <= token < self.dimensions.vocab_size]:
            raise UsageError(f"the model has no token {foreign[0]}")
        if not 2 <= len(tokens) <= self.dimensions.max_positions:
            raise UsageError(
                f"the text has {len(tokens)} tokens: a score needs 2, and the model takes "
                f"{self.dimensions.max_positions} at most"
            )
        SamplingParams(chunk=chunk)  # raises UsageError for one that is out of bounds
        tokens_s = np.array(tokens, np.int64)
        cache = self.runtime.new_cache(1, len(tokens) - 1)
        found = []
        for i in range(0, len(tokens) - 1, chunk):
            fed = tokens_s[i : min(i + chunk, len(tokens) - 1)]
            logits_rsv, cache = self.runtime.decode([fed], cache, positions=range(len(fed)))
            next_s1 = tokens_s[i + 1 : i + 1 + len(fed), None]
            found.append(log_probabilities(logits_rsv[0], next_s1)[:, 0])
        return np.concatenate(found)

    def _each(self, prompts: Sequence[str], params: PromptParams) -> Iterator[list[TextGeneration]]:
        call = self._author.call(params)
        return call.each([self._tokens(prompt, params) for prompt in prompts])

    def _tokens(self, prompt: str, params: PromptParams) -> list[int]:
        if not params.chat:
            if params.system is not None:
                raise UsageError("system needs chat: a plain prompt is continued as it is")
            return self.tokenizer.encode(prompt)
        system = [] if params.system is None else [{"role": "system", "content": params.system}]
        return self.tokenizer.encode_chat([*system, {"role": "user", "content": prompt}])


class TextSession:
    """A computed prefix, which `TextModel.session` makes.

    What continues it is tokenised on its own, without a beginning-of-text token, so a word should
    not be split between the two.
    """

    def __init__(
        self, prefix: Prefix, tokenizer: TextTokenizer, dimensions: DecoderDimensions
    ) -> None:
        self._prefix = prefix
        self._tokenizer = tokenizer
        self._author = _author(prefix, tokenizer, dimensions)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the prefix."""
        return self._prefix.tokens

    @keywords_of(SamplingParams)
    def generate(
        self, rest: str | Sequence[str] = "", *, params: SamplingParams
    ) -> TextGeneration | list[Any]:
        """Continue prefix and rest, or several rests; see `TextModel.generate`."""
        rests = [rest] if isinstance(rest, str) else rest
        texts = self._author.call(params).each([self._tokens(one) for one in rests])
        return as_asked(texts, rest, params.n)

    @keywords_of(SamplingParams)
    def stream(self, rest: str = "", *, params: SamplingParams) -> TextPieces:
        """Continue prefix and rest piece by piece; see `TextModel.stream`."""
        params.check_one_text()
        return self._author.call(params).pieces(self._tokens(rest))

    def _tokens(self, rest: str) -> list[int]:
        """Return a continuation's tokens: without those that begin every text."""
        tokens = self._tokenizer.encode(rest)
        begun = zip(tokens, self._tokenizer.encode(""), strict=False)
        return tokens[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], begun)) :]


def _author(start: Start, tokenizer: TextTokenizer, dimensions: DecoderDimensions) -> Author:
    return Author(
        lambda chunk: PromptReader(start, CHUNK if chunk is None else chunk),
        tokenizer,
        Limits(
            prompt=dimensions.max_positions - 1,
            sequence=dimensions.max_positions,
            vocabulary=dimensions.vocab_size,
        ),
    )
