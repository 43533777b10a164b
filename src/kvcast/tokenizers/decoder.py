"""Decodes tokens to text, at once or one by one: each token is bytes, and bytes form characters."""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from typing_extensions import override

from kvcast.spec.text_files import BYTES_BY_CHARACTER

SPACE_MARK = "\u2581"
"""SentencePiece's mark for a space."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]
"""Turns a token as spelt in the vocabulary into its bytes."""


class TextStream(Protocol):
    def push(self, token: int) -> str:
        """Return the text that is now complete; bytes of an incomplete character are held back."""

    def finish(self) -> str:
        """Return the withheld text, with U+FFFD for bytes that make no character."""


@dataclass(frozen=True, kw_only=True)
class TokenDecoder:
    """Turns tokens into text.

    `token_bytes`: a token's bytes, perhaps a part of a UTF-8 character or none. `leading_spaces`:
    spaces that the tokenizer adds before the first word; decoding removes them.
    """

    token_bytes: Callable[[int], bytes]
    leading_spaces: int

    def decode(self, tokens: Sequence[int]) -> str:
        """Invalid bytes become U+FFFD."""
        stream = self.stream()
        return "".join([*map(stream.push, tokens), stream.finish()])

    def spaces_lost_after(self, token: int) -> int:
        """Leading spaces that a text loses after this token."""
        said = self.token_bytes(token)
        return 0 if said.strip(b" ") else max(0, self.leading_spaces - len(said))

    def stream(self) -> "DecoderStream":
        return DecoderStream(self.token_bytes, self.leading_spaces)


class DecoderStream(TextStream):
    def __init__(self, token_bytes: Callable[[int], bytes], leading_spaces: int) -> None:
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._leading_spaces = leading_spaces

    @override
    def push(self, token: int) -> str:
        return self._begun(self._utf8.decode(self._token_bytes(token)))

    @override
    def finish(self) -> str:
        return self._begun(self._utf8.decode(b"", final=True))

    def _begun(self, text: str) -> str:
        while self._leading_spaces and text:
            if text[0] != " ":
                self._leading_spaces = 0
                break
            text = text[1:]
            self._leading_spaces -= 1
        return text


def byte_level(spelled: str) -> bytes:
    try:
        return bytes(BYTES_BY_CHARACTER[character] for character in spelled)
    except KeyError:  # as in Hugging Face's decoder, such a token is its characters
        return spelled.encode()


def sentencepiece(spelled: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(spelled):
        return bytes.fromhex(byte[1])
    return spelled.replace(SPACE_MARK, " ").encode()


def joined(spelled: str) -> bytes:
    """Put a space before a token, as the tokenizers library does between all without a decoder."""
    return b" " + spelled.encode()


def read_decoder(description: Mapping[str, Any] | None) -> tuple[Spelling, int]:
    """Return the spelling and the number of leading spaces from tokenizer.json's "decoder".

    ValueError for an unsupported decoder, KeyError or TypeError for a damaged one.
    """
    if description is None:
        return joined, 1
    steps = _steps(description)
    if any(step["type"] == "ByteLevel" for step in steps):
        return byte_level, 0
    leading_spaces = 0
    for step in steps:
        match step:
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}:
                pass
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0}:
                leading_spaces += start
            case {"type": "Metaspace", "replacement": "\u2581"}:
                leading_spaces += step.get("prepend_scheme", "always") != "never"
            case _:
                raise ValueError(f"its decoder has a step {step['type']} of an unknown kind")
    if not leading_spaces and not any(step["type"] in ("Replace", "Metaspace") for step in steps):
        raise ValueError("its decoder does not say how tokens become text")
    return sentencepiece, leading_spaces


def _steps(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if description["type"] != "Sequence":
        return [description]
    return [step for part in description["decoders"] for step in _steps(part)]
