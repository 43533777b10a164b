"""From requests to prompts and keywords of `generate`: tools, response formats, limits."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvcast.chat.output_parsers import TextParser
from kvcast.chat.tool_calls import ToolForm
from kvcast.decoding.grammar import Grammar
from kvcast.errors import UsageError
from kvcast.server.errors import ApiError
from kvcast.server.model_registry import COMPLETION, ENCODING, SPEECH, TEXT2TEXT, Served
from kvcast.server.request_models import Sampled, Shaped
from kvcast.text.params import GenerationDefaults

NOT_GENERATING = {SPEECH: "turns recordings into text: use /v1/audio/transcriptions", **ENCODING}


def keywords(
    body: Sampled,
    served: Served,
    most_tokens: int | None,
    *,
    temperature: float = 1.0,
    **searched: Any,
) -> dict[str, Any]:
    """Return the keywords of `generate`: where none is given, the model's values or the defaults.

    `temperature` is the default of models that answer a source.
    """
    longest = served.model.generation.limits.sequence
    defaults = {
        "temperature": temperature,
        "seed": secrets.randbelow(2**31),
        "max_new_tokens": longest,
    }
    given = body.sampling() | {name: value for name, value in searched.items() if value is not None}
    if most_tokens is not None:
        given["max_new_tokens"] = min(most_tokens, longest)
    model: GenerationDefaults = served.model.defaults
    recommended = model.conversing(given) if temperature else model.applicable(given)
    return defaults | recommended | given


def copied(options: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the keywords of `generate` for different texts, and how often to repeat each.

    At temperature 0 texts are equal: one is generated and copied.
    """
    if options["temperature"] > 0:
        return options, 1
    return options | {"n": 1}, options.get("n", 1)


def each(given: Any, param: str) -> list[Any]:
    """Return a field's texts, or lists of tokens, of one or several; ApiError if there are none."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"there is no {param}", param=param)
    return [list(given)] if isinstance(given[0], int) else list(given)


def shape(body: Shaped) -> dict[str, Any]:
    """Return the keywords that hold a text to the format of the request."""
    shaped: dict[str, Any] = {} if body.regex is None else {"regex": body.regex}
    if (form := body.response_format) is not None:
        schema = None if form.json_schema is None else form.json_schema.schema_
        shaped |= structure(form.type, schema, param="response_format")
    return shaped


def structure(kind: str, schema: Mapping[str, Any] | None, *, param: str) -> dict[str, Any]:
    """Return the keywords that hold a text to a format, "text", "json_object" or "json_schema".

    Raises ApiError, of the request's field `param`, if there is no schema where one is needed.
    """
    if kind == "json_object":
        return {"json_object": True}
    if kind == "text":
        return {}
    if schema is None:
        needs = 'the format json_schema needs a schema: {"json_schema": {"name": …, "schema": {…}}}'
        raise ApiError(400, needs, param=param)
    return {"json_schema": schema}


def source(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the source for a text-to-text model from a conversation: the last user message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            match message.get("content"):
                case str(text):
                    return text
                case [*parts]:
                    contents = [part.get("text") for part in parts if isinstance(part, Mapping)]
                    texts = [text for text in contents if isinstance(text, str)]
                    if texts and len(texts) == len(parts):
                        return "\n".join(texts)
            break
    raise ApiError(400, "the last user message has no text", param="messages")


def check_converses(served: Served, tools: Sequence[Mapping[str, Any]] | None, choice: Any) -> None:
    if served.kind == COMPLETION:
        raise ApiError(400, f"the model {served.name!r} has no chat template: use /v1/completions")
    if served.kind == TEXT2TEXT and tools and choice != "none":
        raise ApiError(400, f"the model {served.name!r} does not support tools", param="tools")


def conversation(
    served: Served,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    most: int | None,
) -> Callable[[], Any]:
    if served.kind == TEXT2TEXT:
        return limited(served, source(messages), most)
    longest = PromptLimit(served, served.longest_prompt, most)

    def made() -> Any:
        longest.check_texts(list(_contents(messages)))
        tokens = served.model.chat_tokens(messages, tools=tools or None)
        longest.check(len(tokens))
        return tokens

    return made


def limited(
    served: Served,
    prompt: str | Sequence[int],
    most: int | None,
    *,
    special_tokens: bool = False,
) -> Callable[[], Any]:
    """Return the maker of a prompt that is continued unchanged; ApiError if it is too long."""
    longest = PromptLimit(served, served.longest_prompt, most)

    def made() -> Any:
        if not isinstance(prompt, str):
            longest.check(len(prompt))
            return prompt
        longest.check_texts([prompt])
        encoded = served.model.encoded(prompt, special_tokens=special_tokens)
        longest.check(len(encoded.tokens))
        return encoded

    return made


@dataclass(frozen=True)
class PromptLimit:
    """How long a prompt may be."""

    served: Served
    longest: int
    most: int | None  # that this server accepts; None: no other limit
    label: str = "the prompt"
    param: str | None = None

    def check(self, tokens: int) -> None:
        """Raise ApiError for a prompt of more tokens."""
        limit, whose = self._limit
        if tokens > limit:
            raise self._error(f"has {tokens} tokens and {whose} takes {limit} at most")

    def check_texts(self, texts: Sequence[str]) -> None:
        """Raise ApiError for texts that must have more tokens, before they are made."""
        limit, whose = self._limit
        if sum(map(len, texts)) <= limit:  # the longest token need not be known
            return
        most = limit * self.served.longest_token
        lengths = map(len, texts)
        if self.served.kind == TEXT2TEXT:  # some of these collapse white space
            lengths = map(_without_spaces, texts)
        if sum(lengths) > most:
            raise self._error(f"has more than the {limit} tokens that {whose} takes")

    @property
    def _limit(self) -> tuple[int, str]:
        if self.most is not None and self.most < self.longest:
            return self.most, "this server"
        return self.longest, "the model"

    def _error(self, problem: str) -> ApiError:
        return ApiError(
            400,
            f"{self.label} {problem}: shorten it",
            code="context_length_exceeded",
            param=self.param,
        )


def _without_spaces(text: str) -> int:
    return len(text) - sum(map(text.count, _SPACES))


_SPACES = "".join(char for char in map(chr, range(0x3001)) if char.isspace())


def _contents(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        match message.get("content"):
            case str(text):
                yield text
            case [*parts]:
                contents = (part.get("text") for part in parts if isinstance(part, Mapping))
                yield from (text for text in contents if isinstance(text, str))


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of a request."""

    offered: Sequence[Mapping[str, Any]] = ()  # as OpenAI's chat completions describe them
    form: ToolForm | None = None  # of the model's tool calls
    shape: Mapping[str, Any] = field(default_factory=dict)  # keywords that hold the text to a form
    parallel: bool = True

    def parser(self) -> TextParser | None:
        return None if self.form is None else self.form.parser(list(map(_name, self.offered)))


