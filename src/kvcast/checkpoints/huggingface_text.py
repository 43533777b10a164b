"""Reads the text settings of models in Hugging Face layout; the record of a model family."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import (
    Checkpoint,
    StoredTensor,
    read_file,
    read_json_object,
    require_file,
)
from kvcast.errors import InputOutputError, KvcastError
from kvcast.spec.text_files import CHAT_TEMPLATES

START = "decoder_start_token_id"
_FIRST = ("bos_token", "eos_token")
_GPT2 = dict.fromkeys((*_FIRST, "unk_token"), "<|endoftext|>")
# Defaults of transformers' classes, for configurations that leave them out.
_OF_CLASSES: Mapping[str, Mapping[str, str]] = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
    "GemmaTokenizer": {
        f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")
    },
    "CohereTokenizer": {
        "bos_token": "<BOS_TOKEN>",
        "eos_token": "<|END_OF_TURN_TOKEN|>",
        "unk_token": "<UNK>",
        "pad_token": "<PAD>",
        "cls_token": "<CLS>",
        "sep_token": "<SEP>",
        "mask_token": "<MASK_TOKEN>",
    },
}
_SAMPLED = ("temperature", "top_k", "top_p", "min_p")
_ALWAYS = ("repetition_penalty", "no_repeat_ngram_size", "forced_bos_token_id")
_OFF = {"top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "no_repeat_ngram_size": 0}
_MOST_TOKENS = 1 << 31
# Types whose class is not the one that files name, and classes of types that name none.
_CLASSES = {"mistral": "", "mixtral": "", "qwen2": "Qwen2Tokenizer"}
_USUAL_CLASSES = {
    "qwen3": "Qwen2Tokenizer",
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("cohere", "cohere2"), "CohereTokenizer"),
}
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; empty if there is none."""
    path = folder / "tokenizer_config.json"
    return read_json_object(path) if path.is_file() else {}


