"""Reads the text files of BERT and its relatives in Hugging Face layout, and their settings.

Word-based Chinese RoFormers and T5-PEGASUS split text into words first (jieba); character-based
models do not. This module splits no text itself.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path

from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.text_huggingface import recommended_options, token_text, tokenizer_settings
from kvcast.checkpoints.vocabularies import BEGIN, END, UNKNOWN, token_ids, vocabulary_file

PLAIN = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
"""Names in tokenizer_config.json of tokenizers that split into characters and pieces."""
SEGMENTING = ("RoFormerTokenizer", "RoFormerTokenizerFast", "T5PegasusTokenizer")
"""Names of tokenizers that split into words first."""

_SPECIAL = {"cls_token": BEGIN, "sep_token": END, "unk_token": UNKNOWN}
# Two of the characters that BERT splits apart unless text is split into words before.
_WORD = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2}")


def read_wordpiece(folder: Path, segmented: Collection[str | None]) -> dict[str, bytes]:
    """Return the files that `kvcast.tokenizers.opening.open_text` reads: a vocabulary and settings.

    `segmented`: names of tokenizers that split text into words; None: if no name is given. A
    vocabulary without words is character-based, under every tokenizer's name. Raises
    InputMissingError without a vocabulary, KvcastError for a tokenizer other than BERT's and
    RoFormer's or a vocabulary without their special tokens.
    """
    label = str(folder / "tokenizer_config.json")
    settings = Fields(values=tokenizer_settings(folder), label=label)
    name = settings.values.get("tokenizer_class")
    if name is not None and name not in PLAIN + SEGMENTING:
        supported = ", ".join(PLAIN + SEGMENTING)
        raise settings.error(f"tokenizer_class {name!r} is not supported (supported: {supported})")
    lowercase = settings.flag("do_lower_case", True)
    _require_usual(settings, lowercase)
    file = vocabulary_file(folder)
    vocabulary = token_ids(file)
    about = {
        "end_tokens": [vocabulary[END]],
        "tokenizer": "bert",
        "lowercase": lowercase,
        "words": name in segmented and any(map(_WORD.search, vocabulary)),
        **recommended_options(folder),
    }
    return {file.name: file.read_bytes(), "text.json": json.dumps(about).encode()}


def _require_usual(settings: Fields, lowercase: bool) -> None:
    """Raise KvcastError for settings beyond a vocabulary and `lowercase`."""
    if settings.flag("strip_accents", lowercase) != lowercase:
        raise settings.error("strip_accents other than do_lower_case is not supported")
    if not settings.flag("tokenize_chinese_chars", True):
        raise settings.error("tokenize_chinese_chars must be true")
    for field, usual in _SPECIAL.items():
        token = token_text(settings.values.get(field)) or usual
        if token != usual:
            raise settings.error(f"{field} must be {usual}, not {token!r}")
