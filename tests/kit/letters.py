"""Tokenizers of one token a letter, for texts that can be read in a test."""

import re
import string
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from kvcast.chat.conversation import Message, Tool, check_conversation
from kvcast.chat.tool_calls import HERMES, ToolForm
from kvcast.errors import KvcastError, UsageError
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.decoder import TokenDecoder
from kvcast.tokenizers.languages import Languages

END, BEGIN, FIRST = 0, 1, 2
ALPHABET = "abcdefghijklmnopqrstuvwxyz .!?"
VOCAB = FIRST + len(ALPHABET)


class LetterStream:
    """Like SentencePiece, takes a space away from before the first word."""

    def __init__(self, tokenizer: "Letters") -> None:
        self._tokenizer = tokenizer
        self._begun = False

    def push(self, token: int) -> str:
        text = self._tokenizer.spelled(token)
        if not self._begun and text:
            self._begun = True
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        return ""


class Letters:
    """With a beginning-of-text token, or without."""

    end_tokens = (END,)
    languages: Languages | None = None
    source_language: str | None = None
    translates = False

    def __init__(self, begins: bool = True, chat: bool = True) -> None:
        self._begin = [BEGIN] if begins else []
        self._chat = chat

    @property
    def vocab_size(self) -> int:
        return VOCAB

    def encode(self, text: str) -> list[int]:
        return [*self._begin, *(FIRST + ALPHABET.index(letter) for letter in text)]

    def encode_chat(self, messages: Sequence[Message], tools: object = None) -> list[int]:
        if not self._chat:
            raise KvcastError("no chat template: leave out chat")
        turns = [f"{m['role'][0]}.{m['content']}!" for m in messages]
        return self.encode("".join(turns) + "a.")

    def decode(self, tokens: Sequence[int]) -> str:
        stream = self.stream()
        return "".join(map(stream.push, tokens))

    def spelled(self, token: int) -> str:
        return ALPHABET[token - FIRST] if FIRST <= token < VOCAB else ""

    def stream(self) -> LetterStream:
        return LetterStream(self)


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
        raise UsageError("this model does not support tools")

    def control_tokens(self, _: Sequence[str]) -> dict[str, int]:
        return {}

    def encode_ready(self, text: str) -> list[int]:
        return TextTokenizer.encode_ready(self, text)


class LettersAlone(Letters):
    """Few letters, and no way to spell others."""

    @property
    def decoder(self) -> TokenDecoder:
        return TokenDecoder(
            token_bytes=lambda token: self.spelled(token).encode(), leading_spaces=0
        )

    def encode(self, text: str) -> list[int]:
        return super().encode("".join(letter for letter in text if letter in ALPHABET))


class LetterTokenizer:
    """One token a letter; `stand_for` are other bytes for some, such as halves of a character."""

    answer = "a."
    """The end of the template: the answer follows."""
    letters = string.ascii_letters + string.digits + string.punctuation + " \n"
    special = MappingProxyType({"<tool_call>": 1, "</tool_call>": 2})
    first = 3
    end_tokens = (END,)
    languages = None
    source_language = None
    translates = False
    tool_form = HERMES
    vocab_size = first + len(letters)

    def __init__(self, stand_for: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self._names = {number: text for text, number in self.special.items()}

        def token_bytes(token: int) -> bytes:
            text = self.spelled(token)
            return stand_for.get(text, text.encode())

        self.decoder = TokenDecoder(token_bytes=token_bytes, leading_spaces=0)
        self.decode = self.decoder.decode
        self.stream = self.decoder.stream

    def spelled(self, token: int) -> str:
        if token in self._names:
            return self._names[token]
        return self.letters[token - self.first] if token >= self.first else ""

    def encode_ready(self, text: str) -> list[int]:
        parts = re.split("(</?tool_call>)", text)
        return [
            t for p in parts for t in ([self.special[p]] if p in self.special else self.encode(p))
        ]

    def encode(self, text: str) -> list[int]:
        return [
            self.first + self.letters.index(letter if letter in self.letters else "?")
            for letter in text
        ]

    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        turns = check_conversation(messages, tools).messages
        return self.encode("".join(f"{m['role'][0]}.{m['content']}!" for m in turns) + self.answer)

    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        return {text: self.special[text] for text in texts if text in self.special}

    def next_token(self, rest: str) -> int:
        """Return the next token of an answer, given its rest."""
        for text, token in self.special.items():
            if rest.startswith(text):
                return token
        return self.first + self.letters.index(rest[0]) if rest else END
