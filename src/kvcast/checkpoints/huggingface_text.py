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
from kvcast.checkpoints.lora import Modules
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
    path = folder / "tokenizer_config.json"
    return read_json_object(path) if path.is_file() else {}


def generation_fields(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def with_start_token(folder: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take decoder_start_token_id from generation_config.json if that has one."""
    started = generation_fields(folder).get(START)
    return config if started is None else {**config, START: started}


def recommended_options(folder: Path) -> dict[str, Any]:
    """Options for text.json; as in transformers, sampling options count only with do_sample."""
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
    """From the first configuration that names any; InputOutputError if they are no token ids."""
    for fields in (generation_fields(folder), config, config.get("text_config")):
        stored = fields.get("eos_token_id") if isinstance(fields, dict) else None
        if stored not in (None, []):
            tokens = stored if isinstance(stored, list) else [stored]
            if any(type(token) is not int or not 0 <= token < _MOST_TOKENS for token in tokens):
                raise InputOutputError(f"{folder}: eos_token_id is not a token or a list of them")
            return tokens
    return []


def end_token_by_text(folder: Path, text: str | None) -> int:
    """Return the id of the token that ends texts; KvcastError if tokenizer.json has none."""
    ids = ids_of_tokens(folder / "tokenizer.json")
    if not text or type(number := ids.get(text)) is not int:
        raise KvcastError(
            f"{folder / 'config.json'} has no eos_token_id, and tokenizer_config.json no eos_token "
            "of tokenizer.json: nothing would end a text; add the one or the other"
        )
    return number


def ids_of_tokens(path: Path) -> dict[str, Any]:
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
    """For text.json, as transformers reads the files; tokenizer_config.json counts first."""
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
    """In order of their ids; InputOutputError if they are not described as tokens."""
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
    """By the names in `CHAT_TEMPLATES`; files count instead of tokenizer_config.json's."""
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
    """Return a special token's text, which tokenizer_config.json has plain or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFamily:
    family: type[Any]
    model_types: Sequence[str]  # values of config.json's `model_type`
    dimensions: Callable[[Mapping[str, Any], str], Any]  # from config.json, and its name
    # takes the folder, its configuration and its tensors by name; KvcastError, naming the file, if
    # they are not supported or do not belong together, InputMissingError without a tokenizer
    read: Callable[[Path, Mapping[str, Any], Mapping[str, StoredTensor]], Checkpoint]
    required: Mapping[str, str] = field(default_factory=dict)  # further files, with advice
    codes: Mapping[str, str] = field(default_factory=dict)  # quant_method by type
    renamed: Callable[[str], str] = str  # names in files to transformers' modules
    ignored: str | None = None  # last part of the names of tensors that hold no weights
    # names of tied heads that files omit, each with the possible names of the embedding; without
    # prefixes of the class that saved a model
    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # how files differ from the modules that adapters name, beside the heads, by a configuration
    modules: Callable[[Mapping[str, Any]], Modules] = lambda config: Modules(
        tied=config.get("tie_word_embeddings") is not False
    )
    adapted: frozenset[str] = frozenset()  # types with an adapter in the model's folder
    # whether a folder of one of its types, with this configuration, is of this family, where
    # several families have the type
    claims: Callable[[Path, Mapping[str, Any]], bool] = lambda _folder, _config: True


_TOKENIZER = "tokenizer.json"


def read_text(folder: Path, *configs: Mapping[str, Any]) -> dict[str, bytes]:
    """Files for `kvcast.tokenizers.opening.open_text`; InputMissingError without a tokenizer.

    The first configuration that names tokens that end texts counts.
    """
    ends = next(filter(None, (end_tokens(folder, config) for config in configs)), [])
    about = {"end_tokens": ends, "bos_token": None, "eos_token": None}
    return {**tokenizer_file(folder), "text.json": json.dumps(about).encode()}


def tokenizer_file(folder: Path) -> dict[str, bytes]:
    path = require_file(folder / _TOKENIZER, "copy it from the model that this one was made from")
    return {_TOKENIZER: read_file(path)}


def token_ids_of(folder: Path, texts: tuple[str, ...]) -> list[int]:
    path = folder / _TOKENIZER
    ids = ids_of_tokens(path)
    for text in texts:
        if type(ids.get(text)) is not int:
            raise KvcastError(f"{path} has no token {text}, which every text begins with")
    return [ids[text] for text in texts]
