"""The tokenizer of a text encoder: texts, and pairs of them, to tokens and segments.

text.json has "prompts" (texts by name, each put before a text), "default_prompt" (a name, or null)
and "lowercase" (whether texts are made lower case first) besides "notices"; and "uncased" (whether
tokens are without case and accents) if there is BERT's vocab.txt instead of a tokenizer.json.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from typing_extensions import override

from kvcast.errors import InputMissingError, KvcastError
from kvcast.spec.text_files import whole_characters
from kvcast.tokenizers.settings import SETTINGS, TextSettings
from kvcast.tokenizers.tokenizer_json import JsonTokenizer
from kvcast.tokenizers.vocabulary import read_vocab_txt, special_tokens

_FILE, _WORDS = "tokenizer.json", "vocab.txt"


class EncodedTexts(NamedTuple):
    tokens: list[int]
    segments: list[int]
    cut: int
    """How many tokens at the end of the last text were left out."""


class EncoderTokenizer(JsonTokenizer):
    def __init__(self, tokenizer_json: bytes, settings: TextSettings) -> None:
        super().__init__(tokenizer_json, (), None)
        self.prompts: Mapping[str, str] = settings.texts("prompts")
        self.default_prompt = settings.text("default_prompt")
        self.notices = settings.notices
        self._lowercase = settings.flag("lowercase")
        if self.default_prompt not in (None, *self.prompts):
            raise KvcastError(f"{SETTINGS} is damaged: default_prompt is none of the prompts")

    @override
    def read_spelling(self, description: Mapping[str, Any]) -> tuple[Any, int]:
        return str.encode, 0  # texts are read, and never written

    @override
    def encode(self, text: str) -> list[int]:
        return self.encode_texts(text).tokens

    def encode_texts(self, *texts: str, most: int | None = None) -> EncodedTexts:
        """Return the tokens of a text or a pair, special ones included.

        With `most`, the last text's end is cut so that there are no more tokens, if it can be.
        """
        whole = [whole_characters(text) for text in texts]
        if self._lowercase:
            whole = [text.lower() for text in whole]
        encoding = self.encoding(tuple(map(self.neutral, whole)), whole, add_special_tokens=True)
        tokens, segments = encoding.ids, encoding.type_ids
        excess = 0 if most is None else max(0, len(tokens) - most)
        own = [i for i, part in enumerate(encoding.sequence_ids) if part == len(texts) - 1]
        if not excess or excess > len(own):
            return EncodedTexts(tokens, segments, 0)
        dropped = slice(own[-1] + 1 - excess, own[-1] + 1)
        del tokens[dropped], segments[dropped]
        return EncodedTexts(tokens, segments, excess)


def open_encoder_tokenizer(files: Mapping[str, bytes], _: object) -> EncoderTokenizer:
    """Open the tokenizer in a checkpoint's text files; raises as `open_text`."""
    if SETTINGS not in files:
        raise InputMissingError(f"no {SETTINGS}: fetch the model again")
    settings = TextSettings.read(files[SETTINGS])
    if _FILE in files:
        return EncoderTokenizer(files[_FILE], settings)
    if _WORDS not in files:
        raise InputMissingError(f"no {_FILE} beside {SETTINGS}: fetch the model again")
    vocabulary = read_vocab_txt(files[_WORDS])
    return EncoderTokenizer(_of_words(vocabulary, uncased=settings.flag("uncased")), settings)


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _of_words(vocabulary: Mapping[str, int], *, uncased: bool) -> bytes:
    """Return the tokenizer.json of BERT's vocabulary."""
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(vocabulary, _SPECIAL),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": uncased,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first, end],
            "pair": [begin, first, end, second, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {
                token: {"id": token, "ids": [vocabulary[token]], "tokens": [token]}
                for token in ("[CLS]", "[SEP]")
            },
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": dict(vocabulary),
        },
    }
    return json.dumps(description).encode()
