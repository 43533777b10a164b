"""What comes of generating: a text, or its pieces as they come.

Knows drafts, and nothing of how they are written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvcast.decoding.drafts import Draft, Timings
from kvcast.errors import KvcastError


@dataclass(frozen=True, kw_only=True)
class TextGeneration:
    """A text that was generated.

    Attributes:
        text: without the stop string that ended it.
        tokens: without the end token, but with those that spelled a stop string.
        logprobs: natural logarithm of the probability that the model gave each token, before
            penalty, temperature and truncation.
        finish_reason: "stop" (an end token or a stop string came) or "length".
        prompt_tokens: how many tokens the prompt or source has, those of a session's prefix among
            them.
        timings: how long it took.
        score: with beams, what they are ranked by: the sum of log-probabilities, as they were
            searched by, over length ** length_penalty.
        similarity: of a UniLM's several texts, the cosine between the embeddings of source and
            text.

    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int
    timings: Timings
    score: float | None = None
    similarity: float | None = None


def finished(draft: Draft) -> TextGeneration:
    """Return what a draft came to; raises KvcastError while it is under way."""
    if draft.finish_reason is None:
        raise KvcastError("the text is not finished: take all of its pieces first")
    return TextGeneration(
        text="".join(draft.pieces),
        tokens=tuple(draft.tokens),
        logprobs=tuple(draft.logprobs),
        finish_reason=draft.finish_reason,
        prompt_tokens=draft.prompt_tokens,
        timings=draft.watch.timings(),
    )


class TextPieces(Iterator[str]):
    """Pieces of one text, generated while they are taken; can be taken once."""

    def __init__(self, draft: Draft, progress: Iterator[Draft]) -> None:
        self._draft = draft
        self._pieces = _pieces(progress)

    def __next__(self) -> str:
        """Generate until some text is certain."""
        return next(self._pieces)

    @property
    def result(self) -> TextGeneration:
        """The whole, once the last piece was taken; raises KvcastError before."""
        return finished(self._draft)


def _pieces(progress: Iterator[Draft]) -> Iterator[str]:
    shown = 0
    for draft in progress:
        yield from filter(None, draft.pieces[shown:])
        shown = len(draft.pieces)
