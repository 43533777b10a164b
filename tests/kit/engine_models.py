"""Random models with tokenizers, for engines that serve them."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kit.bundles import opened
from kit.letters import ALPHABET, VOCAB, Letters
from kvcast.chat.tool_calls import NO_TOOLS, ToolForm
from kvcast.errors import UsageError
from kvcast.families.decoder import DecoderDimensions
from kvcast.families.t5 import T5Dimensions
from kvcast.families.unilm import UnilmDimensions
from kvcast.text.model import TextModel
from kvcast.text.t5 import T5Model
from kvcast.text.unilm import UnilmModel
from kvcast.tokenizers.decoder import TokenDecoder

_KINDS: dict[type, type] = {
    DecoderDimensions: TextModel,
    T5Dimensions: T5Model,
    UnilmDimensions: UnilmModel,
}


class Dashes(Letters):
    """Tokens beyond the letters are dashes, and the last token ends a text."""

    def __init__(self, vocab: int) -> None:
        super().__init__(begins=False)
        self.decoder = TokenDecoder(
            token_bytes=lambda token: self.spelled(token).encode(), leading_spaces=0
        )
        self._vocab = vocab
        self.end_tokens = (vocab - 1,)

    @property
    def vocab_size(self) -> int:
        return self._vocab

    def encode(self, text: str) -> list[int]:
        known = "".join(letter if letter in f"{ALPHABET}-" else "?" for letter in text)
        first, *others = map(super().encode, known.split("-"))
        return first + [token for other in others for token in (VOCAB, *other)]

    def spelled(self, token: int) -> str:
        return super().spelled(token) or "-"

    @property
    def tool_form(self) -> ToolForm:
        raise UsageError(NO_TOOLS)


def model(dimensions: Any, runtime: str) -> Any:
    """Return the model of these dimensions; its runtime is opened once."""
    kind = _KINDS[type(dimensions)]
    return kind(opened(dimensions, runtime=runtime), Dashes(dimensions.vocab_size), dimensions)


def prompt(length: int, seed: int) -> list[int]:
    """Return random token ids."""
    return np.random.default_rng(seed).integers(3, 150, length).tolist()


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread does; it may be a slow machine."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it did not come to pass")
