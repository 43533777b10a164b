"""The decoder-only model that `kvcast.load` returns, ready to generate text.

Knows no file format and no runtime.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.chat.conversation import Message, Tool
from kvcast.decoding.numerics import log_probabilities
from kvcast.decoding.params import SamplingParams
from kvcast.engine.requests import Prefix, Prompt, compute
from kvcast.errors import UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.options import keywords_of
from kvcast.runtimes.base import Int64, Runtime, exclusive
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextGenerator,
    TextPieces,
    TextPrompt,
    is_one_prompt,
)
from kvcast.text.params import GenerationDefaults, PromptParams, completed
from kvcast.text.structured_output import Grammars
from kvcast.text.texts import TextGeneration
from kvcast.tokenizers.base import TextTokenizer

__all__ = ["TextGeneration", "TextModel", "TextPieces", "TextSession"]


CHUNK = 512
"""Most tokens of a prompt in one call of the model, unless another number is given."""


class TextModel(TextGenerator):
    """A runtime with its tokenizer and dimensions."""

    def __init__(
        self, runtime: Runtime, tokenizer: TextTokenizer, dimensions: DecoderDimensions
    ) -> None:
        limits = Limits(
            prompt=dimensions.max_positions - 1,
            sequence=dimensions.max_positions,
            vocabulary=dimensions.vocab_size,
        )
        super().__init__(
            GenerationTask(
                runtime=runtime,
                tokenizer=tokenizer,
                limits=limits,
                family="decoder-only",
                read=Prompt,
                continues=True,
                grammars=Grammars(tokenizer, limits.vocabulary),
                chunk=CHUNK,
            )
        )
        self.dimensions = dimensions

    def session(self, prefix: TextPrompt, *, chunk: int = CHUNK) -> "TextSession":
        """Compute a prefix once, to continue it any number of times.

        Raises UsageError if it is empty or too long.
        """
        tokens = self._encoded(prefix)
        self._limits.check(tokens)
        SamplingParams(chunk=chunk)  # raises UsageError for one that is out of bounds
        return TextSession(self.generation, compute(self.runtime, Prompt(tokens), chunk))

    def score(self, text: TextPrompt, *, chunk: int = 128) -> NDArray[np.float32]:
        """Return the log-probability of each token given all tokens before it, [S - 1].

        Args:
            text: or its tokens, two or more.
            chunk: tokens in one call of the model, which gives logits for each.

        Raises:
            UsageError: the text is shorter than that, or longer than the model takes, or a token is
                none of the model's.

        """
        tokens = self._encoded(text)
        if not 2 <= len(tokens) <= self.dimensions.max_positions:
            raise UsageError(
                f"the text has {len(tokens)} tokens: a score needs 2, and the model takes "
                f"{self.dimensions.max_positions} at most"
            )
        SamplingParams(chunk=chunk)  # raises UsageError for one that is out of bounds
        cache = self.runtime.new_cache(1, len(tokens) - 1)
        scores = []
        for i in range(0, len(tokens) - 1, chunk):
            fed = tokens[i : min(i + chunk, len(tokens) - 1)]
            next_s1 = tokens[i + 1 : i + 1 + len(fed), None]
            with exclusive(self.runtime):
                logits_rsv, cache = self.runtime.prefill([fed], cache, positions=range(len(fed)))
                scores.append(log_probabilities(logits_rsv[0], next_s1)[:, 0])
        return np.concatenate(scores)

    def chat_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None
    ) -> Int64:
        """Return the tokens of a conversation, up to where the assistant's answer starts.

        Args:
            messages: as in OpenAI's chat completions: each with a role (system, developer, user,
                assistant, tool) and a content; an assistant's may have tool_calls.
            tools: functions that the model may call, described as there; a template that knows none
                gets them in words.

        Raises:
            UsageError: malformed messages.
            KvcastError: there is no template, or it refuses the conversation or fails.

        """
        return self._limits.known(self.tokenizer.encode_chat(messages, tools))

    @override
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        if not params.chat:
            if params.system is not None:
                raise UsageError("system needs chat: a plain prompt is continued as it is")
            if params.special_tokens and isinstance(prompt, str):
                return self._limits.known(self.tokenizer.encode_ready(prompt))
            return self._encoded(prompt)
        if not isinstance(prompt, str):
            raise UsageError("chat needs text: token ids are continued as they are")
        system = [] if params.system is None else [{"role": "system", "content": params.system}]
        messages = [*system, {"role": "user", "content": prompt}]
        return self.chat_tokens(messages)

    def _encoded(self, prompt: TextPrompt | EncodedText) -> Int64:
        if isinstance(prompt, EncodedText):
            return prompt.tokens
        if isinstance(prompt, str):
            return self._limits.known(self.tokenizer.encode(prompt))
        return self._limits.ids(prompt)


class TextSession:
    """A computed prefix, which `TextModel.session` makes.

    Text that continues it is tokenised on its own, without a beginning-of-text token, so a word
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

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens of the prefix."""
        return tuple(self._prefix.tokens.tolist())

    @keywords_of(SamplingParams, completed)
    def generate(
        self, rest: TextPrompt | Sequence[TextPrompt] = "", *, params: SamplingParams
    ) -> TextGeneration | list[Any]:
        """Continue prefix and rest, or several rests; see `TextModel.generate`."""
        alone = is_one_prompt(rest)
        rests: Sequence[Any] = [rest] if alone else rest
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
        """Return a continuation's tokens, without the tokens that begin every text."""
        limits, tokenizer = self._generation.limits, self._generation.tokenizer
        if not isinstance(rest, str):
            return limits.ids(rest)
        tokens = tokenizer.encode(rest)
        pairs = zip(tokens, tokenizer.encode(""), strict=False)
        begun = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return limits.known(tokens[begun:])
