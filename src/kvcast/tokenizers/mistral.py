"""Tokenizers in Mistral's own formats, tekken.json and tokenizer.model, through mistral-common.

That library is an optional extra. It formats conversations itself, without a template, and never
turns the content of a message into control tokens.
"""

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from kvcast.chat.conversation import Message, Tool, check_conversation, in_words
from kvcast.chat.tool_calls import IN_WORDS, MISTRAL, MISTRAL_NAMED, ToolForm
from kvcast.errors import KvcastError, in_one_line
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.decoder import TextStream, TokenDecoder, sentencepiece

# All candidates: the tokenizer decides.
_CONTROL = re.compile(r"(\[/?[A-Z_]+\]|</?\w+>)")
_TURN = ("role", "content", "tool_calls", "tool_call_id", "name")
_TEKKEN = "tekken.json"
_SENTENCEPIECE = re.compile(r"tokenizer\.model(\.v\d+(m\d+)?)?")


def is_tokenizer_file(name: str) -> bool:
    return name == _TEKKEN or _SENTENCEPIECE.fullmatch(name) is not None


class MistralTokenizer(TextTokenizer):
    has_chat_template = True  # mistral-common's own

    def __init__(self, name: str, content: bytes) -> None:
        """Take the version from the name; KvcastError without mistral-common, or if it refuses."""
        try:
            from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
            from mistral_common.tokens.tokenizers.mistral import MistralTokenizer as Theirs
        except ImportError:
            raise KvcastError(_needs_extra(name)) from None
        with tempfile.TemporaryDirectory() as folder:  # the library only reads files
            path = Path(folder) / name
            path.write_bytes(content)
            try:
                self._whole: Any = Theirs.from_file(path)
            except ImportError:  # tokenizer.model also needs sentencepiece
                raise KvcastError(_needs_extra(name)) from None
            except Exception as error:  # it uses assertions, and its libraries raise anything
                raise KvcastError(f"{name} is damaged: {_line(error)}; fetch it again") from None
        self._tokenizer = self._whole.instruct_tokenizer.tokenizer
        self.end_tokens: tuple[int, ...] = (self._tokenizer.eos_id,)
        self._form = _form_of(self._tokenizer.version.value)
        markers = () if self._form is None else self._form.markers
        shown = {token: text.encode() for text, token in self.control_tokens(markers).items()}
        token_bytes = (
            partial(
                self._tokenizer.id_to_byte_piece, special_token_policy=SpecialTokenPolicy.IGNORE
            )
            if name == _TEKKEN
            else partial(_sentencepiece_bytes, self._tokenizer)
        )
        self.decoder = TokenDecoder(
            token_bytes=lambda token: shown.get(token) or token_bytes(token),
            leading_spaces=0 if name == _TEKKEN else 1,
        )

    @property
    @override
    def vocab_size(self) -> int:
        size: int = self._tokenizer.n_words
        return size

    @override
    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(whole_characters(text), bos=True, eos=False)
        return ids

    @override
    def encode_ready(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in _CONTROL.split(whole_characters(text)):
            if self._tokenizer.is_special(part):
                ids.append(int(self._tokenizer.get_special_token(part)))
            elif part:
                ids += self._tokenizer.encode(part, bos=False, eos=False)
        begin: int = self._tokenizer.bos_id
        return ids if ids[:1] == [begin] else [begin, *ids]

    @override
    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Raise UsageError for an invalid conversation, KvcastError for an unsupported one."""
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        whole = check_conversation(messages, tools).with_short_ids()
        if whole.has_tools and self._form is None:
            whole = in_words(whole)
        turns = [{key: turn[key] for key in _TURN if key in turn} for turn in whole.messages]
        try:
            request = ChatCompletionRequest(messages=turns, tools=whole.tools or None)
            ids: list[int] = self._whole.encode_chat_completion(request).tokens
        except Exception as error:  # pydantic's, the library's own, and its assertions
            raise KvcastError(f"this model cannot take the conversation: {_line(error)}") from None
        return ids

    @property
    @override
    def tool_form(self) -> ToolForm:
        return IN_WORDS if self._form is None else self._form

    @override
    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        special = filter(self._tokenizer.is_special, texts)
        return {text: int(self._tokenizer.get_special_token(text)) for text in special}

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        return self.decoder.decode(tokens)

    @override
    def stream(self) -> TextStream:
        return self.decoder.stream()


def _sentencepiece_bytes(tokenizer: Any, token: int) -> bytes:
    if tokenizer.is_special(token) or token == tokenizer.unk_id:
        return b""
    return sentencepiece(tokenizer.id_to_piece(token))


def _form_of(version: str) -> ToolForm | None:
    number = int(version.removeprefix("v"))
    if number < 2:
        return None
    return MISTRAL if number < 11 else MISTRAL_NAMED


def _needs_extra(name: str) -> str:
    return f"{name} is read by mistral-common: pip install 'kvcast[mistral]'"


def _line(error: Exception) -> str:
    return in_one_line(f"{type(error).__name__}: {error}")
