"""A Whisper's non-weight files that several layouts share: tokenizer and features.

A tokenizer is the first of these that a folder has, and always becomes a tokenizer.json:

    tokenizer.json
    vocab.json, merges.txt       what transformers' slow tokenizer saves, so most fine-tunes have
                                 them; added_tokens.json or tokenizer_config.json has the tokens
                                 that fine-tuning added
    vocabulary.json or .txt      CTranslate2's list of all tokens, in the order of their ids

preprocessor_config.json is not needed, but it shows models with other features than Whisper's.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_file, read_json_object
from kvcast.errors import InputMissingError, InputOutputError, KvcastError

_WHOLE = "tokenizer.json"
_VOCABULARY, _MERGES = "vocab.json", "merges.txt"
_ADDED, _SETTINGS = "added_tokens.json", "tokenizer_config.json"
_LIST, _LINES = "vocabulary.json", "vocabulary.txt"
_PREPROCESSOR = "preprocessor_config.json"
_END = "<|endoftext|>"
# Of every published Whisper; kvcast computes features with these.
_FEATURES = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160}
_WINDOW = {"chunk_length": 30}


def optional_files(folder: Path) -> list[Path]:
    layout = _layout(folder)
    names = (*layout.required, *layout.optional, _PREPROCESSOR)
    return [folder / name for name in names if (folder / name).is_file()]


def tokenizer_json(folder: Path) -> bytes:
    """Return a tokenizer.json; InputMissingError if there is none, InputOutputError for damage."""
    return _layout(folder).read(folder)


def check_preprocessor(folder: Path, n_mels: int, *, windows: bool = True) -> None:
    path = folder / _PREPROCESSOR
    if not path.is_file():
        return
    fields = read_json_object(path)
    needed = {**_FEATURES, **(_WINDOW if windows else {}), "feature_size": n_mels}
    for name, expected in needed.items():
        if fields.get(name, expected) != expected:
            raise KvcastError(
                f"{path}: {name} is {fields[name]!r}, and this model needs {expected}: it is "
                "another model's file, or the model has other features than Whisper"
            )


@dataclass(frozen=True, kw_only=True)
class _TokenizerFiles:
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    read: Callable[[Path], bytes]


def _layout(folder: Path) -> _TokenizerFiles:
    for layout in _LAYOUTS:
        if all((folder / name).is_file() for name in layout.required):
            return layout
    raise InputMissingError(
        f"no {_WHOLE} in {folder} (nor {_VOCABULARY} and {_MERGES}, nor {_LIST}): "
        "copy it from the model that this one was made from"
    )


def _read_whole(folder: Path) -> bytes:
    return read_file(folder / _WHOLE)


def _read_parts(folder: Path) -> bytes:
    vocabulary = _ids(read_json_object(folder / _VOCABULARY), folder / _VOCABULARY)
    added = {token: text for text, token in vocabulary.items() if _is_special(text)}
    if (folder / _ADDED).is_file():
        more = _ids(read_json_object(folder / _ADDED), folder / _ADDED)
        added |= {token: text for text, token in more.items()}
    specials = {token for token, text in added.items() if _is_special(text)}
    if (folder / _SETTINGS).is_file():
        for token, text, special in _decoded_tokens(folder / _SETTINGS):
            added[token] = text
            (specials.add if special else specials.discard)(token)
    texts = {text: token for text, token in vocabulary.items() if token not in added}
    return _join(texts, _merges(folder / _MERGES), added, specials)


def split_tokenizer(folder: Path, pattern: str) -> bytes:
    """Return vocab.json and merges.txt as a tokenizer.json that splits text by a pattern first."""
    description = json.loads(_read_parts(folder))
    # An added token has its id from there, if it is in the vocabulary.
    description["model"]["vocab"] = read_json_object(folder / _VOCABULARY)
    byte_level = {**description["pre_tokenizer"], "use_regex": False}
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    description["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    description["normalizer"] = {"type": "NFC"}
    return json.dumps(description, ensure_ascii=False).encode()


def _read_list(folder: Path) -> bytes:
    path = folder / _LIST
    try:
        tokens = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise InputOutputError(f"{path} is not valid JSON: fetch it again") from None
    return _from_list(tokens, path)


def _read_lines(folder: Path) -> bytes:
    path = folder / _LINES
    # Not splitlines: tokens contain rarer line separators.
    return _from_list(_text(path).removesuffix("\n").split("\n"), path)


_LAYOUTS = (
    _TokenizerFiles(required=(_WHOLE,), read=_read_whole),
    _TokenizerFiles(
        required=(_VOCABULARY, _MERGES), optional=(_ADDED, _SETTINGS), read=_read_parts
    ),
    _TokenizerFiles(required=(_LIST,), read=_read_list),
    _TokenizerFiles(required=(_LINES,), read=_read_lines),
)


def _from_list(tokens: Any, path: Path) -> bytes:
    """Read texts in the order of training, without merges, then control and added tokens."""
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise InputOutputError(f"{path} is not a list of tokens: fetch it again")
    if _END not in tokens:
        raise InputOutputError(f"{path} has no {_END}: it is not a Whisper's")
    end = tokens.index(_END)
    texts = {text: token for token, text in enumerate(tokens[:end])}
    added = dict(enumerate(tokens[end:], start=end))
    specials = {token for token, text in added.items() if _is_special(text)}
    return _join(texts, merges_by_rank(texts), added, specials)


def merges_by_rank(ranks: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the pairs that tokens were merged from, as tiktoken's ranks imply them.

    A token's characters, merged by all lower ranks, leave the two parts that its own rank joins.
    Tokens that they leave otherwise, which no text ever becomes, have no merge.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = list(token)
        while len(parts) > 2:
            joined = [ranks.get(left + right, rank) for left, right in pairwise(parts)]
            least = min(joined)
            if least >= rank:
                break
            first = joined.index(least)
            parts[first : first + 2] = [parts[first] + parts[first + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def _join(
    texts: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    added: Mapping[int, str],
    specials: Iterable[int],
) -> bytes:
    special = frozenset(specials)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [
                {"id": token, "content": text, **flags, "special": token in special}
                for token, text in sorted(added.items())
            ],
            "pre_tokenizer": {**byte_level, "use_regex": True},
            "decoder": {**byte_level, "use_regex": True},
            "model": {"type": "BPE", "vocab": dict(texts), "merges": [list(m) for m in merges]},
        },
        ensure_ascii=False,
    ).encode()


def _is_special(text: str) -> bool:
    """Control tokens by the form of their names, timestamps included."""
    return len(text) > 4 and text.startswith("<|") and text.endswith("|>")


def _ids(fields: Mapping[str, Any], path: Path) -> dict[str, int]:
    if not all(type(token) is int and token >= 0 for token in fields.values()):
        raise InputOutputError(f"{path} is damaged: a token has no number")
    return dict(fields)


def _decoded_tokens(path: Path) -> Iterable[tuple[int, str, bool]]:
    """Id, text and whether it is special, of each added token."""
    described = read_json_object(path).get("added_tokens_decoder") or {}
    for number, token in described.items() if isinstance(described, dict) else ():
        match token:
            case {"content": str(text), **flags} if number.isdecimal():
                yield int(number), text, flags.get("special") is True
            case _:
                raise InputOutputError(f"{path} is damaged: an added token has no text or number")


def _merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for line in _text(path).split("\n"):
        if line.startswith("#version") or not line.strip():
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise InputOutputError(f"{path} is damaged: a line is not two tokens; fetch it again")
        merges.append((parts[0], parts[1]))
    return merges


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InputOutputError(f"{path} is damaged: not UTF-8; fetch it again") from None
