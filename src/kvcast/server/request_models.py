"""Requests to models that generate text: the fields of OpenAI's requests, and a few more.

An option of `generate` has the bounds that `kvcast.text.params` declares, narrowed where a server
must limit its clients. Lists have bounds, and their first mistake is enough: checking many values
would block all clients.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from kvcast.decoding.params import BIAS
from kvcast.options import Bounds, Text
from kvcast.server.params import MOST_TEXTS
from kvcast.text.params import PromptParams

MOST_STOPS = 16
MOST_TOP_LOGPROBS = 20
MOST_BIASES = 1024
MOST_MESSAGES = 4096
MOST_TOOLS = 4096
MOST_PROMPTS = 256
MOST_TOKENS = 1 << 20
MOST_SOURCES = 256
MOST_EMBEDDED = 2048
MOST_METADATA = 16
_OPTIONS = {option.name: option for option in PromptParams.declared()}


def _within(bounds: Bounds, kind: type, *, least: float | None = None, most: float | None) -> Any:
    """Return bounds as pydantic has them, none wider than `least` and `most`."""
    lowest = [bound for bound in (bounds.least, least) if bound is not None]
    highest = [bound for bound in (bounds.most, most) if bound is not None]
    return Field(
        ge=max(lowest, default=None),
        le=min(highest, default=None),
        gt=bounds.above,
        allow_inf_nan=False if kind is float else None,
    )


def _number(name: str, *, least: float | None = None, most: float | None = None) -> Any:
    option = _OPTIONS[name]
    if not isinstance(option.option.check, Bounds):
        raise TypeError(f"{name} is no number within bounds")
    return _within(option.option.check, option.kind, least=least, most=most)


def _text(name: str, *, most: int) -> Any:
    check = _OPTIONS[name].option.check
    if not isinstance(check, Text):
        raise TypeError(f"{name} is no text")
    return Field(min_length=1 if check.filled else None, max_length=most)


_ID = r"^-?[0-9]{1,9}$"
_TokenId = Annotated[str, Field(pattern=_ID)]
_Bias = Annotated[float, _within(BIAS, float, most=None)]
_Stop = Annotated[str, _text("stop", most=1000)]
_MaxTokens = Annotated[int, _number("max_new_tokens")]
_TopLogprobs = Annotated[int, _number("top_logprobs", most=MOST_TOP_LOGPROBS)]
_Source = Annotated[str, Field(min_length=1)]
_Object: TypeAlias = dict[str, Any]

_TEXT, _TEXTS, _OBJECT = "(text)", "(texts)", "(object)"
_TOKENS, _TOKEN_LISTS = "(ids)", "(lists of ids)"
KINDS = frozenset({_TEXT, _TEXTS, _TOKENS, _TOKEN_LISTS, _OBJECT})
"""Parts of an error's place besides names and indices: the alternatives of a union."""


def _one_or_several(given: Any) -> str | None:
    if isinstance(given, str):
        return _TEXT
    return _TEXTS if isinstance(given, list) else None


def _prompts(given: Any) -> str | None:
    kind = _one_or_several(given)
    if kind != _TEXTS or not given or not isinstance(given[0], (int, list)):
        return kind
    return _TOKENS if isinstance(given[0], int) else _TOKEN_LISTS


def _text_or_object(given: Any) -> str | None:
    if isinstance(given, str):
        return _TEXT
    return _OBJECT if isinstance(given, dict) else None


def _kind(kind_of: Callable[[Any], str | None], wanted: str) -> Discriminator:
    """Return a discriminator of several types, so that errors name one of them alone."""
    return Discriminator(
        kind_of, custom_error_type="kind", custom_error_message=f"Input should be {wanted}"
    )


_ONE_OR_SEVERAL = _kind(_one_or_several, "text, or a list")
_PROMPTS = _kind(_prompts, "text, token ids, or a list of these")
_TEXT_OR_OBJECT = _kind(_text_or_object, "text, or an object")

_Tokens = Annotated[list[int], Field(max_length=MOST_TOKENS, fail_fast=True)]
_Prompt: TypeAlias = Annotated[
    Annotated[str, Tag(_TEXT)]
    | Annotated[_Tokens, Tag(_TOKENS)]
    | Annotated[list[str], Field(max_length=MOST_PROMPTS, fail_fast=True), Tag(_TEXTS)]
    | Annotated[list[_Tokens], Field(max_length=MOST_PROMPTS, fail_fast=True), Tag(_TOKEN_LISTS)],
    _PROMPTS,
]
_Tools: TypeAlias = Annotated[list[_Object], Field(max_length=MOST_TOOLS, fail_fast=True)]
_ToolChoice: TypeAlias = Annotated[
    Annotated[str, Tag(_TEXT)] | Annotated[_Object, Tag(_OBJECT)], _TEXT_OR_OBJECT
]


