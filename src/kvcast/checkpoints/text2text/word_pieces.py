"""Reads word-piece vocabularies and BERT's text files in Hugging Face layout.

Word-based Chinese RoFormers and T5-PEGASUS split text into words first (jieba); character-based
models do not.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path

from kvcast.checkpoints.base import read_json_object
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import recommended_options, token_text, tokenizer_settings
from kvcast.errors import InputMissingError, InputOutputError, KvcastError

BEGIN, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
"""Tokens that start a source, end a source or target, and stand for unknown pieces."""


def has_word_pieces(folder: Path) -> bool:
    whole = folder / "tokenizer.json"
    if not whole.is_file():
        return (folder / "vocab.txt").is_file()
    match read_json_object(whole):
        case {"model": {"type": "WordPiece"}}:
            return True
        case _:
            return False


def vocabulary_file(folder: Path) -> Path:
    for name in ("vocab.txt", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    raise InputMissingError(
        f"no vocab.txt and no tokenizer.json in {folder}: copy the base model's"
    )


def token_ids(file: Path) -> dict[str, int]:
    """From a vocab.txt or a tokenizer.json; KvcastError for damage or a lack of BERT's tokens."""
    vocabulary = _from_list(file) if file.suffix == ".txt" else _from_json(file)
    for token in (BEGIN, END, UNKNOWN):
        if token not in vocabulary:
            raise KvcastError(f"{file} has no {token}, which every BERT vocabulary has")
    return vocabulary


def _from_list(file: Path) -> dict[str, int]:
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError:
        raise InputOutputError(f"{file} is damaged: not UTF-8; fetch it again") from None
    # Not splitlines: vocabularies contain rarer line separators as tokens.
    lines = text.replace("\r\n", "\n").rstrip("\n").split("\n")
    return {token: i for i, token in enumerate(lines)}


def _from_json(file: Path) -> dict[str, int]:
    match read_json_object(file):
        case {
            "model": {"type": "WordPiece", "vocab": dict(vocabulary)},
            "added_tokens": [*added],
        }:
            pass
        case _:
            raise KvcastError(f"{file} is not a WordPiece tokenizer, which a BERT has")
    for token in added:
        match token:
            case {"content": str(text), "id": int(number)}:
                vocabulary[text] = number
            case _:
                raise InputOutputError(f"{file} is damaged: an added token has no text or number")
    if any(type(number) is not int for number in vocabulary.values()):
        raise InputOutputError(f"{file} is damaged: a token has no number")
    return vocabulary


PLAIN = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
"""Names in tokenizer_config.json of tokenizers that split into characters and pieces."""
SEGMENTING = ("RoFormerTokenizer", "RoFormerTokenizerFast", "T5PegasusTokenizer")
"""Names of tokenizers that split into words first."""

_SPECIAL = {"cls_token": BEGIN, "sep_token": END, "unk_token": UNKNOWN}
# Two of the characters that BERT splits apart unless text is split into words before.
_WORD = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2}")


def read_wordpiece(folder: Path, segmented: Collection[str | None]) -> dict[str, bytes]:
    """Files for `kvcast.tokenizers.opening.open_text`: a vocabulary and settings.

    `segmented`: names of tokenizers that split text into words; None: if no name is given. A
    vocabulary without words is character-based. InputMissingError without a vocabulary, KvcastError
    for another tokenizer than BERT's and RoFormer's or missing special tokens.
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
    if settings.flag("strip_accents", lowercase) != lowercase:
        raise settings.error("strip_accents other than do_lower_case is not supported")
    if not settings.flag("tokenize_chinese_chars", True):
        raise settings.error("tokenize_chinese_chars must be true")
    for field, usual in _SPECIAL.items():
        token = token_text(settings.values.get(field)) or usual
        if token != usual:
            raise settings.error(f"{field} must be {usual}, not {token!r}")
