"""Opens the tokenizer that the text files of a checkpoint or bundle describe.

The files are `text.json` with `tokenizer.json` (and chat templates if the model has any) or
with `spiece.model`; or Mistral's own `tekken.json` or `tokenizer.model` (`tokenizer.model.v3` and
so on). If `text.json` has a "tokenizer", that names the kind: "byt5", which needs no other file, or
"bert", with `vocab.txt` or a `tokenizer.json` of that kind; "marian", with `source.spm`,
`vocab.json` and, where targets have another vocabulary, `target_vocab.json`; "m2m100", with
`sentencepiece.bpe.model` and `vocab.json`. Reads no files: the caller gives their contents.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

from kvcast.errors import InputMissingError, KvcastError
from kvcast.spec.text_files import (
    CHAT_TEMPLATES,
    M2M_PIECES,
    MARIAN_PIECES,
    MARIAN_SOURCES,
    MARIAN_TARGETS,
    MOST_SENTINELS,
)
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.settings import SETTINGS, TextSettings

_JSON = "tokenizer.json"
_SENTENCEPIECE = "spiece.model"
_WORD_PIECES = "vocab.txt"

_Files = Mapping[str, bytes]


def open_text(files: _Files) -> TextTokenizer:
    """Open the tokenizer in `files`, a mapping of name to content.

    `text.json` is as `kvcast.tokenizers.settings` describes it, with one or more "end_tokens". For
    "spiece.model" it may have "extra_ids",
    the number of sentinels after its pieces; the default is 100, or 0 if the pieces include
    sentinels. For "bert" it has "lowercase", and "words": whether to split Chinese into words.

    Raises:
        InputMissingError: a required file is missing.
        KvcastError: a file is damaged, or a required optional library is not installed.

    """
    settings = TextSettings.read(files[SETTINGS]) if SETTINGS in files else None
    tokenizer = _opened(files, settings)
    if settings is not None:
        tokenizer.notices, tokenizer.generation = settings.notices, settings.generation
    return tokenizer


def _opened(files: _Files, settings: TextSettings | None) -> TextTokenizer:
    if settings is not None and settings.kind is not None:
        opener = _KINDS.get(settings.kind)
        if opener is None:
            raise KvcastError(
                f"{SETTINGS} is damaged: tokenizer {settings.kind[:80]!r} is not known: "
                f"one of {', '.join(_KINDS)}"
            )
        return opener(files, settings)
    for name, opener in _BY_FILE.items():
        if name in files:
            if settings is None:
                raise InputMissingError(f"no {SETTINGS} beside {name}: fetch the model again")
            return opener(files, settings)
    return _mistral(files)


def open_tokenizer(files: _Files, dimensions: object) -> TextTokenizer:  # noqa: ARG001
    """Open a tokenizer as `open_text` does, for any dimensions."""
    return open_text(files)


# Tokenizers are imported where they are used, so that transcribing does not wait for them.


def _json_tokenizer(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.chat.templates import ChatTemplate
    from kvcast.tokenizers.languages import languages_of
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer

    constants = settings.constants
    sources = {name: _source(files, file) for name, file in CHAT_TEMPLATES.items() if file in files}
    templates = {
        name: ChatTemplate(source=source, constants=constants) for name, source in sources.items()
    }
    template = templates.get("")
    if template is not None:
        template = replace(template, with_tools=templates.get("tool_use"))
    tokenizer = JsonTokenizer(
        files[_JSON],
        settings.end_tokens,
        template,
        added_tokens=settings.added_tokens,
        special_tokens=settings.special_tokens,
    )
    if settings.translates:
        tokenizer.translates = True
        tokenizer.languages = languages_of(json.loads(files[_JSON]))
    return tokenizer


def _source(files: _Files, name: str) -> str:
    try:
        return files[name].decode()
    except UnicodeDecodeError:
        raise KvcastError(f"{name} is damaged: not UTF-8; fetch it again") from None


def _sentencepiece(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.sentencepiece_model import to_tokenizer_json
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer

    extra_ids = settings.count("extra_ids", MOST_SENTINELS)
    description = to_tokenizer_json(files[_SENTENCEPIECE], extra_ids, _SENTENCEPIECE)
    return JsonTokenizer(description, settings.end_tokens, None, _SENTENCEPIECE)


def _bytes(_: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.byt5 import ByteTokenizer

    return ByteTokenizer(settings.end_tokens)


def _word_pieces(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.bert import BertTokenizer, ChineseWordTokenizer
    from kvcast.tokenizers.vocabulary import read_tokenizer_json, read_vocab_txt

    if _WORD_PIECES in files:
        vocabulary = read_vocab_txt(files[_WORD_PIECES])
    elif _JSON in files:
        vocabulary = read_tokenizer_json(files[_JSON])
    else:
        raise InputMissingError(
            f"no {_WORD_PIECES} or {_JSON} beside {SETTINGS}: fetch the model again"
        )
    kind = ChineseWordTokenizer if settings.flag("words") else BertTokenizer
    return kind(vocabulary, settings.end_tokens, lowercase=settings.flag("lowercase"))


def _marian(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.marian import MarianTokenizer, read_vocabulary

    if absent := [name for name in (MARIAN_PIECES, MARIAN_SOURCES) if name not in files]:
        raise InputMissingError(f"no {absent[0]} beside {SETTINGS}: fetch the model again")
    tables = {
        name: read_vocabulary(files[name], name)
        for name in (MARIAN_SOURCES, MARIAN_TARGETS)
        if name in files
    }
    return MarianTokenizer(
        files[MARIAN_PIECES],
        tables[MARIAN_SOURCES],
        settings.end_tokens,
        MARIAN_PIECES,
        tables.get(MARIAN_TARGETS),
    )


def _m2m(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.marian import M2MTokenizer, read_vocabulary

    if absent := [name for name in (M2M_PIECES, MARIAN_SOURCES) if name not in files]:
        raise InputMissingError(f"no {absent[0]} beside {SETTINGS}: fetch the model again")
    vocabulary = read_vocabulary(files[MARIAN_SOURCES], MARIAN_SOURCES)
    ends, languages = settings.end_tokens, settings.special_tokens
    return M2MTokenizer(files[M2M_PIECES], vocabulary, ends, M2M_PIECES, languages)


def _mistral(files: _Files) -> TextTokenizer:
    from kvcast.tokenizers.mistral import MistralTokenizer, is_tokenizer_file

    for name, content in files.items():
        if is_tokenizer_file(name):
            return MistralTokenizer(name, content)
    raise InputMissingError(
        "no tokenizer: a model needs tokenizer.json and text.json, or spiece.model and "
        "text.json, or tekken.json, or tokenizer.model; fetch it again"
    )


_Opener = Callable[[_Files, TextSettings], TextTokenizer]
_KINDS: Mapping[str, _Opener] = {
    "bert": _word_pieces,
    "byt5": _bytes,
    "marian": _marian,
    "m2m100": _m2m,
}
_BY_FILE: Mapping[str, _Opener] = {_JSON: _json_tokenizer, _SENTENCEPIECE: _sentencepiece}
