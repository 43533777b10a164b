"""Models that `kvcast.load` returns to generate text: their base class, and decoder-only ones."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.chat.conversation import Message, Tool
from kvcast.decoding.sampling import log_probabilities
from kvcast.decoding.speculative_decoding import Paired
from kvcast.engine.in_threads import awaited
from kvcast.engine.memory import fitting
from kvcast.engine.model import Model
from kvcast.engine.requests import Prompt, compute
from kvcast.engine.scheduler import Scheduler
from kvcast.errors import UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.table import family_with
from kvcast.keywords import check_keywords, keywords_of
from kvcast.options import check_number
from kvcast.runtimes.base import Int64, Runtime, exclusive
from kvcast.text.generation import (
    EncodedText,
    GenerationTask,
    Limits,
    TextPieces,
    TextPrompt,
    is_one_prompt,
)
from kvcast.text.params import (
    ChatParams,
    GenerationDefaults,
    PromptParams,
    completed,
    completed_alone,
    completed_answer,
)
from kvcast.text.requests import TextCaller
from kvcast.text.sentences import JoinedPieces, Part, joined
from kvcast.text.session import TextSession
from kvcast.text.signatures import chats, chats_later, generates, generates_later
from kvcast.text.structured_output import Grammars
from kvcast.text.texts import TextGeneration, TextStream
from kvcast.tokenizers.base import TextTokenizer

__all__ = ["TextGeneration", "TextModel", "TextPieces", "TextSession"]


CHUNK = 512
"""Most tokens of a prompt in one call of the model, unless another number is given."""


class TextGenerator(Model):
    """A model that turns prompts into texts, with its tokenizer."""

    task: ClassVar[Literal["generate"]] = "generate"
    tokenizer: TextTokenizer

    def __init__(self, generation: GenerationTask) -> None:
        self.runtime = generation.runtime
        self.tokenizer = generation.tokenizer
        self.generation = generation
        self._limits = generation.limits

    @property
    @override
    def _described(self) -> str:
        return f"{family_with(self.dimensions).title}, {self._limits.vocabulary} tokens"

    @property
    def has_chat_template(self) -> bool:
        return False

    @property
    def defaults(self) -> GenerationDefaults:
        return self.generation.defaults

    def recommend(self, defaults: GenerationDefaults) -> None:
        self.generation = replace(self.generation, defaults=defaults)

    @property
    def paired(self) -> Paired:
        return self.generation.paired

    @property
    @override
    def notices(self) -> Sequence[str]:
        return self.tokenizer.notices

    def scheduler(self, rows: int, budget: int, chunk: int) -> Scheduler:
        generation = self.generation
        sizes = fitting(
            generation.runtime.row_bytes,
            longest=generation.limits.sequence,
            rows=rows,
            budget=budget,
            fixed=self.input_bytes,
        )
        return Scheduler(
            generation.runtime,
            rows=sizes.rows,
            capacity=sizes.capacity,
            inputs=sizes.rows if generation.encodes else 0,
            chunk=chunk if generation.chunk else None,
            turn=chunk,
            prefixes=generation.prefixes(sizes.rows, sizes.capacity),
            cache_bytes=sizes.bytes,
        )

    def caller(
        self, given: TextPrompt, options: Mapping[str, Any], scheduler: Scheduler
    ) -> TextCaller:
        check_keywords("submit", PromptParams, options)
        params = self.understood(given, self.defaults.params(PromptParams, options))
        if params.progress:
            raise UsageError("an engine shows no progress: iterate the job")
        if params.beam > scheduler.rows:
            raise UsageError(f"beam must be at most {scheduler.rows}, the rows of the engine")
        generation = self.generation.within(scheduler.capacity)
        parts = self.parts(given, params, generation.limits.prompt)
        requests = [
            request for part in parts for request in generation.requests(part.tokens, params)
        ]

        def finished(texts: list[TextGeneration]) -> list[TextGeneration]:
            each = len(texts) // len(parts)
            whole = _joined(parts, [texts[i : i + each] for i in range(0, len(texts), each)])
            with exclusive(self.runtime):
                return self.finished(given, whole, params)

        return TextCaller(requests, params, finished, len(parts))

    @generates
    @keywords_of(PromptParams, completed)
    def generate(
        self, prompt: TextPrompt | Sequence[TextPrompt], params: PromptParams
    ) -> TextGeneration | list[Any]:
        """Continue a prompt, or several; a T5, BART or UniLM answers its source.

        Neither `batch` nor `chunk` nor the order of prompts changes a text; in int8 on ONNX
        Runtime, rounding decides near-ties. A text without room for `max_new_tokens` in the model's
        context ends sooner, with reason "length".

        Args:
            prompt: text, or token ids, which are used unchanged; or several of them.
            params: given as keywords.

        Returns:
            For one prompt a text, for several a list in their order; with n above 1 a list of n
            takes the place of each text.

        Raises:
            UsageError: for options that cannot be served, no prompts, prompts that are empty or
                too long, and token ids that the model does not have.

        """
        alone = is_one_prompt(prompt)
        prompts = cast("Sequence[TextPrompt]", [prompt] if alone else prompt)
        generations: list[Any] = []
        for texts in self._each(prompts, params):
            generations.append(texts if params.n > 1 else texts[0])
        return generations[0] if alone else generations

    agenerate = generates_later(awaited(generate))

    @keywords_of(PromptParams, completed)
    def generate_each(
        self, prompts: Sequence[TextPrompt], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        """Yield the n texts of each prompt, in order, once they are done; see `generate`."""
        if is_one_prompt(prompts):
            raise UsageError("generate_each takes several prompts: give one to generate")
        return self._each(prompts, params)

    @keywords_of(PromptParams, completed_alone)
    def stream(self, prompt: TextPrompt, params: PromptParams) -> TextStream:
        """Return an iterator of the text's pieces, which has the `result` at its end.

        Tasks take them with `async for`; each piece is then generated in a thread.

        Options for several texts stay at their defaults, whatever the model's files recommend; see
        `generate`.
        """
        params.check_one_text()
        params = self.understood(prompt, params)
        parts = self.parts(prompt, params, self._limits.prompt)
        if len(parts) == 1:
            return self.generation.pieces(parts[0].tokens, params)
        return JoinedPieces(parts, lambda tokens: self.generation.pieces(tokens, params))

    def understood(
        self,
        prompt: TextPrompt | EncodedText,  # noqa: ARG002
        params: PromptParams,
    ) -> PromptParams:
        if params.source_language is not None or params.target_language is not None:
            raise UsageError("this model does not translate: leave out languages")
        return params

    def parts(
        self,
        prompt: TextPrompt | EncodedText,
        params: PromptParams,
        longest: int,  # noqa: ARG002
    ) -> list[Part]:
        """Return the parts of a prompt, of limited length, that are answered separately."""
        if params.sentences:
            raise UsageError("this model continues a text: leave out sentences")
        return [Part(tokens=self.prompt_tokens(prompt, params))]

    @abstractmethod
    def prompt_tokens(self, prompt: TextPrompt | EncodedText, params: PromptParams) -> Int64:
        """Return a prompt's tokens; raises UsageError for a prompt that the model cannot take."""

    def encoded(self, text: str, *, special_tokens: bool = False) -> EncodedText:
        params = PromptParams(special_tokens=special_tokens)
        return EncodedText(text, self.prompt_tokens(text, params))

    @property
    def input_bytes(self) -> int:
        return 0

    def finished(
        self,
        prompt: TextPrompt | EncodedText,  # noqa: ARG002
        texts: list[TextGeneration],
        params: PromptParams,  # noqa: ARG002
    ) -> list[TextGeneration]:
        return texts

    def _each(
        self, prompts: Sequence[TextPrompt], params: PromptParams
    ) -> Iterator[list[TextGeneration]]:
        if not len(prompts):
            raise UsageError("there is no prompt: give at least one")
        understood = [self.understood(prompt, params) for prompt in prompts]
        parts = [self.parts(prompt, params, self._limits.prompt) for prompt in prompts]
        # Resolved parameters are the same for all prompts that are texts.
        tokens = [part.tokens for some in parts for part in some]
        each = self.generation.each(tokens, understood[0])
        if len(tokens) > len(prompts):
            each = _whole(parts, each)
        return map(self.finished, prompts, each, understood)


