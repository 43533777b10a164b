"""Small tokenizers of each kind that text-to-text models have, trained or written here."""

# ruff: noqa: RUF001, marks of Chinese are meant

import io
import json
from functools import cache

import sentencepiece
from hypothesis import strategies as st

from kvcast.tokenizers.base import TextTokenizer

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


WORDS = [
    "今天",
    "天气",
    "非常",
    "北京",
    "明天",
    "isn",
    "##ae",
    "##l",
    "call",
    "Call",
    "me",
    "house",
]
VOCABULARY = [
    *["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
    *WORDS,
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
