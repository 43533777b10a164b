"""Opens the tokenizer that the text files of a checkpoint or bundle describe.

The files are `text.json` with `tokenizer.json` (and chat templates if the model has any) or with
`spiece.model`; or Mistral's own `tekken.json` or `tokenizer.model` (`tokenizer.model.v3` and so
on). If `text.json` has a "tokenizer", that names the kind: "byt5", which needs no other file;
"bert", with `vocab.txt` or a `tokenizer.json` of that kind; "marian", with `source.spm`,
`vocab.json` and perhaps `target_vocab.json`; "m2m100", with `sentencepiece.bpe.model` and
`vocab.json`; "mbart" and "mbart50", with the former alone; "pegasus", with `spiece.model`;
"byte-level", "blenderbot" and "blenderbot-small", with `vocab.json` and `merges.txt`.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from kvcast.errors import InputMissingError, KvcastError
from kvcast.spec.text_files import (
    CHAT_TEMPLATES,
    FAIRSEQ_PIECES,
    MARIAN_PIECES,
    MARIAN_TARGETS,
    MERGES,
    MOST_SENTINELS,
    UNIGRAM_PIECES,
    VOCABULARY,
)
from kvcast.tokenizers.base import TextTokenizer
from kvcast.tokenizers.settings import SETTINGS, TextSettings

_JSON = "tokenizer.json"
_WORD_PIECES = "vocab.txt"

_Files = Mapping[str, bytes]


def open_text(files: _Files) -> TextTokenizer:
    """Open the tokenizer in `files`, content by name; see `kvcast.tokenizers.settings`.

    For "spiece.model", `text.json` may have "extra_ids", the number of sentinels after its pieces:
    by default 100, or 0 if the pieces include sentinels. For "bert" it has "lowercase", and
    "words": whether to split Chinese into words. InputMissingError for a missing file, KvcastError
    for a damaged one or a missing optional library.
    """
    settings = TextSettings.read(files[SETTINGS]) if SETTINGS in files else None
    tokenizer = _opened(files, settings)
    if settings is not None:
        tokenizer.notices, tokenizer.generation = settings.notices, settings.generation
        if settings.source_language is not None:
            tokenizer.source_language = settings.source_language
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
    return open_text(files)


# Tokenizers are imported where they are used, so that transcribing does not wait for them.


def _json_tokenizer(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.chat.templates import ChatTemplate
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer

    if settings.translates:
        return _translating(files[_JSON], settings, _JSON)
    constants = settings.constants
    sources = {name: _source(files, file) for name, file in CHAT_TEMPLATES.items() if file in files}
    templates = {
        name: ChatTemplate(source=source, constants=constants) for name, source in sources.items()
    }
    template = templates.get("")
    if template is not None:
        template = replace(template, with_tools=templates.get("tool_use"))
    return JsonTokenizer(
        files[_JSON],
        settings.end_tokens,
        template,
        added_tokens=settings.added_tokens,
        special_tokens=settings.special_tokens,
    )


def _translating(content: bytes, settings: TextSettings, label: str) -> TextTokenizer:
    from kvcast.tokenizers.languages import languages_of, source_of, with_source
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer

    if (place := settings.language_place) is not None:
        end = settings.constants.get("eos_token", "</s>")
        with suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
            told = with_source(json.loads(content), place, settings.source_language, end)
            content = json.dumps(told).encode()
    tokenizer = JsonTokenizer(content, settings.end_tokens, None, label)  # reports damage
    description = json.loads(content)
    tokenizer.translates = True
    tokenizer.languages = languages_of(description)
    tokenizer.source_language = source_of(description)
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
    description = to_tokenizer_json(files[UNIGRAM_PIECES], extra_ids, UNIGRAM_PIECES)
    if settings.translates:
        return _translating(description, settings, UNIGRAM_PIECES)
    return JsonTokenizer(description, settings.end_tokens, None, UNIGRAM_PIECES)


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

    pieces, _ = (_required(files, name) for name in (MARIAN_PIECES, VOCABULARY))
    tables = {
        name: read_vocabulary(files[name], name)
        for name in (VOCABULARY, MARIAN_TARGETS)
        if name in files
    }
    return MarianTokenizer(
        pieces,
        tables[VOCABULARY],
        settings.end_tokens,
        MARIAN_PIECES,
        tables.get(MARIAN_TARGETS),
    )


def _m2m(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.languages import M2M_100, WMT_21
    from kvcast.tokenizers.marian import M2MTokenizer, read_vocabulary

    pieces = _required(files, FAIRSEQ_PIECES)
    vocabulary = read_vocabulary(_required(files, VOCABULARY), VOCABULARY)
    languages = WMT_21 if settings.language_codes == "wmt21" else M2M_100
    return M2MTokenizer(
        pieces,
        vocabulary,
        settings.end_tokens,
        FAIRSEQ_PIECES,
        [f"__{code}__" for code in languages],
        settings.source_language,
    )


def _mbart(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.languages import MBART, MBART_50
    from kvcast.tokenizers.sentencepiece_model import Numbering, to_numbered_json

    languages = MBART_50 if settings.kind == "mbart50" else MBART
    numbering = Numbering(
        first=("<s>", "<pad>", "</s>", "<unk>"), replaced=3, last=(*languages, "<mask>")
    )
    content = to_numbered_json(_required(files, FAIRSEQ_PIECES), numbering, FAIRSEQ_PIECES)
    return _translating(content, settings, FAIRSEQ_PIECES)


def _pegasus(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.sentencepiece_model import Numbering, to_numbered_json
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer

    # Masks of its training, and tokens that it left unused.
    idle = (f"<unk_{number}>" for number in range(2, 103))
    numbering = Numbering(first=("<pad>", "</s>", "<mask_1>", "<mask_2>", *idle), replaced=2)
    content = to_numbered_json(_required(files, UNIGRAM_PIECES), numbering, UNIGRAM_PIECES)
    return JsonTokenizer(content, settings.end_tokens, None, UNIGRAM_PIECES)


def _blenderbot_small(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.blenderbot_small import BlenderbotSmallTokenizer
    from kvcast.tokenizers.marian import read_vocabulary

    vocabulary = read_vocabulary(_required(files, VOCABULARY), VOCABULARY)
    merges = _required(files, MERGES)
    return BlenderbotSmallTokenizer(vocabulary, merges, settings.end_tokens, MERGES)


def _byte_level(files: _Files, settings: TextSettings) -> TextTokenizer:
    from kvcast.tokenizers.marian import read_vocabulary
    from kvcast.tokenizers.tokenizer_json import JsonTokenizer
    from kvcast.tokenizers.vocabulary import read_merges, to_byte_level_json

    content = to_byte_level_json(
        read_vocabulary(_required(files, VOCABULARY), VOCABULARY),
        read_merges(_required(files, MERGES), MERGES),
        begin=None if settings.kind == "blenderbot" else "<s>",
        end=settings.constants.get("eos_token", "</s>"),
        prefix_space=settings.flag("prefix_space"),
    )
    return JsonTokenizer(content, settings.end_tokens, None, MERGES)


def _required(files: _Files, name: str) -> bytes:
    if name not in files:
        raise InputMissingError(f"no {name} beside {SETTINGS}: fetch the model again")
    return files[name]


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
    "mbart": _mbart,
    "mbart50": _mbart,
    "pegasus": _pegasus,
    "blenderbot": _byte_level,
    "blenderbot-small": _blenderbot_small,
    "byte-level": _byte_level,
}
_BY_FILE: Mapping[str, _Opener] = {_JSON: _json_tokenizer, UNIGRAM_PIECES: _sentencepiece}