def generation_fields(folder: Path) -> dict[str, Any]:
    """Read generation_config.json; empty if there is none."""
    path = folder / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def with_start_token(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a configuration with the token that targets start with, if another file names it."""
    started = generation_fields(folder).get(START)
    return config if started is None else {**config, START: started}


def recommended_options(folder: Path) -> dict[str, Any]:
    """Return the options for text.json that generation_config.json recommends.

    Options without effect are omitted. As in transformers, sampling options count only if do_sample
    is true.
    """
    fields = generation_fields(folder)
    if isinstance(top_k := fields.get("top_k"), int) and top_k < 0:  # as others write 0
        fields["top_k"] = 0
    values = {name: fields.get(name) for name in _ALWAYS}
    if fields.get("do_sample") is True:
        values |= {name: fields.get(name) for name in _SAMPLED}
        if values["temperature"] is None:
            values["temperature"] = 1.0
    told = {name: value for name, value in values.items() if value not in (None, _OFF.get(name))}
    return {"generation": told} if told else {}


def end_tokens(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """Return the tokens that end a generation, from the first configuration that names any.

    Raises InputOutputError if they are not token ids.
    """
    for fields in (generation_fields(folder), config, config.get("text_config")):
        stored = fields.get("eos_token_id") if isinstance(fields, dict) else None
        if stored not in (None, []):
            tokens = stored if isinstance(stored, list) else [stored]
            if any(type(token) is not int or not 0 <= token < _MOST_TOKENS for token in tokens):
                raise InputOutputError(f"{folder}: eos_token_id is not a token or a list of them")
            return tokens
    return []


def end_token_by_text(folder: Path, text: str | None) -> int:
    """Return the id that tokenizer.json gives the text of the token that ends texts.

    Raises KvcastError if there is none.
    """
    ids = ids_of_tokens(folder / "tokenizer.json")
    if not text or type(number := ids.get(text)) is not int:
        raise KvcastError(
            f"{folder / 'config.json'} has no eos_token_id, and tokenizer_config.json no eos_token "
            "of tokenizer.json: nothing would end a text; add the one or the other"
        )
    return number


def ids_of_tokens(path: Path) -> dict[str, Any]:
    """Return the ids of tokens, added ones included, from a tokenizer.json."""
    fields = read_json_object(path)
    model, added = fields.get("model"), fields.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, Any] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    if isinstance(vocabulary, list):  # of a Unigram model: pieces with their scores
        pieces = (entry[0] for entry in vocabulary if isinstance(entry, list) and entry)
        ids = {piece: number for number, piece in enumerate(pieces) if isinstance(piece, str)}
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            ids[token_text(token)] = token.get("id")
    return ids


def special_tokens(
    folder: Path, settings: Mapping[str, Any], model_type: str = ""
) -> dict[str, Any]:
    """Return the special and added tokens for text.json, as transformers reads the files.

    special_tokens_map.json counts where tokenizer_config.json lists no added tokens.
    """
    named_class = settings.get("tokenizer_class") or _USUAL_CLASSES.get(model_type)
    kind = _CLASSES.get(model_type, str(named_class).removesuffix("Fast"))
    values = {**_OF_CLASSES.get(kind, {}), **settings}
    older = folder / "special_tokens_map.json"
    if "added_tokens_decoder" not in settings and older.is_file():
        values |= read_json_object(older)
    extra = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    by_name = extra if isinstance(extra, dict) else {}
    named = {name: value for name, value in values.items() if name.endswith("_token")} | by_name
    texts = {name: text for name, value in named.items() if (text := token_text(value))}
    nameless = map(token_text, extra) if isinstance(extra, list) else ()
    about = {
        "special_tokens": {name: texts[name] for name in sorted(texts) if name not in _FIRST},
        "extra_special_tokens": list(filter(None, nameless)),
        "added_tokens": _added_tokens(settings, folder),
    }
    return {name: texts.get(name) for name in _FIRST} | {k: v for k, v in about.items() if v}


def _added_tokens(settings: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Return the tokens that tokenizer_config.json adds to the vocabulary, in order of their ids.

    Raises InputOutputError if they are not described as tokens.
    """
    listed = settings.get("added_tokens_decoder") or {}
    try:
        tokens = [(listed[number]["content"], listed[number]) for number in sorted(listed, key=int)]
        return [
            {"content": str(text), **{flag: bool(token[flag]) for flag in _FLAGS if flag in token}}
            for text, token in tokens
            if text
        ]
    except (ValueError, TypeError, LookupError):
        path = folder / "tokenizer_config.json"
        raise InputOutputError(f"{path} is damaged: added_tokens_decoder lists no tokens") from None


def chat_templates(folder: Path, settings: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the chat templates' files, by the names in `CHAT_TEMPLATES`, as transformers has them.

    Files count instead of tokenizer_config.json's.
    """
    paths = {"": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
    texts = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    if not texts:
        stored = settings.get("chat_template")
        by_name = stored if isinstance(stored, dict) else {"default": stored}
        named = [{"name": name, "template": text} for name, text in by_name.items()]
        entries = stored if isinstance(stored, list) else named
        # JSON may contain lone surrogates, which cannot be encoded.
        texts = {
            "" if name == "default" else name: template.encode(errors="replace")
            for entry in entries
            if isinstance(entry, dict)
            and isinstance(name := entry.get("name"), str)
            and isinstance(template := entry.get("template"), str)
        }
    return {file: texts[name] for name, file in CHAT_TEMPLATES.items() if name in texts}


def token_text(token: object) -> str:
    """Return the text of a special token, which tokenizer_config.json has plain or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFamily:
    """A family's interpretation of config.json, tensor names and text files.

    Attributes:
        model_types: values of config.json's `model_type`.
        dimensions: reads a configuration alone; takes it and a name for it in messages.
        read: takes the folder, its configuration and its tensors by name.
        required: names of further files, each with advice for a folder without it.
        codes: the quant_method of model types whose weights may be in codes.
        renamed: maps names in files to names in transformers' modules and adapters, where they
            differ.
        ignored: last part of the names of tensors that hold no weights.
        heads: names of tied heads that files omit, each with the possible names of the embedding;
            without prefixes of the class that saved a model.
        adapted: model types whose folder may have an adapter that belongs to the model.

    """

    family: type[Any]
    model_types: Sequence[str]
    dimensions: Callable[[Mapping[str, Any], str], Any]
    read: Callable[[Path, Mapping[str, Any], Mapping[str, StoredTensor]], Checkpoint]
    required: Mapping[str, str] = field(default_factory=dict)
    codes: Mapping[str, str] = field(default_factory=dict)
    renamed: Callable[[str], str] = str
    ignored: str | None = None
    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    adapted: frozenset[str] = frozenset()


_TOKENIZER = "tokenizer.json"


def read_text(folder: Path, *configs: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files that `kvcast.tokenizers.opening.open_text` reads.

    The first configuration that names tokens that end texts counts. Raises InputMissingError
    without a tokenizer.
    """
    ends = next(filter(None, (end_tokens(folder, config) for config in configs)), [])
    about = {"end_tokens": ends, "bos_token": None, "eos_token": None}
    return {**tokenizer_file(folder), "text.json": json.dumps(about).encode()}


def tokenizer_file(folder: Path) -> dict[str, bytes]:
    """Return tokenizer.json by its name; raises InputMissingError if there is none."""
    path = require_file(folder / _TOKENIZER, "copy it from the model that this one was made from")
    return {_TOKENIZER: read_file(path)}


def token_numbers(folder: Path, texts: tuple[str, ...]) -> list[int]:
    """Return the ids of tokens in tokenizer.json; KvcastError for a file without."""
    path = folder / _TOKENIZER
    numbers = ids_of_tokens(path)
    for text in texts:
        if type(numbers.get(text)) is not int:
            raise KvcastError(f"{path} has no token {text}, which every text begins with")
    return [numbers[text] for text in texts]
