"""Options of prompts, and a model's generation_config.json; imports no tensor library."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

from typing_extensions import override

from kvcast.decoding.grammar import Grammar
from kvcast.decoding.params import SamplingParams, check_switch
from kvcast.errors import KvcastError, UsageError
from kvcast.foreign_options import TEXT_CALLS, ForeignOptions
from kvcast.options import FILLED, Check, Group, Params, Text, plain

CONVERSATION = Group("conversation")
TRANSLATION = Group("translation")
STRUCTURE = Group("structured output")
EMBEDDING = Group("embedding")
RANKING = Group("ranking")


class _Schema(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        return None if isinstance(value, Mapping) else FILLED.problem(value, kind)


@dataclass(frozen=True, kw_only=True)
class PromptParams(SamplingParams):
    """How prompts are read, and how texts are generated after them."""

    chat: bool = CONVERSATION(False)(
        "put the prompt into the model's chat template as the user's message"
    )
    system: str | None = CONVERSATION(None, check=Text(), metavar="TEXT")(
        "the system message, with chat; on the command line it implies chat"
    )
    special_tokens: bool = CONVERSATION(False)(
        "read control tokens that a prompt spells, such as </s>, as these tokens; without "
        "it they are text"
    )
    source_language: str | None = TRANSLATION(
        None, check=FILLED, metavar="CODE", shown="the tokenizer's"
    )("the source's language, by the model's code, such as eng_Latn, or its beginning")
    target_language: str | None = TRANSLATION(None, check=FILLED, metavar="CODE")(
        "the language to translate into; models of one language take none"
    )
    sentences: bool = TRANSLATION(False)(
        "answer a source sentence by sentence, as is done in any case with one that is "
        "too long for the model; needs kvcast[translation]"
    )
    json_schema: str | Mapping[str, Any] | None = STRUCTURE(
        None, check=_Schema(), metavar="JSON|FILE"
    )(
        "generate JSON that this JSON Schema describes, given as its text (on the command "
        "line also a file, in Python also a dict)"
    )
    json_object: bool = STRUCTURE(False)("generate a JSON object")
    regex: str | None = STRUCTURE(None, check=FILLED, metavar="PATTERN")(
        "generate a text that this regular expression matches as a whole"
    )
    lark: str | None = STRUCTURE(None, check=FILLED, metavar="FILE")(
        "generate a text of this grammar in llguidance's variant of Lark (on the command line a "
        "file)"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chat and self.special_tokens:
            raise UsageError("special_tokens is for ready prompts: leave out chat")
        if len(self._grammars) > 1:
            raise UsageError(
                "a text keeps one grammar: give one of json_schema, json_object, regex and lark"
            )

    @override
    @property
    def constraint(self) -> Grammar | None:
        return next(iter(self._grammars), None)

    @cached_property
    def _grammars(self) -> list[Grammar]:
        grammars = [] if self.grammar is None else [self.grammar]
        if self.json_schema is not None:
            grammars.append(Grammar.json_schema(self.json_schema))
        if self.json_object:
            grammars.append(Grammar.json_object())
        if self.regex is not None:
            grammars.append(Grammar.regex(self.regex))
        if self.lark is not None:
            grammars.append(Grammar.lark(self.lark))
        return grammars


@dataclass(frozen=True, kw_only=True)
class ChatParams(PromptParams):
    """How a conversation is answered.

    Attributes:
        stream: yield the pieces of the answer.

    """

    foreign: ClassVar[ForeignOptions] = {
        name: foreign for name, foreign in TEXT_CALLS.items() if name not in {"stream", "messages"}
    }

    stream: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_switch("stream", self.stream)


@dataclass(frozen=True, kw_only=True)
class EmbedParams(Params):
    """How texts are embedded."""

    prompt_name: str | None = EMBEDDING(
        None, check=FILLED, metavar="NAME", shown="the model's, if it has one"
    )("put the model's prompt of this name before each text, such as query or document")
    prompt: str | None = EMBEDDING(None, check=Text(), metavar="TEXT")(
        "put this before each text, instead of a prompt of the model"
    )
    dimensions: int | None = EMBEDDING(None, least=1, shown="all")(
        "keep so many of each vector's first values, and give it length 1; for models trained "
        "for it (Matryoshka)"
    )
    truncate: bool = EMBEDDING(False)(
        "cut the end of a text that is longer than the model takes, instead of refusing it"
    )

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prompt is not None and self.prompt_name is not None:
            raise UsageError("prompt and prompt_name exclude each other: give one of them")


@dataclass(frozen=True, kw_only=True)
class RerankParams(Params):
    """How documents are ranked for a query."""

    top_n: int | None = RANKING(None, least=1, shown="all")("documents to return, the best ones")
    truncate: bool = RANKING(False)(
        "cut the end of a document that with the query is longer than the model takes, instead of "
        "refusing it"
    )


_P = TypeVar("_P", bound=SamplingParams)
_SAMPLED = frozenset({"temperature", "top_k", "top_p", "min_p"})
_SEARCHED = frozenset({"beam", "length_penalty", "early_stopping", "renormalize_logits"})
_FREE = ("no_repeat_ngram_size", "min_new_tokens", "forced_eos_token_id")
RECOMMENDED = (
    _SAMPLED
    | _SEARCHED
    | {
        "repetition_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "max_new_tokens",
        "min_new_tokens",
        "suppress_tokens",
        "suppress_sequences",
    }
)
"""Options that files may recommend values of."""

_UNSEARCHED = ("temperature", "draft", "reasoning_budget")
"""Options that need a beam of 1."""
_STRUCTURE = ("grammar", "json_schema", "json_object", "regex", "lark")


@dataclass(frozen=True)
class GenerationDefaults:
    values: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        try:
            PromptParams(**self.values)
        except UsageError as error:
            raise KvcastError(
                f"generation_config.json: {error}; --no-generation-config leaves it out"
            ) from None

    def params(self, kind: type[_P], given: Mapping[str, Any]) -> _P:
        """Return options of this kind; raises UsageError for options that are not supported."""
        given = {name: plain(value) for name, value in given.items()}
        taken = self.applicable(given)
        params = kind(**taken | dict(given))
        object.__setattr__(params, "generation_config", taken)
        return params

    def applicable(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recommended values that apply, given a user's options."""
        taken = {name: value for name, value in self.values.items() if name not in given}
        if given.get("beam", 1) != 1 or given.get("temperature") == 0:  # nothing is sampled
            taken = {name: value for name, value in taken.items() if name not in _SAMPLED}
        alone = given.get("beam", taken.get("beam", 1)) == 1 or any(map(given.get, _UNSEARCHED))
        if alone:
            taken = {name: value for name, value in taken.items() if name not in _SEARCHED}
        if any(given.get(name) for name in _STRUCTURE):  # JSON repeats itself, and ends by itself
            taken = {name: value for name, value in taken.items() if name not in _FREE}
        if "min_new_tokens" in taken and "max_new_tokens" in given:
            taken["min_new_tokens"] = min(taken["min_new_tokens"], given["max_new_tokens"])
        return taken

    def conversing(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As `applicable`; where nobody chooses how to sample, with llama.cpp's defaults.

        At a temperature of 1, over all tokens, small models ramble; without one they repeat
        themselves, and answer again what they answered before.
        """
        taken = self.applicable(given)
        return taken if _SAMPLED & {*taken, *given} else _LLAMA_CPP | taken


_LLAMA_CPP = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
NO_DEFAULTS = GenerationDefaults()


class HasDefaults(Protocol):
    @property
    def defaults(self) -> GenerationDefaults:
        """The recommended values."""


def completed(kind: type[_P], owner: HasDefaults, given: Mapping[str, Any]) -> _P:
    return owner.defaults.params(kind, given)


def completed_alone(kind: type[_P], owner: HasDefaults, given: Mapping[str, Any]) -> _P:
    """As `completed`, for one text without a beam search."""
    return owner.defaults.params(kind, {"beam": 1, **given})


def completed_answer(kind: type[_P], owner: HasDefaults, given: Mapping[str, Any]) -> _P:
    """As `completed`, or for a stream as `completed_alone`."""
    return (completed_alone if given.get("stream") is True else completed)(kind, owner, given)
