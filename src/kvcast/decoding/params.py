"""Options of decoding: names, types, defaults and meanings; imports no NumPy, for quick help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from typing_extensions import override

from kvcast.decoding.grammar import Grammar
from kvcast.errors import UsageError
from kvcast.foreign_options import TEXT_CALLS, ForeignOptions
from kvcast.options import FILLED, Bounds, Check, Group, Option, Params, shown

SAMPLING = Group("sampling")
SEVERAL = Group("beams and several texts")


NGRAM = "ngram"
"""The draft that needs no model."""


DRAFTS_NO_BEAMS = "draft needs a beam of 1: beams try several tokens as it is"


class DraftModel(Protocol):
    """A loaded model that drafts for a larger one, as `kvcast.load` returns it."""

    @property
    def runtime(self) -> Any:
        """Runs it."""

    @property
    def tokenizer(self) -> Any:
        """Must be that of the larger model."""


class _Drafts(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        if isinstance(value, str):
            return FILLED.problem(value, kind)
        if hasattr(value, "runtime") and hasattr(value, "tokenizer"):
            return None
        return f"must be {NGRAM}, or a model that kvcast.load returned, not {shown(value)}"


def draft_option(group: str) -> Option:
    return Option(
        group=group,
        help="guess several tokens, which the model checks in one call; the result is the same. "
        f"{NGRAM} repeats what the text so far says, and a smaller model of the same vocabulary "
        "writes ahead (in Python, what kvcast.load returned for it)",
        check=_Drafts(),
        metavar=f"{NGRAM}|MODEL",
    )


BIAS = Bounds(least=-100, most=100)
"""Bounds of the bias that is added to a token's score."""


class _Biases(Check):
    @override
    def problem(self, value: Any, kind: type) -> str | None:
        try:
            biases = read_biases(value)
        except (TypeError, ValueError, AttributeError):
            return f"must be token ids with numbers, such as 11:-100,13:2.5, not {shown(value)}"
        if negative := [token for token in biases if token < 0]:
            return f"names token {negative[0]}: ids begin at 0"
        problems = ((t, BIAS.problem(bias, float)) for t, bias in biases.items())
        return next((f"of token {t} {problem}" for t, problem in problems if problem), None)


def read_biases(given: "str | Mapping[int, float] | None") -> dict[int, float]:
    """Return logit biases by token; raises TypeError, ValueError or AttributeError if malformed."""
    if isinstance(given, str):
        pairs = [pair.split(":") for pair in given.split(",")]
        biases = {int(token): float(bias) for token, bias in pairs}
        if len(biases) < len(pairs):
            raise ValueError("one token has two numbers")
        return biases
    # JSON has its keys as strings.
    return {int(token): bias for token, bias in (given or {}).items()}


def check_switch(name: str, value: object) -> None:
    if type(value) is not bool:
        raise UsageError(f"{name} must be True or False, not {shown(value)}")


def _are_several_tokens(value: Any) -> bool:
    return _are_tokens(value) and len(value) >= 2


