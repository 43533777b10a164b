"""What clients may ask of models that write texts: the fields of OpenAI's requests, and a few more.

What a field means beyond its type, `kvcast.tasks.params` says and checks. Knows no engine.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_STOPS = 16
MOST_TEXTS = 128
MOST_TOP_LOGPROBS = 20
MOST_BIASES = 1024
_ID = r"^-?[0-9]{1,9}$"
_TokenId = Annotated[str, Field(pattern=_ID)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class Body(BaseModel):
    """A request's body; fields that are not known are ignored, as clients send their own."""

    model_config = ConfigDict(extra="ignore")

    model: str = Field(description="a model's name, as GET /v1/models lists it")


class Sampled(Body):
    """How texts are written."""

    temperature: Annotated[_Finite, Field(ge=0, le=2)] | None = None
    top_p: Annotated[_Finite, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[_Finite, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[_Finite, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[_Finite, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[_Finite, Field(gt=0, le=100)] | None = None
    logit_bias: (
        Annotated[
            Mapping[_TokenId, Annotated[_Finite, Field(ge=-100, le=100)]],
            Field(max_length=MOST_BIASES),
        ]
        | None
    ) = None
    stop: _Stop | Annotated[Sequence[_Stop], Field(max_length=MOST_STOPS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] | None = None

    def sampling(self) -> dict[str, Any]:
        """Return the keywords of `generate` that were given."""
        names = (
            *("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
            *("repetition_penalty", "logit_bias", "stop", "n"),
        )
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return given | ({} if self.seed is None else {"seed": self.seed % 2**31})


class StreamOptions(BaseModel):
    """What a stream tells besides."""

    include_usage: bool | None = None


class JsonSchema(BaseModel):
    """A schema that the text must meet."""

    name: str = ""
    description: str | None = None
    schema_: Annotated[Mapping[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(Sampled):
    """OpenAI's chat completions, with top_k, min_p, repetition_penalty and regex besides."""

    messages: Annotated[Sequence[Mapping[str, Any]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    regex: Annotated[str, Field(min_length=1, max_length=10_000)] | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class CompletionRequest(Sampled):
    """OpenAI's completions; a prompt is text or tokens, or several of them."""

    prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    max_tokens: Annotated[int, Field(ge=1)] | None = 16
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class Text2TextRequest(Sampled):
    """Sources to targets, by models that answer a source: T5 and UniLM."""

    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[
            Sequence[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=256)
        ]
    )
    beam: Annotated[int, Field(ge=1, le=1024)] | None = None
    length_penalty: Annotated[_Finite, Field(ge=-10, le=10)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class EmbeddingsRequest(Body):
    """OpenAI's embeddings."""

    input: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class TextFormat(BaseModel):
    """What a response's text must be."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: Annotated[Mapping[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class TextOptions(BaseModel):
    """How a response's text is written."""

    format: TextFormat | None = None


class ResponsesRequest(Sampled):
    """The part of OpenAI's responses that text needs; nothing is stored."""

    input: str | Annotated[Sequence[Mapping[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    text: TextOptions | None = None
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: Mapping[str, str] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    store: bool | None = None
