"""Reads the text settings of a Hugging Face model's files, for any family.

Knows no tokenizer: each family knows the files of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_json_object
from kvcast.errors import InputOutputError


def tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json; empty if there is none."""
    path = folder / "tokenizer_config.json"
    return read_json_object(path) if path.is_file() else {}


def generation_fields(folder: Path) -> dict[str, Any]:
    """Read generation_config.json; empty if there is none."""
    path = folder / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def end_tokens(folder: Path, config: Mapping[str, Any]) -> list[int]:
    """Return the tokens that end a generation, from the first configuration that names any.

    Raises InputOutputError if they are not token ids.
    """
    for fields in (generation_fields(folder), config, config.get("text_config")):
        stored = fields.get("eos_token_id") if isinstance(fields, dict) else None
        if stored is not None:
            tokens = stored if isinstance(stored, list) else [stored]
            if any(type(token) is not int or token < 0 for token in tokens):
                raise InputOutputError(f"{folder}: eos_token_id is not a token or a list of them")
            return tokens
    return []


def token_text(token: object) -> str:
    """Return the text of a special token, which tokenizer_config.json has plain or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""
