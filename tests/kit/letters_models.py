"""Models of letters that write what a test wants, with a chat template and tools."""

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kit.recomputing_runtime import RecomputingRuntime, Written
from kit.structured_models import decoder_dimensions
from kvcast.chat.conversation import Message, Tool, checked
from kvcast.chat.tool_calls import HERMES
from kvcast.text.model import TextModel
from kvcast.tokenizers.decoder import TokenDecoder

LETTERS = string.ascii_letters + string.digits + string.punctuation + " \n"
END, SPECIAL, FIRST = 0, {"<tool_call>": 1, "</tool_call>": 2}, 3
VOCAB = FIRST + len(LETTERS)
ANSWER = "a."
"""What the template ends with: the answer follows."""


class LetterTokenizer:
    """One token a letter; `stand_for` are other bytes for some, such as halves of a character."""

    end_tokens = (END,)
    tool_form = HERMES
    vocab_size = VOCAB

    def __init__(self, stand_for: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._names = {number: text for text, number in SPECIAL.items()}

        def token_bytes(token: int) -> bytes:
            text = self.spelled(token)
            return stand_for.get(text, text.encode())

        self.decoder = TokenDecoder(token_bytes=token_bytes, leading_spaces=0)
        self.decode = self.decoder.decode
        self.stream = self.decoder.stream

    def spelled(self, token: int) -> str:
        if token in self._names:
            return self._names[token]
        return LETTERS[token - FIRST] if token >= FIRST else ""

    def encode(self, text: str) -> list[int]:
        return [FIRST + LETTERS.index(letter if letter in LETTERS else "?") for letter in text]

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        turns = checked(messages, tools).messages
        return self.encode("".join(f"{m['role'][0]}.{m['content']}!" for m in turns) + ANSWER)

    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        return {text: SPECIAL[text] for text in texts if text in SPECIAL}


def saying(
    answer: str | Callable[[str], str],
    positions: int = 2000,
    before_step: Callable[[], Any] = lambda: None,
    tokenizer: LetterTokenizer | None = None,
) -> TextModel:
    """Return a model that answers so, whatever is asked, or as a function of the prompt.

    `before_step` is called before each row's logits are computed.
    """
    tokenizer = tokenizer or LetterTokenizer()

    def logits(written: Written) -> Any:
        before_step()
        logits_sv = np.full((len(written), VOCAB), -30, np.float32)
        said = "".join(map(tokenizer.spelled, written))
        prompt, _, begun = said.rpartition(ANSWER)
        whole = answer if isinstance(answer, str) else answer(prompt)
        rest = whole.removeprefix(begun) if whole.startswith(begun) else ""
        logits_sv[-1, _next(rest)] = 0
        return logits_sv

    dimensions = replace(decoder_dimensions(VOCAB), max_positions=positions)
    return TextModel(RecomputingRuntime(logits), tokenizer, dimensions)


def _next(rest: str) -> int:
    """Return the next token of an answer."""
    for text, token in SPECIAL.items():
        if rest.startswith(text):
            return token
    return FIRST + LETTERS.index(rest[0]) if rest else END
