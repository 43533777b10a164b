"""A prefix in the KV cache, to be continued any number of times."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, cast

from typing_extensions import override

from kvcast.decoding.params import SamplingParams
from kvcast.engine.requests import Prefix, Prompt
from kvcast.keywords import keywords_of
from kvcast.runtimes.base import Int64
from kvcast.text.generation import GenerationTask, TextPieces, TextPrompt, is_one_prompt
from kvcast.text.params import GenerationDefaults, completed
from kvcast.text.signatures import continues
from kvcast.text.texts import TextGeneration


class TextSession:
    """A computed prefix, which `TextModel.session` makes.

    Text that continues it is tokenized separately, without a beginning-of-text token, so a word
    should not be split between the two.
    """

    def __init__(self, generation: GenerationTask, prefix: Prefix) -> None:
        self._prefix = prefix
        self._generation = replace(
            generation,
            read=lambda tokens: Prompt(tokens, prefix=prefix),
            held=len(prefix.tokens),
        )

    @property
    def defaults(self) -> GenerationDefaults:
        """Values of options that the model's generation_config.json recommends."""
        return self._generation.defaults

    @override
    def __repr__(self) -> str:
        return f"<TextSession: a prefix of {len(self._prefix.tokens)} tokens>"

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self._prefix.tokens.tolist())

    @continues
    @keywords_of(SamplingParams, completed)
    def generate(
        self, rest: TextPrompt | Sequence[TextPrompt] = "", *, params: SamplingParams
    ) -> TextGeneration | list[Any]:
        """Continue prefix and rest, or several rests; see `TextModel.generate`."""
        alone = is_one_prompt(rest)
        rests = cast("Sequence[TextPrompt]", [rest] if alone else rest)
        generations: list[Any] = []
        for texts in self._generation.each([self._tokens(each) for each in rests], params):
            generations.append(texts if params.n > 1 else texts[0])
        return generations[0] if alone else generations

    @keywords_of(SamplingParams, completed)
    def stream(self, rest: TextPrompt = "", *, params: SamplingParams) -> TextPieces:
        """Continue prefix and rest piece by piece; see `TextModel.stream`."""
        params.check_one_text()
        return self._generation.pieces(self._tokens(rest), params)

    def _tokens(self, rest: TextPrompt) -> Int64:
        limits, tokenizer = self._generation.limits, self._generation.tokenizer
        if not isinstance(rest, str):
            return limits.ids(rest)
        tokens = tokenizer.encode(rest)
        pairs = zip(tokens, tokenizer.encode(""), strict=False)
        begun = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return limits.known(tokens[begun:])
