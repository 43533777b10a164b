"""Reads the text files of models that answer a source, in Hugging Face layout.

Knows no tokenizer and no weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_file
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.text_huggingface import (
    end_tokens,
    generation_fields,
    recommended_options,
    special_tokens,
    token_text,
    tokenizer_settings,
)
from kvcast.errors import InputMissingError
from kvcast.spec.text_files import M2M_PIECES, MARIAN_PIECES, MARIAN_SOURCES, MARIAN_TARGETS

_TRANSLATING = ("mbart", "m2m_100")
_WHOLE = "tokenizer.json"
# Files of each kind of tokenizer, by its name in text.json.
_TOKENIZERS = {
    "": (_WHOLE,),
    "marian": (MARIAN_PIECES, MARIAN_SOURCES),
    "m2m100": (M2M_PIECES, MARIAN_SOURCES),
}
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


def read_text(folder: Path, config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files that `kvcast.tokenizers.opening.open_text` reads.

    Raises InputMissingError where the tokenizer's files are missing.
    """
    settings = tokenizer_settings(folder)
    about: dict[str, Any] = {
        "end_tokens": end_tokens(folder, config),
        "bos_token": None,
        "eos_token": token_text(settings.get("eos_token")) or "</s>",
        "generation": _recommended(folder, config),
        "translates": config["model_type"] in _TRANSLATING,
    }
    there = (
        kind
        for kind, names in _TOKENIZERS.items()
        if all((folder / name).is_file() for name in names)
    )
    if (kind := next(there, None)) is None:
        raise InputMissingError(
            f"no {_WHOLE} in {folder}, nor {MARIAN_PIECES} and {MARIAN_SOURCES}: copy the base "
            "model's, or write it with transformers' AutoTokenizer and save_pretrained"
        )
    files = {name: read_file(folder / name) for name in _TOKENIZERS[kind]}
    if kind:
        about["tokenizer"] = kind
    if kind == "marian" and (folder / MARIAN_TARGETS).is_file():
        files[MARIAN_TARGETS] = read_file(folder / MARIAN_TARGETS)
    if kind == "m2m100":
        special = special_tokens(folder, settings).get("extra_special_tokens", [])
        about["extra_special_tokens"] = special
    return {**files, "text.json": json.dumps(about).encode()}


def _recommended(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what generation_config.json recommends; config.json's fields count where it is absent.

    Lengths are without the token that a target starts with. Raises KvcastError for a value that is
    none, or that cannot be followed.
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
    if suppressed := _suppressed(fields):
        told["suppress_tokens"] = suppressed
    return told


def _search(fields: Fields) -> dict[str, Any]:
    """Return options of a search with beams."""
    values, told = fields.values, {}
    penalty = values.get("length_penalty")
    if penalty not in (None, 1):
        told["length_penalty"] = penalty
    if values.get("early_stopping") is True:
        told["early_stopping"] = True
    if fields.flag("renormalize_logits", False):
        told["renormalize_logits"] = True
    return told


def _suppressed(fields: Fields) -> list[int]:
    """Return tokens that are never chosen; raises KvcastError for sequences of several."""
    sequences = fields.values.get("bad_words_ids") or []
    tokens = fields.values.get("suppress_tokens") or []
    if not isinstance(sequences, list) or not isinstance(tokens, list):
        raise fields.error("bad_words_ids and suppress_tokens must be lists")
    single = [s[0] for s in sequences if isinstance(s, list) and len(s) == 1]
    if len(single) < len(sequences):
        raise fields.error("bad_words_ids of several tokens are not supported")
    return [*dict.fromkeys([*tokens, *single])]
