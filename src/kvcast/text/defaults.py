"""Values of options that a model's own files recommend, as generation_config.json has them.

They count where the user leaves an option open. Knows no file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from kvcast.decoding.params import SamplingParams
from kvcast.errors import KvcastError, UsageError
from kvcast.text.params import PromptParams

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
    """Recommended values by the names of their options."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise KvcastError for values that no option takes."""
        try:
            PromptParams(**self.values)
        except UsageError as error:
            raise KvcastError(
                f"generation_config.json: {error}; --no-generation-config leaves it out"
            ) from None

    def params(self, kind: type[_P], given: Mapping[str, Any]) -> _P:
        """Return options of this kind; raises UsageError for those that cannot be served."""
        taken = self.taken(given)
        params = kind(**taken | dict(given))
        object.__setattr__(params, "generation_config", taken)
        return params

    def taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that count beside options that were given."""
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


NO_DEFAULTS = GenerationDefaults()


class HasDefaults(Protocol):
    """A model, or a part of one, that recommends values."""

    @property
    def defaults(self) -> GenerationDefaults:
        """The recommended values."""


def completed(kind: type[_P], owner: HasDefaults, given: Mapping[str, Any]) -> _P:
    """Return a call's options, with the values that its model recommends for open ones."""
    return owner.defaults.params(kind, given)


def completed_alone(kind: type[_P], owner: HasDefaults, given: Mapping[str, Any]) -> _P:
    """Return options as `completed` does, of one text that is found without a search."""
    return owner.defaults.params(kind, {"beam": 1, **given})