class Body(BaseModel):
    """A request's body; unknown fields are ignored, as clients send extensions."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(description="a model's name, as GET /v1/models lists it")


class ModelRequest(BaseModel):
    model: str = Field(description="a model's name, as GET /v1/models lists it")


class Sampled(Body):
    temperature: Annotated[float, _number("temperature", most=2)] | None = None
    top_p: Annotated[float, _number("top_p")] | None = None
    top_k: Annotated[int, _number("top_k", most=2**31 - 1)] | None = None
    min_p: Annotated[float, _number("min_p")] | None = None
    presence_penalty: Annotated[float, _number("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, _number("frequency_penalty")] | None = None
    repetition_penalty: Annotated[float, _number("repetition_penalty", most=100)] | None = None
    no_repeat_ngram_size: Annotated[int, _number("no_repeat_ngram_size", most=1000)] | None = None
    logit_bias: Annotated[dict[_TokenId, _Bias], Field(max_length=MOST_BIASES)] | None = None
    stop: (
        Annotated[
            Annotated[_Stop, Tag(_TEXT)]
            | Annotated[list[_Stop], Field(max_length=MOST_STOPS, fail_fast=True), Tag(_TEXTS)],
            _ONE_OR_SEVERAL,
        ]
        | None
    ) = None
    reasoning_budget: Annotated[int, _number("reasoning_budget")] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, _number("n", most=MOST_TEXTS)] | None = None

    def sampling(self) -> dict[str, Any]:
        """Return the keywords of `generate` that were given."""
        values = ((name, getattr(self, name)) for name in Sampled.model_fields.keys() & _OPTIONS)
        given = {name: value for name, value in values if value is not None}
        return given | ({} if self.seed is None else {"seed": self.seed % 2**31})


class StreamOptions(BaseModel):
    include_usage: bool | None = None


class JsonSchema(BaseModel):
    name: str = ""
    description: str | None = None
    schema_: Annotated[_Object | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class Shaped(Sampled):
    response_format: ResponseFormat | None = None
    regex: Annotated[str, _text("regex", most=10_000)] | None = None


class ChatRequest(Shaped):
    """OpenAI's chat completions, with top_k, min_p, repetition_penalty and regex besides."""

    reasoning_format: Annotated[
        Literal["auto", "deepseek", "none"] | None,
        Field(description="none leaves <think> blocks in the content"),
    ] = None

    messages: Annotated[
        list[_Object], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)
    ]
    max_tokens: _MaxTokens | None = None
    max_completion_tokens: _MaxTokens | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: _TopLogprobs | None = None
    tools: _Tools | None = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Shaped):
    """OpenAI's completions; a prompt is text or tokens, or several of them."""

    prompt: _Prompt
    max_tokens: _MaxTokens | None = 16
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: _TopLogprobs | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None


class Text2TextRequest(Sampled):
    """Sources to targets, by models that answer a source: T5, BART, UniLM."""

    input: Annotated[
        Annotated[_Source, Tag(_TEXT)]
        | Annotated[
            list[_Source],
            Field(min_length=1, max_length=MOST_SOURCES, fail_fast=True),
            Tag(_TEXTS),
        ],
        _ONE_OR_SEVERAL,
    ]
    beam: Annotated[int, _number("beam", most=1024)] | None = None
    length_penalty: Annotated[float, _number("length_penalty", least=-10, most=10)] | None = None
    source_language: Annotated[str, _text("source_language", most=40)] | None = None
    target_language: Annotated[str, _text("target_language", most=40)] | None = None
    sentences: bool | None = None
    max_tokens: _MaxTokens | None = None
    stream: bool | None = None


class EmbeddingsRequest(Body):
    input: Annotated[
        Annotated[str, Tag(_TEXT)]
        | Annotated[_Tokens, Tag(_TOKENS)]
        | Annotated[list[str], Field(max_length=MOST_EMBEDDED, fail_fast=True), Tag(_TEXTS)]
        | Annotated[
            list[_Tokens], Field(max_length=MOST_EMBEDDED, fail_fast=True), Tag(_TOKEN_LISTS)
        ],
        _PROMPTS,
    ]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: Annotated[
        str | None, Field(max_length=100, description="of the model's prompts, such as query")
    ] = None
    truncate: Annotated[bool | None, Field(description="cut a text that is too long")] = None


class RerankRequest(Body):
    """Cohere's and Jina's: a query, and documents to order by relevance for it."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[
        list[
            Annotated[
                Annotated[str, Tag(_TEXT)] | Annotated[_Object, Tag(_OBJECT)], _TEXT_OR_OBJECT
            ]
        ],
        Field(min_length=1, max_length=MOST_EMBEDDED, fail_fast=True),
    ]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    truncate: Annotated[
        bool | None, Field(description="cut a document that with the query is too long")
    ] = None


class TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: Annotated[_Object | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(BaseModel):
    format: TextFormat | None = None


class ResponsesRequest(Sampled):
    """The part of OpenAI's responses that text needs; nothing is stored."""

    input: Annotated[
        Annotated[str, Tag(_TEXT)]
        | Annotated[
            list[_Object],
            Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True),
            Tag(_TEXTS),
        ],
        _ONE_OR_SEVERAL,
    ]
    instructions: str | None = None
    max_output_tokens: _MaxTokens | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: _Tools | None = None
    tool_choice: _ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: _TopLogprobs | None = None
    include: Annotated[list[str], Field(max_length=64, fail_fast=True)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=MOST_METADATA)] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    store: bool | None = None


class CountTokensRequest(Sampled):
    """Anthropic's request to count the tokens of messages."""

    messages: Annotated[
        list[_Object], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)
    ]
    system: (
        Annotated[
            Annotated[str, Tag(_TEXT)]
            | Annotated[list[_Object], Field(max_length=MOST_MESSAGES), Tag(_TEXTS)],
            _ONE_OR_SEVERAL,
        ]
        | None
    ) = None
    tools: _Tools | None = None
    tool_choice: _Object | None = None


class MessagesRequest(CountTokensRequest):
    """Anthropic's messages, with the sampling of OpenAI's requests besides."""

    max_tokens: _MaxTokens
    stop_sequences: Annotated[list[_Stop], Field(max_length=MOST_STOPS, fail_fast=True)] | None = (
        None
    )
    stream: bool | None = None
    metadata: _Object | None = None
    thinking: _Object | None = None
