"""Small tokenizers of each kind that decoder-only models have, trained on a few sentences."""

import json
from collections.abc import Iterable
from functools import cache
from typing import Any

from tokenizers.processors import TemplateProcessing

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

SPECIALS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]"]
HEADERS = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>"]
ALL_SPECIALS = [*SPECIALS, *HEADERS, "<end_of_turn>"]
SENTENCES = [
    "Call me Ishmael. Some years ago, never mind how long precisely, I thought I would sail.",
    "user assistant system model\nYou are a helpful assistant. What is the capital of France?",
    "def main():\n    return [x for x in range(10)]\n\n  two  spaces, three   spaces",
    "Größe naïve façade señor Ελλάδα Москва 東京 한글 🙂👍",
]


def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen: every token is made of bytes."""
    return Tokenizer.from_str(_trained_byte_level())


@cache  # training breaks ties by chance
def _trained_byte_level() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=ALL_SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()


def llama() -> Tokenizer:
    """As Llama 2 and Mistral 7B: a space before everything, unknown characters as bytes."""
    tokenizer = Tokenizer.from_str(_trained_sentencepiece())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return tokenizer


def llama_first() -> Tokenizer:
    """As newer conversions of Llama 2: a space before the first word alone."""
    tokenizer = llama()
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return tokenizer


def gemma() -> Tokenizer:
    """As Gemma: nothing before the first word."""
    tokenizer = Tokenizer.from_str(_trained_sentencepiece())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


KINDS = {"byte-level": byte_level, "llama": llama, "llama-first": llama_first, "gemma": gemma}


@cache
def _trained_sentencepiece() -> str:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=ALL_SPECIALS, show_progress=False, limit_alphabet=60
    )
    tokenizer.train_from_iterator(SENTENCES * 2, trainer)
    description: dict[str, Any] = json.loads(tokenizer.to_str())
    vocab = description["model"]["vocab"]
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    description["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(description))
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer.to_str()


def text_files(tokenizer: Tokenizer, template: str | None = None) -> dict[str, bytes]:
    """Return a checkpoint's text files."""
    settings = {"end_tokens": [2, 4], "bos_token": "<s>", "eos_token": "</s>"}
    files = {
        "tokenizer.json": tokenizer.to_str().encode(),
        "text.json": json.dumps(settings).encode(),
    }
    if template is not None:
        files["chat_template.jinja"] = template.encode()
    return files


def user(*contents: str) -> list[dict[str, str]]:
    """Return a conversation that starts with the user's turn."""
    roles: Iterable[str] = ["user", "assistant"] * len(contents)
    return [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]
