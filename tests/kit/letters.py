"""A tokenizer of one token a letter, for texts that can be read in a test."""

from collections.abc import Sequence

from kvcast.chat.conversation import Message
from kvcast.errors import KvcastError

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
