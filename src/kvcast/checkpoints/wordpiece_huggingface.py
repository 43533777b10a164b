"""The text files of BERT and its kin in Hugging Face layout: vocab.txt or tokenizer.json.

Chinese RoFormers of words cut a text into words first (jieba); those of characters do not.
"""

import json
import re
from pathlib import Path

from kvcast.checkpoints.base import read_json_object
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.text_huggingface import token_text, tokenizer_settings
from kvcast.errors import InputMissingError, InputOutputError, KvcastError

_PLAIN = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast")
_SEGMENTING = ("RoFormerTokenizer", "RoFormerTokenizerFast")
_SPECIAL = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
# Two characters of those that BERT sets apart unless a text is cut into words before.
_WORD = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]{2}")


def read_wordpiece(folder: Path, segmented: bool) -> dict[str, bytes]:
    """Read the files that `kvcast.text.open_text` opens: a vocabulary, and how it is used.

    `segmented`: whether texts are cut into words where tokenizer_config.json names no tokenizer.
    A vocabulary without words is one of characters, whatever the tokenizer is called. Raises
    InputMissingError without a vocabulary, KvcastError for a tokenizer of another kind than
    BERT's and RoFormer's or a vocabulary without their special tokens.
    """
    what = str(folder / "tokenizer_config.json")
    settings = Fields(values=tokenizer_settings(folder), what=what)
    name = settings.values.get("tokenizer_class") or (_SEGMENTING if segmented else _PLAIN)[0]
    if name not in _PLAIN + _SEGMENTING:
        supported = ", ".join(_PLAIN + _SEGMENTING)
        raise settings.error(f"tokenizer_class {name!r} is not supported (supported: {supported})")
    lowercase = settings.flag("do_lower_case", True)
    _require_usual(settings, lowercase)
    file = _vocabulary_file(folder)
    vocabulary = _from_list(file) if file.suffix == ".txt" else _from_json(file)
    for token in _SPECIAL.values():
        if token not in vocabulary:
            raise KvcastError(f"{file} has no {token}, without which there is no text")
    about = {
        "end_tokens": [vocabulary[_SPECIAL["sep_token"]]],
        "tokenizer": "bert",
        "lowercase": lowercase,
        "words": name in _SEGMENTING and any(map(_WORD.search, vocabulary)),
    }
    return {file.name: file.read_bytes(), "text.json": json.dumps(about).encode()}


def _require_usual(settings: Fields, lowercase: bool) -> None:
    """Raise KvcastError unless a vocabulary and `lowercase` are all there is to know."""
    if settings.flag("strip_accents", lowercase) != lowercase:
        raise settings.error("strip_accents other than do_lower_case is not supported")
    if not settings.flag("tokenize_chinese_chars", True):
        raise settings.error("tokenize_chinese_chars must be true")
    for field, usual in _SPECIAL.items():
        found = token_text(settings.values.get(field)) or usual
        if found != usual:
            raise settings.error(f"{field} must be {usual}, not {found!r}")


def _vocabulary_file(folder: Path) -> Path:
    for name in ("vocab.txt", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    raise InputMissingError(
        f"no vocab.txt and no tokenizer.json in {folder}: copy the base model's"
    )


def _from_list(file: Path) -> dict[str, int]:
    try:
        text = file.read_bytes().decode()
    except UnicodeDecodeError:
        raise InputOutputError(f"{file} is damaged: not UTF-8; fetch it again") from None
    # Not splitlines: vocabularies hold rarer ends of lines as tokens.
    return {token: i for i, token in enumerate(text.replace("\r\n", "\n").split("\n"))}


def _from_json(file: Path) -> dict[str, int]:
    match read_json_object(file):
        case {"model": {"vocab": dict(vocabulary)}, "added_tokens": [*added]}:
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