def tools_of(
    tokenizer: Any,
    tools: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    *,
    parallel: bool,
    shape: Mapping[str, Any] | None = None,
) -> Tools:
    """Return the tools of a request; `shape` has keywords for a text that is no call.

    `choice`: "auto", "none", "required", or a description of one of the tools. Raises ApiError for
    an unknown tool, a schema that cannot be kept, and an unknown form of the model's template.
    """
    shape = shape or {}
    if not tools:
        if choice in (None, "none", "auto"):
            return Tools(shape=shape)
        raise ApiError(400, "tool_choice needs tools", param="tool_choice")
    if choice == "none":
        return Tools(shape=shape)
    named = [(_name(tool), tool) for tool in tools]
    try:
        form: ToolForm = tokenizer.tool_form
    except UsageError as error:
        raise ApiError(400, str(error), param="tools") from None
    called = _called(named, choice)
    if called is None and shape:
        answered = form.answered(_schema(shape))
        form = replace(form, answer="")  # the JSON itself is the answer
    else:
        answered = form.answered()
    if called is None and not answered:
        return Tools(offered=tools, form=form, parallel=parallel)
    texts = (*form.enforced(tools), *answered) if called is None else form.enforced(called)
    special = tokenizer.control_tokens(form.markers)
    try:
        grammar = Grammar.tool_call(texts, special)
    except UsageError as error:
        raise ApiError(400, str(error), param="tools") from None
    return Tools(offered=tools, form=form, shape={"grammar": grammar}, parallel=parallel)


def _schema(shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a format; raises ApiError for a pattern, UsageError for others."""
    if "regex" in shape:
        raise ApiError(
            400, 'regex with tools that may be called needs tool_choice "none"', param="regex"
        )
    schema: Mapping[str, Any] = shape.get("json_schema", {"type": "object"})
    Grammar.json_schema(schema)
    return schema


def _called(
    named: Sequence[tuple[str, Mapping[str, Any]]], choice: str | Mapping[str, Any] | None
) -> Sequence[Mapping[str, Any]] | None:
    """Return the tools of which one must be called; None if none must."""
    if choice in (None, "auto"):
        return None
    if choice == "required":
        return [tool for _, tool in named]
    match choice:
        case {"type": "function", "function": {"name": str(name)}}:
            pass
        case {"type": "function", "name": str(name)}:
            pass
        case _:
            raise ApiError(
                400,
                "tool_choice must be auto, none, required or a function",
                param="tool_choice",
            )
    chosen = [tool for known, tool in named if known == name]
    if not chosen:
        raise ApiError(400, f"tool_choice names {name!r}, which is no tool", param="tool_choice")
    return chosen


def _name(tool: Mapping[str, Any]) -> str:
    match tool:
        case {"function": {"name": str(name)}}:
            return name
    raise UsageError('a tool must be like {"type": "function", "function": {"name": …}}')