def _whole(
    parts: Sequence[Sequence[Part]], each: Iterator[list[TextGeneration]]
) -> Iterator[list[TextGeneration]]:
    for some in parts:
        yield _joined(some, list(islice(each, len(some))))


def _joined(parts: Sequence[Part], texts: Sequence[list[TextGeneration]]) -> list[TextGeneration]:
    return [joined(parts, several) for several in zip(*texts, strict=True)]


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
        check_number("chunk", chunk, int, 1)
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
        check_number("chunk", chunk, int, 1)
        cache = self.runtime.new_cache(1, len(tokens) - 1)
        scores = []
        for i in range(0, len(tokens) - 1, chunk):
            fed = tokens[i : min(i + chunk, len(tokens) - 1)]
            next_s1 = tokens[i + 1 : i + 1 + len(fed), None]
            with exclusive(self.runtime):
                logits_rsv, cache = self.runtime.prefill([fed], cache, positions=range(len(fed)))
                scores.append(log_probabilities(logits_rsv[0], next_s1)[:, 0])
        return np.concatenate(scores)

    @property
    @override
    def has_chat_template(self) -> bool:
        return self.tokenizer.has_chat_template

    def chat_tokens(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] | None = None
    ) -> Int64:
        """Return the tokens of a conversation, up to where the assistant's answer starts.

        Messages and tools are in the format of OpenAI's chat completions; a template without tools
        gets them described in words. Raises UsageError for malformed messages, and KvcastError if
        there is no template, or it refuses the conversation or fails.
        """
        return self._limits.known(self.tokenizer.encode_chat(messages, tools))

    @chats
    @keywords_of(ChatParams, completed_answer)
    def chat(
        self, messages: Sequence[Message], params: ChatParams
    ) -> TextGeneration | list[TextGeneration] | TextStream:
        """Answer a conversation through the model's chat template; a list of texts if `n` > 1.

        With `stream`, return an iterator of the answer's pieces, as `TextGenerator.stream` does.
        Raises the errors of `chat_tokens` and `generate`.

        Args:
            messages: in the format of OpenAI's chat completions.
            params: given as keywords; a `system` message precedes the others.

        """
        if params.system is not None:
            messages = [{"role": "system", "content": params.system}, *messages]
        tokens = self.chat_tokens(messages)
        if params.stream:
            params.check_one_text()
            return self.generation.pieces(tokens, params)
        [texts] = self._each([tokens.tolist()], replace(params, chat=False, system=None))
        return texts if params.n > 1 else texts[0]

    achat = chats_later(awaited(chat))

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
