"""Reads word-piece vocabularies, from vocab.txt (a token per line) or a tokenizer.json.

Knows nothing of how text is split.
"""

from pathlib import Path

from kvcast.checkpoints.base import read_json_object
from kvcast.errors import InputMissingError, InputOutputError, KvcastError

BEGIN, END, UNKNOWN = "[CLS]", "[SEP]", "[UNK]"
"""Tokens that start a source, end a source or target, and stand for unknown pieces."""


def has_word_pieces(folder: Path) -> bool:
    """Tell by its files whether a folder's tokenizer is a word-piece tokenizer."""
    whole = folder / "tokenizer.json"
    if not whole.is_file():
        return (folder / "vocab.txt").is_file()
    match read_json_object(whole):
        case {"model": {"type": "WordPiece"}}:
            return True
        case _:
            return False


def vocabulary_file(folder: Path) -> Path:
    """Return the file with a folder's vocabulary; raises InputMissingError if there is none."""
    for name in ("vocab.txt", "tokenizer.json"):
        if (folder / name).is_file():
            return folder / name
    raise InputMissingError(
        f"no vocab.txt and no tokenizer.json in {folder}: copy the base model's"
    )


def token_ids(file: Path) -> dict[str, int]:
    """Read a vocabulary, text to id, from a vocab.txt or a tokenizer.json.

    Raises KvcastError for a file that is damaged, of another kind, or lacks BERT's special tokens.
    """
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
