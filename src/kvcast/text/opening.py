"""From the text files of a checkpoint or a bundle to a tokenizer: the one place that knows them.

Either `tokenizer.json` and `text.json`, with `chat_template.jinja` where the model has one, or
Mistral's own `tekken.json` or `tokenizer.model` (and `tokenizer.model.v3` and so on).
"""

import json
from collections.abc import Mapping

from kvcast.errors import InputMissingError, KvcastError
from kvcast.text.base import TextTokenizer

_SETTINGS = "text.json"
_TEMPLATE = "chat_template.jinja"


def open_text(files: Mapping[str, bytes]) -> TextTokenizer:
    """Open the tokenizer that is in `files`, name to content.

    `text.json` holds "end_tokens", a list of one or more ids, and "bos_token" and "eos_token",
    texts that the chat template may use; either may be null.

    Raises:
        InputMissingError: a file that is needed is not there.
        KvcastError: a file is damaged, or mistral-common is needed and not installed.

    """
    if "tokenizer.json" in files:
        return _json_tokenizer(files)
    from kvcast.text.mistral import MistralTokenizer, is_tokenizer_file

    for name, content in files.items():
        if is_tokenizer_file(name):
            return MistralTokenizer(name, content)
    raise InputMissingError(
        "no tokenizer: a model needs tokenizer.json and text.json, or tekken.json, "
        "or tokenizer.model; fetch it again"
    )


def _json_tokenizer(files: Mapping[str, bytes]) -> TextTokenizer:
    # Both take a moment to import, which nobody waits for who transcribes.
    from kvcast.text.chat import ChatTemplate
    from kvcast.text.tokenizer_json import JsonTokenizer

    if _SETTINGS not in files:
        raise InputMissingError(f"no {_SETTINGS} beside tokenizer.json: fetch the model again")
    end_tokens, constants = _settings(files[_SETTINGS])
    template = None
    if _TEMPLATE in files:
        try:
            template = ChatTemplate(source=files[_TEMPLATE].decode(), constants=constants)
        except UnicodeDecodeError:
            raise KvcastError(f"{_TEMPLATE} is damaged: not UTF-8; fetch it again") from None
    return JsonTokenizer(files["tokenizer.json"], end_tokens, template)


def _settings(content: bytes) -> tuple[list[int], dict[str, str]]:
    """Return the end tokens and the constants of templates."""
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        raise KvcastError(f"{_SETTINGS} is not valid JSON: fetch it again") from None
    match fields:
        case {"end_tokens": [_, *_] as end_tokens} if all(
            type(t) is int and 0 <= t < 1 << 31 for t in end_tokens
        ):
            pass
        case _:
            raise KvcastError(
                f"{_SETTINGS} is damaged: end_tokens is not a list of one or more ids"
            )
    constants = {name: fields.get(name) for name in ("bos_token", "eos_token")}
    for name, value in constants.items():
        if not isinstance(value, str | None):
            raise KvcastError(f"{_SETTINGS} is damaged: {name} is not a text")
    return end_tokens, {name: value for name, value in constants.items() if value is not None}
