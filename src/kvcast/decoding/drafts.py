"""The values of `draft`, for models of every kind.

A model may draft for another one of the same family and tokens; drafts change no result, so there
is no need to compare more. Knows no model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvcast.decoding.drafters import ModelDrafting, NgramDrafting
from kvcast.decoding.params import NGRAM
from kvcast.decoding.speculation import Speculations
from kvcast.errors import UsageError
from kvcast.runtimes.base import Runtime
from kvcast.tokenizers.base import Vocabulary, texts_of_tokens


@dataclass(frozen=True, kw_only=True)
class Paired:
    """A model as one of a pair, of which the smaller drafts.

    Attributes:
        runtime: runs the model.
        family: the kind of model; models of one kind read the same prompts and inputs.
        vocabulary: the text of its tokens.
        tokens: number of tokens to choose from; tables may be padded.
        longest: most positions of a sequence.
        chunk: most tokens of a prompt that it reads in one call; None is all.

    """

    runtime: Runtime
    family: str
    vocabulary: Vocabulary
    tokens: int
    longest: int
    chunk: int | None = None

    @cached_property
    def texts(self) -> Sequence[str]:
        """The text of each token."""
        return texts_of_tokens(self.vocabulary)


def speculations(draft: Any, larger: Paired) -> Speculations | None:
    """Return drafts for a model, or None without `draft`.

    Raises UsageError for a model that cannot draft for it.
    """
    if draft is None:
        return None
    if draft == NGRAM:
        return Speculations(NgramDrafting())
    smaller = getattr(draft, "paired", None)
    if not isinstance(smaller, Paired):
        raise UsageError(f"draft must be {NGRAM}, or a model that kvcast.load returned")
    if smaller.family != larger.family:
        raise UsageError(
            f"draft is a {smaller.family} model and this one is {larger.family}: give another draft"
        )
    if smaller.vocabulary is not larger.vocabulary and smaller.texts != larger.texts:
        raise UsageError("draft has another vocabulary than this model: give another draft")
    drafting = ModelDrafting(
        smaller.runtime,
        longest=smaller.longest,
        vocabulary=min(smaller.tokens, larger.tokens),
        chunk=smaller.chunk,
    )
    return Speculations(drafting)
