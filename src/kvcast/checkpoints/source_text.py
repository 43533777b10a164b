"""Reads the text files of encoder-decoder models in Hugging Face layout."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import (
    end_tokens,
    generation_fields,
    recommended_options,
    token_text,
    tokenizer_settings,
)
from kvcast.errors import InputMissingError
from kvcast.spec.text_files import (
    FAIRSEQ_PIECES,
    MARIAN_PIECES,
    MARIAN_TARGETS,
    MERGES,
    UNIGRAM_PIECES,
    VOCABULARY,
)

_TRANSLATING = ("mbart", "m2m_100")
_WHOLE = "tokenizer.json"
_MBART_50 = "MBart50Tokenizer"
# Files of each kind of tokenizer, by its name in text.json.
_TOKENIZERS: Mapping[str, tuple[str, ...]] = {
    "blenderbot": (VOCABULARY, MERGES),
    "blenderbot-small": (VOCABULARY, MERGES),
    "byte-level": (VOCABULARY, MERGES),
    "m2m100": (FAIRSEQ_PIECES, VOCABULARY),
    "marian": (MARIAN_PIECES, VOCABULARY),
    "mbart": (FAIRSEQ_PIECES,),
    "pegasus": (UNIGRAM_PIECES,),
}
# Where a source has its language's token, by classes of transformers that ignore tokenizer.json's.
_PLACES = {"MBartTokenizer": "last", _MBART_50: "first", "NllbTokenizer": "first"}
_NUMBERS = {
    "num_beams": ("beam", 1),
    "max_new_tokens": ("max_new_tokens", None),
    "min_new_tokens": ("min_new_tokens", 0),
    "no_repeat_ngram_size": ("no_repeat_ngram_size", 0),
    "encoder_no_repeat_ngram_size": ("encoder_no_repeat_ngram_size", 0),
    "forced_bos_token_id": ("forced_bos_token_id", None),
    "forced_eos_token_id": ("forced_eos_token_id", None),
}
_LENGTHS = {"max_length": "max_new_tokens", "min_length": "min_new_tokens"}


def read_text(folder: Path, config: Mapping[str, Any], kind: str | None = None) -> dict[str, bytes]:
    """Files for `kvcast.tokenizers.opening.open_text`; InputMissingError without a tokenizer's.

    `kind`: of the tokenizer, by its name in text.json, if there is no tokenizer.json.
    """
    settings = tokenizer_settings(folder)
    about: dict[str, Any] = {
        "end_tokens": end_tokens(folder, config),
        "bos_token": None,
        "eos_token": token_text(settings.get("eos_token")) or "</s>",
        "generation": _recommended_options(folder, config),
        "translates": config["model_type"] in _TRANSLATING,
        **_languages(settings, config),
    }
    if (folder / _WHOLE).is_file():
        files = {_WHOLE: read_file(folder / _WHOLE)}
    else:
        files = {name: read_file(folder / name) for name in _files(folder, kind)}
        about["tokenizer"] = kind
        about |= _further(str(kind), settings, config)
        if kind == "marian" and (folder / MARIAN_TARGETS).is_file():
            files[MARIAN_TARGETS] = read_file(folder / MARIAN_TARGETS)
    return {**files, "text.json": json.dumps(about).encode()}


def _files(folder: Path, kind: str | None) -> tuple[str, ...]:
    """InputMissingError for a missing file."""
    names = () if kind is None else _TOKENIZERS[kind]
    if names and all((folder / name).is_file() for name in names):
        return names
    others = f", nor {' and '.join(names)}" if names else ""
    raise InputMissingError(
        f"no {_WHOLE} in {folder}{others}: copy the base model's, or write it with transformers' "
        "AutoTokenizer and save_pretrained"
    )


def _further(kind: str, settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    if kind == "m2m100":
        codes = settings.get("language_codes")
        return {"language_codes": codes} if isinstance(codes, str) else {}
    if kind == "mbart":
        named = _class(settings, config)
        is_50 = named == _MBART_50
        place = _PLACES[named if is_50 else "MBartTokenizer"]
        return {"tokenizer": "mbart50" if is_50 else kind, "language_place": place}
    if MERGES in _TOKENIZERS[kind]:
        return {"prefix_space": settings.get("add_prefix_space", kind == "blenderbot") is True}
    return {}


def _languages(settings: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, str]:
    of_source = settings.get("src_lang") or settings.get("source_lang")
    told = {"source_language": of_source} if isinstance(of_source, str) else {}
    place = _PLACES.get(_class(settings, config))
    if place is not None:
        told["language_place"] = "last" if settings.get("legacy_behaviour") is True else place
    return told


def _class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    return str(named).removesuffix("Fast")


def _recommended_options(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Options in generation_config.json, or else config.json; KvcastError for unsupported values.

    Lengths are without the token that a target starts with.
    """
    path = folder / "generation_config.json"
    values = generation_fields(folder) if path.is_file() else dict(config)
    fields = Fields(values=values, label=str(path if path.is_file() else folder / "config.json"))
    told: dict[str, Any] = {**recommended_options(folder).get("generation", {})}
    for name, (option, idle) in _NUMBERS.items():
        if values.get(name) not in (None, idle):
            told[option] = fields.whole(name, least=0)
    for name, option in _LENGTHS.items():
        if values.get(name) is not None and (length := fields.whole(name, least=0)) > 1:
            told.setdefault(option, length - 1)
    if values.get("do_sample") is not True and told.get("beam", 1) > 1:
        told |= _search(fields)
    else:
        told.pop("beam", None)
    for option, suppressed in _suppressed_tokens(fields).items():
        if suppressed:
            told[option] = suppressed
    return told


def _search(fields: Fields) -> dict[str, Any]:
    values, told = fields.values, {}
    penalty = values.get("length_penalty")
    if penalty not in (None, 1):
        told["length_penalty"] = penalty
    if values.get("early_stopping") is True:
        told["early_stopping"] = True
    if fields.flag("renormalize_logits", False):
        told["renormalize_logits"] = True
    return told


def _suppressed_tokens(fields: Fields) -> dict[str, list[Any]]:
    """Suppressed tokens, except end tokens, and sequences, as in transformers."""
    sequences = fields.values.get("bad_words_ids") or []
    tokens = fields.values.get("suppress_tokens") or []
    if not _are_tokens(tokens) or not isinstance(sequences, list):
        raise fields.error("suppress_tokens must be a list of tokens, and bad_words_ids of such")
    if not all(sequence and _are_tokens(sequence) for sequence in sequences):
        raise fields.error("bad_words_ids must be lists of tokens")
    ends = fields.values.get("eos_token_id")
    single = [s[0] for s in sequences if len(s) == 1 and s not in (ends, [ends])]
    return {
        "suppress_tokens": [*dict.fromkeys([*tokens, *single])],
        "suppress_sequences": [s for s in sequences if len(s) > 1],
    }


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)
