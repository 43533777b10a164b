"""Conversations in the styles of published templates become transformers' tokens.

Each style is a template in `tests/data/templates`, in a folder whose special tokens and templates
lie where models have them: one place or another, by turns.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from kvcast.chat.tool_calls import knows_tools
from kvcast.checkpoints.huggingface_text import chat_templates, special_tokens, tokenizer_settings
from kvcast.errors import KvcastError
from kvcast.tokenizers.opening import open_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

DATA = Path(__file__).parents[1] / "data" / "templates"
TEMPLATES = {path.stem: path.read_text(encoding="utf-8") for path in DATA.glob("*.jinja")}
STYLES = sorted(name for name in TEMPLATES if not name.endswith(".tool_use"))
CONTROL = re.compile(
    r"<\|/?\w+\|>|<\uff5c[\w\u2581]+\uff5c>|\[/?[A-Z_]+\]|\[\|\w+\|\]|<(?:start|end)_of_turn>"
    r"|<extra_id_\d>|<sop>|<user>|<AI>"
)
NAMED = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "image_token": "<image>",
}
# Every third style has its tokens elsewhere, and its templates.
WITH_TOOLS = {
    *("qwen2.5", "qwen3", "llama3.1", "llama3.2", "mistral-v3", "mistral-tekken", "command-r"),
    *("granite3", "hermes2-pro", "falcon3", "nemotron-mini", "smollm3"),
}
WITH_PARTS = ("gemma3", "mistral-small")
QUICK = ("qwen2.5", "llama3.1", "hermes2-pro", "every-token", "gemma3", "deepseek-r1")


def spelled() -> list[str]:
    texts = [text for template in TEMPLATES.values() for text in CONTROL.findall(template)]
    roles = [f"<|{role}|>" for role in ("system", "user", "assistant")]
    return list(dict.fromkeys([*NAMED.values(), *roles, *texts]))


@cache
def tokenizer_json() -> str:
    control = spelled()
    tokens = [*control, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(control[::2])
    return tokenizer.to_str()


def written(folder: Path, style: str) -> Path:
    place, control = STYLES.index(style) % 3, spelled()
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    as_objects = {name: {"content": text, "lstrip": False} for name, text in NAMED.items()}
    if place == 0:
        settings |= NAMED | {"additional_special_tokens": control[1::2]}
    elif place == 1:
        about = as_objects | {"additional_special_tokens": control[1::2]}
        (folder / "special_tokens_map.json").write_text(json.dumps(about))
    else:
        flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False}
        added = {str(i): {"content": text, **flags} for i, text in enumerate(control)}
        settings |= NAMED | {"added_tokens_decoder": added}
    templates = {"default": TEMPLATES[style]}
    if for_tools := TEMPLATES.get(f"{style}.tool_use"):
        templates["tool_use"] = for_tools
    if place == 2:
        (folder / "additional_chat_templates").mkdir()
        (folder / "chat_template.jinja").write_text(templates.pop("default"), encoding="utf-8")
        for name, text in templates.items():
            path = folder / f"additional_chat_templates/{name}.jinja"
            path.write_text(text, encoding="utf-8")
    elif len(templates) > 1:
        entries = [{"name": name, "template": text} for name, text in templates.items()]
        settings["chat_template"] = entries
    else:
        settings["chat_template"] = TEMPLATES[style]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    return folder


def opened(folder: Path) -> Any:
    settings = tokenizer_settings(folder)
    about = {"end_tokens": [1], **special_tokens(folder, settings)}
    text = {"text.json": json.dumps(about).encode(), **chat_templates(folder, settings)}
    return open_text({"tokenizer.json": (folder / "tokenizer.json").read_bytes(), **text})


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


SYSTEM = said("system", " Be brief.\n")
SEVERAL = [said("user", "Hi!"), said("assistant", "  Hello,\nyou. "), said("user", " Größe?\n\n🙂")]
CALL = {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}
CALLED = [
    said("user", "Weather?"),
    said("assistant", "", tool_calls=[{"id": "abcdefgh1", "type": "function", "function": CALL}]),
    said("tool", '{"degrees": 21}', tool_call_id="abcdefgh1", name="weather"),
]
CITY = {"city": {"type": "string"}, "days": {"type": "integer"}, "hours": {"type": "array"}}
SCHEMA = {"type": "object", "properties": CITY, "required": ["city"]}
FUNCTION = {"description": "The <b>weather</b>", "name": "weather", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION | {"strict": True}}]
CONVERSATIONS = [
    ([said("user", "Hi!")], None),
    (SEVERAL, None),
    ([SYSTEM, *SEVERAL], None),
    ([SYSTEM, said("user", "a"), said("assistant", "<think>\nb\n</think>\n\nc"), *SEVERAL], None),
    ([said("user", "a"), said("assistant", "c", reasoning_content="b"), said("user", "d")], None),
    ([said("user", "a"), said("assistant", "c", thinking="b"), said("user", "d")], None),
    ([said("user", [{"type": "text", "text": text} for text in (" a ", "b\n")])], None),
    ([SYSTEM, said("user", "Weather?")], TOOLS),
    (CALLED, TOOLS),
    ([SYSTEM, *CALLED, said("assistant", "Warm."), said("user", "Thanks")], TOOLS),
]


def theirs(tokenizer: Any, messages: Any, tools: Any) -> list[int] | None:
    """The tokens that transformers gives; None for what the template refuses or cannot take."""
    try:
        ids: list[int] = tokenizer.apply_chat_template(
            messages, tools=tools, add_generation_prompt=True, return_dict=False
        )
    except Exception:  # jinja2's own, and what an expression raises
        return None
    return ids


def ours(tokenizer: Any, messages: Any, tools: Any) -> list[int] | None:
    try:
        ids: list[int] = tokenizer.encode_chat(messages, tools)
    except KvcastError:
        return None
    return ids


@pytest.mark.parametrize(
    "style", [s if s in QUICK else pytest.param(s, marks=pytest.mark.slow) for s in STYLES]
)
def test_tokens_equal_transformers(style: str, tmp_path: Path):
    folder = written(tmp_path, style)
    our, their = opened(folder), AutoTokenizer.from_pretrained(folder)
    with_tools = knows_tools(TEMPLATES.get(f"{style}.tool_use", TEMPLATES[style]))
    assert with_tools == (style in WITH_TOOLS)
    understood = 0
    for messages, tools in CONVERSATIONS:
        if tools is None or with_tools:
            expected = theirs(their, messages, tools)
            if not isinstance(messages[0]["content"], str) and style not in WITH_PARTS:
                continue  # transformers shows the list, or fails
            assert ours(our, messages, tools) == expected, their.decode(expected or [])
            understood += expected is not None
    assert understood >= 2


NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
ALL_NAMES = "".join(
    f"{{{{ {name}_token if {name}_token is defined else '-' }}}}|" for name in NAMES
)
CLASSES = ("Llama", "GPT2", "Qwen2", "Gemma", "Cohere", "PreTrained")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_tokens_that_no_file_names_are_those_of_transformers_class(model_type: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
    for name in (*CLASSES, None):
        named = {} if name is None else {"tokenizer_class": f"{name}TokenizerFast"}
        settings = named | {"chat_template": ALL_NAMES}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        their = AutoTokenizer.from_pretrained(tmp_path)
        constants = special_tokens(tmp_path, settings, model_type)
        known = constants | constants.get("special_tokens", {})
        ours = "".join(f"{known.get(f'{token}_token') or '-'}|" for token in NAMES)
        expected = their.apply_chat_template([said("user", "a")], tokenize=False)
        assert ours == expected, (model_type, name)
