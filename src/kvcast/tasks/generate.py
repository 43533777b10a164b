"""A decoder-only model that is ready to generate text: what `kvcast.load` returns for one.

The one place where the words of the API meet the parts that own the options.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, ClassVar, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from kvcast.decoding.beams import NormalisedBeamSearch
from kvcast.decoding.drafts import Endings, Stopwatch
from kvcast.decoding.numerics import log_probabilities
from kvcast.decoding.prefixes import Nothing, Prefix, Start
from kvcast.decoding.sampling import TokenChoice
from kvcast.errors import UsageError
from kvcast.runtimes.base import DecoderOnly
from kvcast.spec.decoder import DecoderDimensions
from kvcast.tasks.generations import Call, TextGeneration, TextPieces
from kvcast.text.base import TextTokenizer
from kvcast.text.stops import StopStrings

__all__ = ["TextGeneration", "TextModel", "TextPieces", "TextSession"]


class TextKeywords(TypedDict, total=False):
    """Keywords for one text; `TextModel.generate` says what they mean."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    stop: str | Sequence[str]
    seed: int
    chunk: int


class TextsKeywords(TextKeywords, total=False):
    """Keywords for several texts; `TextModel.generate` says what they mean."""

    beam: int
    length_penalty: float
    n: int
    batch: int


class TextModel:
    """A runtime with its tokenizer and dimensions."""

    task: ClassVar[Literal["generate"]] = "generate"

    def __init__(
        self, runtime: DecoderOnly, tokenizer: TextTokenizer, dimensions: DecoderDimensions
    ) -> None:
        self.runtime = runtime
        self.tokenizer = tokenizer
        self.dimensions = dimensions
        self._author = _Author(Nothing(runtime), tokenizer, dimensions.max_positions)

    def generate(
        self,
        prompt: str | Sequence[str],
        *,
        chat: bool = False,
        system: str | None = None,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        beam: int = 1,
        length_penalty: float = 1.0,
        n: int = 1,
        batch: int = 8,
        chunk: int = 512,
    ) -> TextGeneration | list[Any]:
        """Continue a prompt, or several.

        In fp32 neither `batch` nor `chunk` nor the order of prompts changes a text; in int8 what
        is multiplied in one call shares a scale. A text that has no room for `max_new_tokens`
        within what the model takes ends sooner, for its length.

        Args:
            prompt: text to continue, or several.
            chat: whether a prompt is what a user says to the model, in its own chat template.
            system: with `chat`, what the model is told before.
            max_new_tokens: most tokens of a text.
            temperature: 0 takes the likeliest token always, and `top_k`, `top_p` and `min_p`
                change nothing; more samples.
            top_k: sample from this many likeliest tokens; None from all.
            top_p: sample from the likeliest tokens that together reach this probability.
            min_p: sample from what has at least this share of the likeliest token's probability.
            repetition_penalty: above 1 makes tokens of the prompt and the text less likely.
            stop: one or more strings that end a text before them.
            seed: of sampling.
            beam: beams at temperature 0, as Hugging Face transformers searches; 1 is greedy.
            length_penalty: with beams, exponent of the length that scores are divided by.
            n: texts for each prompt: samples, or the best beams.
            batch: most texts at once; with n above 1, and with beams, those of one prompt.
            chunk: most tokens of a prompt in one call of the model.

        Returns:
            For one prompt a text, for several a list in their order; with n above 1 a list of n
            takes the place of each text.

        Raises:
            UsageError: for options that cannot be served, and prompts that are empty or too long.

        """
        texts = self.generate_each(
            [prompt] if isinstance(prompt, str) else prompt,
            chat=chat,
            system=system,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            stop=stop,
            seed=seed,
            beam=beam,
            length_penalty=length_penalty,
            n=n,
            batch=batch,
            chunk=chunk,
        )
        return _as_asked(texts, prompt, n)

    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        chat: bool = False,
        system: str | None = None,
        **keywords: Unpack[TextsKeywords],
    ) -> Iterator[list[TextGeneration]]:
        """Return the n texts of each prompt, in order, as they are done; see `generate`."""
        call = self._author.call(**keywords)
        return call.each([self._tokens(prompt, chat, system) for prompt in prompts])

    def stream(
        self,
        prompt: str,
        *,
        chat: bool = False,
        system: str | None = None,
        **keywords: Unpack[TextKeywords],
    ) -> TextPieces:
        """Return an iterator of the text's pieces, which has the `result` at its end.

        Takes the keywords of `generate`, apart from those that are about several texts.
        """
        call = self._author.call(**keywords)
        return call.pieces(self._tokens(prompt, chat, system))

    def session(self, prefix: str, *, chunk: int = 512) -> "TextSession":
        """Compute a prefix once, to continue it any number of times.

        Raises UsageError if it is empty or too long.
        """
        call = self._author.call(chunk=chunk)
        return TextSession(
            call.prefix(self.tokenizer.encode(prefix)),
            self.tokenizer,
            self.dimensions,
        )

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
        self._author.call(chunk=chunk)
        tokens_s = np.array(tokens, np.int64)
        cache = self.runtime.new_cache(1, len(tokens) - 1)
        found = []
        for i in range(0, len(tokens) - 1, chunk):
            fed = tokens_s[i : min(i + chunk, len(tokens) - 1)]
            logits_rsv, cache = self.runtime.decode([fed], cache, positions=range(len(fed)))
            next_s1 = tokens_s[i + 1 : i + 1 + len(fed), None]
            found.append(log_probabilities(logits_rsv[0], next_s1)[:, 0])
        return np.concatenate(found)

    def _tokens(self, prompt: str, chat: bool, system: str | None) -> list[int]:
        if not chat:
            if system is not None:
                raise UsageError("system needs chat: a plain prompt is continued as it is")
            return self.tokenizer.encode(prompt)
        messages = [] if system is None else [{"role": "system", "content": system}]
        return self.tokenizer.encode_chat([*messages, {"role": "user", "content": prompt}])


