"""One call for text: which drafts to write, how, and what comes of them.

Puts together the parts of `kvcast.decoding` for prompts that are tokens already. Knows no
checkpoint, no bundle and no words of prompts.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvcast.decoding.beam_writing import write_beams
from kvcast.decoding.beams import NormalisedBeamSearch
from kvcast.decoding.continuous import write
from kvcast.decoding.drafts import Draft, Endings, Stopwatch, Timings
from kvcast.decoding.prefixes import Prefix, Start
from kvcast.decoding.sampling import TokenChoice
from kvcast.errors import KvcastError, UsageError
from kvcast.text.base import TextTokenizer

Tokens = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class TextGeneration:
    """A text that was generated.

    Attributes:
        text: without the stop string that ended it.
        tokens: without the end token, but with those that spelled a stop string.
        logprobs: natural logarithm of the probability that the model gave each token, before
            penalty, temperature and truncation.
        finish_reason: "stop" (an end token or a stop string came) or "length".
        prompt_tokens: how many tokens came before it, those of a session's prefix among them.
        timings: how long it took.

    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int
    timings: Timings


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


@dataclass(frozen=True, kw_only=True)
class Call:
    """What was asked for, checked; `watch` runs since.

    Attributes:
        start: what is computed already.
        tokenizer: of the model.
        max_positions: longest sequence, prompt and text together.
        choice: how a token is chosen.
        endings: when a text is over.
        search: beams; with 1, texts are written by `choice` alone.
        n: texts for each prompt.
        batch: most texts that are written at once.
        chunk: most tokens of a prompt that are read in one call.
        watch: when it was asked.

    """

    start: Start
    tokenizer: TextTokenizer
    max_positions: int
    choice: TokenChoice
    endings: Endings
    search: NormalisedBeamSearch
    n: int
    batch: int
    chunk: int
    watch: Stopwatch

    def __post_init__(self) -> None:
        beams, temperature = self.search.beams, self.choice.temperature
        for name in ("n", "batch", "chunk"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if beams > 1 and temperature > 0:
            raise UsageError("beam needs temperature 0: above it n samples are drawn")
        if beams == 1 and self.search.length_penalty != 1:
            raise UsageError("length_penalty needs a beam of 2 or more")
        if beams == 1 and self.n > 1 and temperature == 0:
            raise UsageError(
                "n needs a temperature above 0, or a beam of n or more: at 0 all texts are the same"
            )
        if 1 < beams < self.n:
            raise UsageError(f"n must be at most {beams}, the beam, not {self.n}")

    def each(self, prompts: Sequence[Tokens]) -> Iterator[list[TextGeneration]]:
        """Return the texts of each prompt, in order, as they are done.

        Several texts of one prompt share its computation; they are written prompt by prompt.

        Raises:
            UsageError: for a prompt that is empty, or too long for the model.

        """
        for prompt in prompts:
            self._check(prompt)
        if self.search.beams > 1:
            return map(self._beams, prompts)
        streams = self._streams(prompts)
        if self.n > 1:
            return map(self._samples, prompts, streams)
        return self._one_each(prompts, streams)

    def pieces(self, prompt: Tokens) -> TextPieces:
        """Return the pieces of one text; raises as `each`."""
        self._check(prompt)
        draft = self._draft(self.start, prompt, 0, self.watch)
        return TextPieces(draft, write(self.start, [draft], rows=1, chunk=self.chunk))

    def prefix(self, tokens: Tokens) -> Prefix:
        """Compute tokens that can be continued any number of times; raises as `each`."""
        self._check(tokens)
        return self.start.after(tokens, self.chunk)

    def _one_each(
        self, prompts: Sequence[Tokens], streams: Sequence[range]
    ) -> Iterator[list[TextGeneration]]:
        drafts = [
            self._draft(self.start, prompt, stream.start, self.watch.another())
            for prompt, stream in zip(prompts, streams, strict=True)
        ]
        done = 0
        for _ in write(self.start, drafts, rows=self.batch, chunk=self.chunk):
            while done < len(drafts) and drafts[done].finish_reason:
                yield [finished(drafts[done])]
                done += 1

    def _samples(self, prompt: Tokens, streams: range) -> list[TextGeneration]:
        prefix = self.start.after(prompt, self.chunk)
        drafts = [self._draft(prefix, (), stream, self.watch.another()) for stream in streams]
        for _ in write(prefix, drafts, rows=self.batch, chunk=self.chunk):
            pass
        return [finished(draft) for draft in drafts]

    def _beams(self, prompt: Tokens) -> list[TextGeneration]:
        prefix = self.start.after(prompt, self.chunk)
        watch = self.watch.another()
        hypotheses = write_beams(
            prefix,
            self.search,
            ended=self._ends,
            end_tokens=len(self.endings.end_tokens),
            max_new_tokens=self._room(prefix.tokens),
            penalty=self.choice.penalty(),
            on_step=watch.tick,
        )
        drafts = []
        for hypothesis in hypotheses[: self.n]:
            draft = self._draft(prefix, (), 0, watch)
            for token, logprob in zip(hypothesis.tokens, hypothesis.logprobs, strict=True):
                draft.push(token, logprob)
            drafts.append(draft)
        return [finished(draft) for draft in drafts]

    def _streams(self, prompts: Sequence[Tokens]) -> list[range]:
        """Return numbers that seed each prompt's texts.

        They depend on how often the same prompt came before, and on nothing else of its
        neighbours: the order of prompts does not matter, and no text of a prompt repeats another's.
        """
        used: Counter[tuple[int, ...]] = Counter()
        streams = []
        for prompt in map(tuple, prompts):
            streams.append(range(used[prompt], used[prompt] + self.n))
            used[prompt] += self.n
        return streams

    def _draft(self, start: Start, prompt: Tokens, stream: int, watch: Stopwatch) -> Draft:
        sequence = (*start.tokens, *prompt)
        return Draft(
            sequence,
            read=len(start.tokens),
            endings=replace(self.endings, max_new_tokens=self._room(sequence)),
            choose=self.choice.chooser(stream),
            tokenizer=self.tokenizer,
            watch=watch,
        )

    def _ends(self, tokens: Tokens) -> bool:
        """Tell whether the last of these new tokens ends a text."""
        if tokens[-1] in self.endings.end_tokens:
            return True
        stops = self.endings.stops.strings
        return bool(stops) and any(stop in self.tokenizer.decode(tokens) for stop in stops)

    def _room(self, prompt: Tokens) -> int:
        return min(self.endings.max_new_tokens, self.max_positions - len(prompt))

    def _check(self, prompt: Tokens) -> None:
        length = len(self.start.tokens) + len(prompt)
        if not length:
            raise UsageError("the prompt is empty: give at least one character")
        if self.max_positions <= length:
            raise UsageError(
                f"the prompt has {length} tokens and the model takes {self.max_positions - 1} "
                "at most: shorten it"
            )
