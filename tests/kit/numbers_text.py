"""A tokenizer whose texts are token ids with spaces between, so that a test says what it means."""

from collections.abc import Sequence

from kvcast.chat.conversation import Message
from kvcast.errors import KvcastError


class NumberStream:
    """Spells a token at a time."""

    def __init__(self, special: Sequence[int]) -> None:
        self._special = special
        self._begun = False

    def push(self, token: int) -> str:
        if token in self._special:
            return ""
        text = f" {token}" if self._begun else str(token)
        self._begun = True
        return text

    def finish(self) -> str:
        return ""


class Numbers:
    """Sources lie between `before` and `after`; `special` tokens have no text."""

    def __init__(
        self,
        vocab: int,
        *,
        end: int,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        special: Sequence[int] = (),
    ) -> None:
        self.vocab_size = vocab
        self.end_tokens = (end,)
        self._before, self._after = list(before), list(after)
        self._special = {end, *before, *after, *special}

    def encode(self, text: str) -> list[int]:
        return [*self._before, *map(int, text.split()), *self._after]

    def encode_chat(self, messages: Sequence[Message], tools: object = None) -> list[int]:
        raise KvcastError("no chat template: leave out chat")

    def decode(self, tokens: Sequence[int]) -> str:
        stream = self.stream()
        return "".join(map(stream.push, tokens))

    def stream(self) -> NumberStream:
        return NumberStream(tuple(self._special))


def random_sources(count: int, vocab: int, longest: int, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` tokens, none below 5."""
    import numpy as np

    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, count)
    return [" ".join(map(str, generator.integers(5, vocab, length))) for length in lengths]
