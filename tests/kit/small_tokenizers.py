"""Small tokenizers of each kind that models have, trained or written here.

And one whose texts are token ids separated by spaces, so that tests are explicit.
"""

# ruff: noqa: RUF001, marks of Chinese are meant
import io
import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import sentencepiece
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from kvcast.chat.conversation import Message
from kvcast.errors import KvcastError
from kvcast.tokenizers.base import TextTokenizer
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
PROSE = [
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
    tokenizer.train_from_iterator(PROSE * 2, trainer)
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
    tokenizer.train_from_iterator(PROSE * 2, trainer)
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


SENTENCES = [
    "Call me Ishmael. Some years ago, never mind how long precisely, I thought I would sail.",
    "translate English to German: The house is wonderful, isn't it?",
    "3 March 2021 is 2021-03-03, and 12/11/1999 is 1999-11-12; 3.5% of it.",
    "Größe naïve façade señor Ελλάδα Москва 東京 한글",
    "今天天气非常好。明天去北京吗？",
]
CONTROLS = ["</s>", "<pad>", "<unk>", "<s>", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"]
_WRITING = st.one_of(
    st.text(st.sampled_from("abcdeioHW 0123.,'-<>/[]éüß東京天气好。？🙂\u0301\t\n"), max_size=12),
    st.sampled_from([*SENTENCES, *CONTROLS, "<</s>", "<0x41>", "\uff1c/s\uff1e"]),
)
TEXT = st.lists(_WRITING, max_size=4).map("".join)


@cache
def spiece_model(**options: object) -> bytes:
    """Train a spiece.model with T5's control tokens; `options` are sentencepiece's."""
    usual = {"vocab_size": 200, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    roles = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20), model_writer=model, **usual | roles | options
    )
    return model.getvalue()


def spiece_files(model: bytes, **settings: object) -> dict[str, bytes]:
    """Return the text files of a T5's checkpoint."""
    return {"spiece.model": model, "text.json": json.dumps({"end_tokens": [1]} | settings).encode()}


_WORDS = [
    *("今天", "天气", "非常", "北京", "明天", "isn", "##ae", "##l", "call", "Call", "me", "house"),
]
VOCABULARY = [
    *["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    *_WORDS,
    *sorted({character for text in SENTENCES for character in text if not character.isspace()}),
    *["##" + letter for letter in "abcdefghijklmnopqrstuvwxyz0123456789"],
    *"bgjkpqvxyz",
    *["'s", "2021", "03", "<", ">", "/", "[", "]", "sep", "SEP", "cls", "s", "eltern", "##s"],
]
VOCABULARY = list(dict.fromkeys(VOCABULARY))


def bert_files(*, lowercase: bool = True, words: bool = False, **files: bytes) -> dict[str, bytes]:
    """Return the text files of a BERT's checkpoint."""
    settings = {"tokenizer": "bert", "end_tokens": [4], "lowercase": lowercase, "words": words}
    vocabulary = "\n".join(VOCABULARY) + "\n"
    return {"text.json": json.dumps(settings).encode(), "vocab.txt": vocabulary.encode()} | files


def streamed(tokenizer: TextTokenizer, tokens: list[int]) -> str:
    """Return the text of tokens decoded one by one."""
    stream = tokenizer.stream()
    return "".join([*map(stream.push, tokens), stream.finish()])


class NumberStream:
    """Spells a token at a time."""

    def __init__(self, special: Sequence[int]) -> None:
        self._special = special
        self._begun = False

    def push(self, token: int) -> str:
        if token in self._special:
            return ""
        text = f" {token}" if self._begun else str(token)
        self._begun = True
        return text

    def finish(self) -> str:
        return ""


class Numbers:
    """Sources lie between `before` and `after`; `special` tokens have no text."""

    languages = None
    source_language = None
    translates = False

    def __init__(
        self,
        vocab: int,
        *,
        end: int,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
        special: Sequence[int] = (),
    ) -> None:
        self.vocab_size = vocab
        self.end_tokens = (end,)
        self._before, self._after = list(before), list(after)
        self._special = {end, *before, *after, *special}

    def encode(self, text: str) -> list[int]:
        return [*self._before, *map(int, text.split()), *self._after]

    def encode_chat(self, messages: Sequence[Message], tools: object = None) -> list[int]:
        raise KvcastError("no chat template: leave out chat")

    def decode(self, tokens: Sequence[int]) -> str:
        stream = self.stream()
        return "".join(map(stream.push, tokens))

    def stream(self) -> NumberStream:
        return NumberStream(tuple(self._special))


def random_sources(count: int, vocab: int, longest: int, seed: int = 0) -> list[str]:
    """Texts of 1 to `longest` tokens, none below 5."""
    import numpy as np

    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest + 1, count)
    return [" ".join(map(str, generator.integers(5, vocab, length))) for length in lengths]
