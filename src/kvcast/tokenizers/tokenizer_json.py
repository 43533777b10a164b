"""Hugging Face tokenizers: tokenizer.json, through the tokenizers library.

Users' text never becomes a control token, although the library recognises special tokens
wherever they are spelt out. If a prompt or a message spells one, the first character of that token
is replaced by a stand-in from Unicode's private use area. Templates treat it like any other
character. A twin of the tokenizer recognises special tokens first, and turns stand-ins back
afterwards, when it normalises the text. So templates may move and change texts freely, and texts
that spell no special token go through the unchanged tokenizer, as in transformers.

A Unigram vocabulary has special tokens among its pieces, so there the twin also splits any that
the normalised text spells.

Special tokens are the tokens that tokenizer.json marks as special, and end tokens. Other added
tokens, such as Qwen's <think>, are recognised in any text, as elsewhere. So are T5's
sentinels, unless there is a chat template, which may use them as control tokens.

Reads no files: the caller gives a tokenizer.json's content.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from typing_extensions import override

from kvcast.chat.conversation import (
    HEADING,
    Conversation,
    Message,
    Tool,
    check_conversation,
    in_words,
    without_system,
)
from kvcast.chat.templates import NO_TEMPLATE, ChatTemplate, TemplateRefusalError
from kvcast.chat.tool_calls import IN_WORDS, MISTRAL, MISTRAL_NAMED, UNKNOWN_FORM, ToolForm
from kvcast.errors import KvcastError, UsageError, in_one_line
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.decoder import Spelling, TextStream, TokenDecoder, joined, read_decoder
from kvcast.tokenizers.validation import check_bounds, check_charsmap, steps
from kvcast.tokenizers.vocabulary import SENTINEL, encoding_of, ids_of
from tokenizers import AddedToken, Encoding, Tokenizer

_FIRST_STAND_IN = 0x10F000  # in the last private use plane


class JsonTokenizer(TextTokenizer):
    def __init__(
        self,
        tokenizer_json: bytes,
        end_tokens: Sequence[int],
        template: ChatTemplate | None,
        label: str = "tokenizer.json",
        *,
        added_tokens: Sequence[Mapping[str, Any]] = (),
        special_tokens: Sequence[str] = (),
    ) -> None:
        """`added_tokens` replace or follow the file's own; `special_tokens` are always special.

        KvcastError, naming `label`, if it is damaged, or its tokens are not plain bytes.
        """
        self._what = label
        with _one_line(f"{label} cannot be read"):
            description = json.loads(tokenizer_json)
            check_bounds(description)
            _check(description)
            self._tokenizer: Tokenizer = Tokenizer.from_str(tokenizer_json.decode())
            spelling, leading_spaces = self.read_spelling(description)
            self._tokenizer.add_tokens([AddedToken(**token) for token in added_tokens])
            added = self._tokenizer.get_added_tokens_decoder().values()
            known = {token.content for token in added}
            lacking = [text for text in special_tokens if text not in known]
            self._tokenizer.add_special_tokens(lacking)
        self._unigram = description["model"].get("type") == "Unigram"
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._added = self._tokenizer.get_added_tokens_decoder()
        self._spelling = spelling
        self._spelling_of_added: Spelling = joined if spelling is joined else str.encode
        self.decoder = TokenDecoder(token_bytes=self._token_bytes, leading_spaces=leading_spaces)
        self._template = template
        self.has_chat_template = template is not None
        self._form = None if template is None else template.tool_form
        # Without them the rest would make no sense.
        self._shown = frozenset(() if self._form is None else self._form.markers)
        self.end_tokens = tuple(end_tokens)
        if unknown := [t for t in end_tokens if self._tokenizer.id_to_token(t) is None]:
            raise KvcastError(
                f"end token {unknown[0]} is not in {label}: the files belong to two models"
            )

    def read_spelling(self, description: Mapping[str, Any]) -> tuple[Spelling, int]:
        """Return how tokens spell bytes, and the spaces before a text; ValueError if unknown."""
        return read_decoder(description.get("decoder"))

    @property
    @override
    def vocab_size(self) -> int:
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    @override
    def encode(self, text: str) -> list[int]:
        whole = whole_characters(text)
        return self._encode(self.neutral(whole), [whole], add_special_tokens=True)

    @override
    def encode_ready(self, text: str) -> list[int]:
        whole = whole_characters(text)
        with _one_line(f"{self._what} cannot take this text"):
            plain = ids_of(self._tokenizer, whole, add_special_tokens=False)
            begun = ids_of(self._tokenizer, "", add_special_tokens=True)
            if begun and plain[: len(begun)] == begun:
                return plain
            return ids_of(self._tokenizer, whole, add_special_tokens=True)

    @override
    def encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """In messages and tools, special tokens are plain text; only the template has them.

        A template without tools gets them described in words. KvcastError without a template, or if
        it refuses, fails or does more than format text; UsageError for an invalid conversation.
        """
        if self._template is None:
            raise KvcastError(NO_TEMPLATE)
        in_parts = self._template.reads_parts and (self._template.knows_tools or not tools)
        whole = check_conversation(messages, tools, parts=in_parts)
        if not self._template.knows_tools and whole.has_tools:
            whole, prompt = self._with_tools_in_words(self._template, in_words(whole))
        else:
            if self._form in {MISTRAL, MISTRAL_NAMED}:
                whole = whole.with_short_ids()
            prompt = self._rendered(self._template, whole)
        return self._encode(prompt, whole.texts(), add_special_tokens=False)

    @override
    def encode_chat_ready(self, messages: Sequence[Message]) -> list[int]:
        if self._template is None:
            return super().encode_chat_ready(messages)
        prompt = self._template.render(check_conversation(messages, None).messages)
        with _one_line(f"{self._what} cannot take this text"):
            return ids_of(self._tokenizer, prompt, add_special_tokens=False)

    def _rendered(self, template: ChatTemplate, whole: Conversation) -> str:
        neutral = whole.map_strings(self.neutral)
        return template.render(neutral.messages, neutral.tools)

    def _with_tools_in_words(
        self, template: ChatTemplate, whole: Conversation
    ) -> tuple[Conversation, str]:
        """Return the conversation, and the prompt; some templates take no system message."""
        spoken = without_system(whole)
        try:
            prompt = self._rendered(template, whole)
        except TemplateRefusalError:
            return spoken, self._rendered(template, spoken)
        told = any(HEADING in text for text in whole.texts())
        if told and HEADING not in prompt:
            return spoken, self._rendered(template, spoken)
        return whole, prompt

    @property
    @override
    def tool_form(self) -> ToolForm:
        if self._template is None:
            raise UsageError(NO_TEMPLATE)
        if not self._template.knows_tools:
            return IN_WORDS
        if self._form is None:
            raise UsageError(UNKNOWN_FORM)
        return self._form

    @override
    def control_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        return {
            added.content: token
            for token, added in self._added.items()
            if added.content in texts and self._is_special(token)
        }

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        return self.decoder.decode(tokens)

    @override
    def stream(self) -> TextStream:
        return self.decoder.stream()

    def _encode(self, prompt: str, texts: Sequence[str], *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self.encoding(prompt, texts, add_special_tokens=add_special_tokens).ids
        return ids

    def encoding(
        self, prompt: str | tuple[str, ...], texts: Sequence[str], *, add_special_tokens: bool
    ) -> Encoding:
        """Encode a prompt, or a pair of texts, made `neutral` of users' texts."""
        with _one_line(f"{self._what} cannot take this text"):
            tokenizer = self._twin if any(map(self._spells_special, texts)) else self._tokenizer
            return encoding_of(tokenizer, prompt, add_special_tokens=add_special_tokens)

    def _token_bytes(self, token: int) -> bytes:
        if added := self._added.get(token):
            hidden = self._is_special(token) and added.content not in self._shown
            return b"" if hidden else self._spelling_of_added(added.content)
        spelled = self._tokenizer.id_to_token(token)
        return b"" if spelled is None else self._spelling(spelled)

    def _is_special(self, token: int) -> bool:
        return self._added[token].special or token in self.end_tokens

    @cached_property
    def _special_texts(self) -> list[str]:
        texts = [added.content for t, added in self._added.items() if self._is_special(t)]
        readable = SENTINEL.fullmatch if self._template is None else lambda _: None
        return [text for text in texts if text and not readable(text)]

    @cached_property
    def _stand_ins(self) -> dict[str, str]:
        firsts = sorted({text[0] for text in self._special_texts})
        return {first: chr(_FIRST_STAND_IN + i) for i, first in enumerate(firsts)}

    @cached_property
    def _special(self) -> re.Pattern[str]:
        tails = {
            first: "|".join(re.escape(t[1:]) for t in self._special_texts if t[0] == first)
            for first in self._stand_ins
        }
        patterns = [
            f"{re.escape(first)}(?={alternatives})" for first, alternatives in tails.items()
        ]
        return re.compile("|".join(patterns) or "(?!)")

    def neutral(self, text: str) -> str:
        """Insert stand-ins, so that no special token can be recognised."""
        return self._special.sub(lambda match: self._stand_ins[match[0]], text)

    def _spells_special(self, text: str) -> bool:
        if self._special.search(text):
            return True
        if self._tokenizer.normalizer is None or not self._recognised_late:
            return False
        return bool(self._special.search(self._tokenizer.normalizer.normalize_str(text)))

    @cached_property
    def _recognised_late(self) -> bool:
        normalized = (added.normalized for t, added in self._added.items() if self._is_special(t))
        return self._unigram or any(normalized)

    @cached_property
    def _twin(self) -> Tokenizer:
        """Recognises special tokens first and then turns stand-ins back."""
        description: dict[str, Any] = json.loads(self._tokenizer.to_str())
        turned_back = [
            {"type": "Replace", "pattern": {"String": stand_in}, "content": first}
            for first, stand_in in self._stand_ins.items()
        ]
        normalizer: Mapping[str, Any] | None = description["normalizer"]
        normalizers = [*turned_back, *([normalizer] if normalizer else [])]
        description["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
        for added in description["added_tokens"]:
            # A token with "normalized" would be looked for after stand-ins are turned back.
            added["normalized"] = added["normalized"] and not self._is_special(added["id"])
        if self._unigram:
            cut = {
                "type": "Split",
                "pattern": {"Regex": self._special.pattern},
                "behavior": "MergedWithPrevious",
                "invert": False,
            }
            cuts = [description["pre_tokenizer"], cut] if description["pre_tokenizer"] else [cut]
            description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": cuts}
        return Tokenizer.from_str(json.dumps(description))


@contextmanager
def _one_line(problem: str) -> Iterator[None]:
    """Raise KvcastError for every error of the tokenizers library: bare Exception, or a panic."""
    try:
        yield
    except KvcastError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise KvcastError(f"{problem}: {in_one_line(error)}; fetch it again") from None


def _check(description: Mapping[str, Any]) -> None:
    """Raise ValueError for damage that the tokenizers library accepts but fails on later."""
    model = description["model"]
    if model.get("type") == "Unigram" and model.get("unk_id") is None:
        raise ValueError("its model has no unknown token")
    for normalizer in steps(description.get("normalizer")):
        if normalizer.get("type") == "Precompiled":
            check_charsmap(base64.b64decode(normalizer["precompiled_charsmap"], validate=True))