class TextSession:
    """A computed prefix, which `TextModel.session` makes.

    What continues it is tokenised on its own, without a beginning-of-text token, so a word should
    not be split between the two.
    """

    def __init__(
        self, prefix: Prefix, tokenizer: TextTokenizer, dimensions: DecoderDimensions
    ) -> None:
        self._tokenizer = tokenizer
        self._author = _Author(prefix, tokenizer, dimensions.max_positions)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the prefix."""
        return self._author.start.tokens

    def generate(
        self, rest: str | Sequence[str] = "", **keywords: Unpack[TextsKeywords]
    ) -> TextGeneration | list[Any]:
        """Continue prefix and rest, or several rests; see `TextModel.generate`."""
        rests = [rest] if isinstance(rest, str) else rest
        texts = self._author.call(**keywords).each([self._tokens(one) for one in rests])
        return _as_asked(texts, rest, keywords.get("n", 1))

    def stream(self, rest: str = "", **keywords: Unpack[TextKeywords]) -> TextPieces:
        """Continue prefix and rest piece by piece; see `TextModel.stream`."""
        return self._author.call(**keywords).pieces(self._tokens(rest))

    def _tokens(self, rest: str) -> list[int]:
        """Return a continuation's tokens: without those that begin every text."""
        tokens = self._tokenizer.encode(rest)
        begun = zip(tokens, self._tokenizer.encode(""), strict=False)
        return tokens[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], begun)) :]


class _Author:
    """Turns keywords into a call that begins at a start."""

    def __init__(self, start: Start, tokenizer: TextTokenizer, max_positions: int) -> None:
        self.start = start
        self._tokenizer = tokenizer
        self._max_positions = max_positions

    def call(
        self,
        *,
        max_new_tokens: int = 256,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        beam: int = 1,
        length_penalty: float = 1.0,
        n: int = 1,
        batch: int = 8,
        chunk: int = 512,
    ) -> Call:
        return Call(
            watch=Stopwatch(),
            start=self.start,
            tokenizer=self._tokenizer,
            max_positions=self._max_positions,
            choice=TokenChoice(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                seed=seed,
            ),
            endings=Endings(
                end_tokens=self._tokenizer.end_tokens,
                stops=StopStrings((stop,) if isinstance(stop, str) else tuple(stop)),
                max_new_tokens=max_new_tokens,
            ),
            search=NormalisedBeamSearch(beam, length_penalty),
            n=n,
            batch=batch,
            chunk=chunk,
        )


def _as_asked(
    texts: Iterator[list[TextGeneration]], prompt: str | Sequence[str], n: int
) -> TextGeneration | list[Any]:
    """Return a text where one was asked for, a list where several were."""
    found: list[Any] = [several if n > 1 else several[0] for several in texts]
    return found[0] if isinstance(prompt, str) else found