def _are_tokens(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return all(type(token) is int and token >= 0 for token in value)


@dataclass(frozen=True, kw_only=True)
class SamplingParams(Params):
    """How texts are generated after a prompt.

    Raises:
        UsageError: a value is out of bounds, or options exclude each other.

    """

    foreign: ClassVar[ForeignOptions] = TEXT_CALLS

    max_new_tokens: int = SAMPLING(256, least=1)("maximum number of tokens to generate")
    min_new_tokens: int = SAMPLING(0, least=0)(
        "choose no end token before the text has this many tokens; a stop string may still end it"
    )
    reasoning_budget: int | None = SAMPLING(None, least=0, shown="no limit")(
        "most tokens between <think> and </think>, which is written then"
    )
    temperature: float = SAMPLING(0.0, least=0, metavar="T")(
        "0 always chooses the most likely token; above 0 samples"
    )
    top_k: int | None = SAMPLING(None, least=1, metavar="K", shown="all")(
        "sample from this many most likely tokens"
    )
    top_p: float = SAMPLING(1.0, above=0, most=1, metavar="P", shown="1, all")(
        "sample from the most likely tokens that together reach this probability"
    )
    min_p: float = SAMPLING(0.0, least=0, most=1, metavar="P", shown="0, all")(
        "sample from tokens with at least this share of the most likely token's probability"
    )
    repetition_penalty: float = SAMPLING(1.0, above=0, metavar="X")(
        "above 1, makes tokens that are in the prompt or the text less likely"
    )
    no_repeat_ngram_size: int | None = SAMPLING(None, least=1, shown="any may")(
        "let no sequence of this many tokens come twice in prompt and text"
    )
    presence_penalty: float = SAMPLING(0.0, least=-2, most=2, metavar="X")(
        "taken off the score of each token that the text has, not counting the prompt"
    )
    frequency_penalty: float = SAMPLING(0.0, least=-2, most=2, metavar="X")(
        "taken off a token's score for each time that the text has it"
    )
    logit_bias: str | Mapping[int, float] | None = SAMPLING(
        None, check=_Biases(), metavar="ID:X[,ID:X…]"
    )(
        f"what is added to the scores of tokens, {BIAS}: id:number,id:number,… (in Python "
        "also a mapping)"
    )
    forced_bos_token_id: int | None = SAMPLING(None, least=0, metavar="ID", shown="the likeliest")(
        "the first token of a text that follows a single token, as a T5's answer does"
    )
    forced_eos_token_id: int | None = SAMPLING(None, least=0, metavar="ID", shown="the likeliest")(
        "the last token of a text that gets as long as max_new_tokens allows"
    )
    encoder_no_repeat_ngram_size: int | None = SAMPLING(None, least=1, shown="any may")(
        "let no sequence of this many tokens of an encoder's source come in the text"
    )
    stop: str | Sequence[str] = SAMPLING((), check=FILLED, metavar="TEXT")(
        "end before this string; there may be several"
    )
    seed: int = SAMPLING(0, least=0)("seed for sampling")
    chunk: int | None = SAMPLING(None, least=1, shown="512")(
        "tokens of a prompt that are processed at once; T5 and UniLM read it whole and "
        "take no chunk"
    )
    logprobs: bool = SAMPLING(False)("also return the log-probability of each token")
    top_logprobs: int = SAMPLING(0, least=0, metavar="K")(
        "also return so many of the likeliest tokens at each place, with their log-probabilities"
    )
    draft: str | DraftModel | None = draft_option(SAMPLING)(None)
    beam: int = SEVERAL(1, least=1, flags=("--beam", "--beam-size"), shown="1, greedy")(
        "beams at temperature 0; at most the number of the model's tokens"
    )
    length_penalty: float = SEVERAL(1.0, check=Bounds(), metavar="ALPHA")(
        "with beams, exponent of the length by which scores are divided"
    )
    early_stopping: bool = SEVERAL(False)(
        "with beams, end a prompt's search as soon as there are as many finished texts as "
        "beams; otherwise, when no unfinished text can get among the best"
    )
    n: int = SEVERAL(1, least=1, flags=("--n", "--num-return"))(
        "texts per prompt: samples at a temperature above 0, or the best beams; those of "
        "a UniLM are ranked by similarity to the prompt"
    )
    batch: int = SEVERAL(8, least=1)(
        "texts that are generated at once; with beams, prompts that are searched at once"
    )
    grammar: Grammar | None = None
    """The grammar that the text must keep; needs kvcast[structured]."""
    suppress_tokens: Sequence[int] = ()
    """Tokens that are never chosen."""
    suppress_sequences: Sequence[Sequence[int]] = ()
    """Sequences of two or more tokens that come in no text."""
    renormalize_logits: bool = False
    """Whether beams are ranked by probabilities among the tokens that may be chosen."""
    progress: bool = False
    """Show a bar of the prompts that are done."""
    generation_config: Mapping[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Values among these that the model's generation_config.json recommends."""

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise UsageError(f"grammar must be a kvcast.Grammar, not {shown(self.grammar)}")
        suppressed = self.suppress_tokens
        if not _are_tokens(suppressed):
            raise UsageError("suppress_tokens must be token ids")
        sequences = self.suppress_sequences
        if not isinstance(sequences, list | tuple) or not all(map(_are_several_tokens, sequences)):
            raise UsageError("suppress_sequences must be lists of two or more token ids")
        for name in ("early_stopping", "renormalize_logits", "progress"):
            check_switch(name, getattr(self, name))
        if self.constraint is not None and self.min_new_tokens:
            raise UsageError(
                "min_new_tokens needs a text without a grammar, which decides when it may end"
            )
        if self.min_new_tokens > self.max_new_tokens:
            raise UsageError(
                f"min_new_tokens must be from 0 to {self.max_new_tokens}, which is "
                f"max_new_tokens, not {self.min_new_tokens}"
            )
        if self.beam > 1 and self.temperature > 0:
            raise UsageError("beam needs temperature 0: above it n samples are drawn")
        if self.beam > 1 and self.reasoning_budget is not None:
            raise UsageError("reasoning_budget needs a beam of 1")
        if self.beam > 1 and self.draft is not None:
            raise UsageError(DRAFTS_NO_BEAMS)
        if self.beam == 1 and self.length_penalty != 1:
            raise UsageError("length_penalty needs a beam of 2 or more")
        if self.beam == 1 and self.early_stopping:
            raise UsageError("early_stopping needs a beam of 2 or more")
        if self.beam == 1 and self.n > 1 and self.temperature == 0:
            raise UsageError(
                "n needs a temperature above 0, or a beam of n or more: at 0 all texts are the same"
            )
        if 1 < self.beam < self.n:
            raise UsageError(f"n must be at most {self.beam}, the beam, not {self.n}")

    @property
    def constraint(self) -> Grammar | None:
        return self.grammar

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def biases(self) -> dict[int, float]:
        return read_biases(self.logit_bias)

    @property
    def is_one_text(self) -> bool:
        """Whether there is one text without beams, which can be streamed."""
        return not set(self.changed(SEVERAL)) - {"batch"}

    def check_one_text(self) -> None:
        if names := self.changed(SEVERAL):
            raise UsageError(f"a stream is one text: leave out {' and '.join(names)}")
