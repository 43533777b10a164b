"""Reads the text files of models that write what they hear, in Hugging Face layout.

Knows no tokenizer and no weights.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_file, require_file
from kvcast.checkpoints.text_huggingface import end_tokens, ids_of_tokens
from kvcast.errors import KvcastError

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
    """Return the numbers that tokenizer.json gives tokens; KvcastError for one without."""
    path = folder / _TOKENIZER
    numbers = ids_of_tokens(path)
    for text in texts:
        if type(numbers.get(text)) is not int:
            raise KvcastError(f"{path} has no token {text}, which every text begins with")
    return [numbers[text] for text in texts]
