import json
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.tiny_gguf import packaged, sizes, tensors, vocabulary, write
from kvcast.checkpoints.gguf.tokenizer import read_text
from kvcast.checkpoints.source import open_checkpoint
from kvcast.tokenizers.opening import open_text
from tokenizers import Tokenizer, pre_tokenizers

TEXTS = [
    "",
    " ",
    "The capital of France is Paris.",
    "  two  spaces, and\ttabs \t\n\n\nnew lines \n end ",
    "1234567890 and 3.14159, 2024-05-01",
    "٣٤٥ ½ ² ⅷ\n 12",
    "it's I'LL we've they'd CAN'T",
    "def f(x):\n    return x ** 2  # square\n",
    "日本語のテキスト、中文、한국어",
    "naïve café ñandú e\u0301 \uff21\uff22\uff23",
    "emoji 🤖 👩‍👩‍👧 🇫🇷!",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "\x00\x7f\u200b\ufeff",
    "\r\n \r\n",
    "x" * 300,
]


@pytest.fixture(scope="module")
def demo_chat():
    return open_checkpoint(packaged()).text


def tokenizer(files):
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def with_arrays(values):
    return {
        name: np.array(value)
        if isinstance(value, list) and not isinstance(value[0], str)
        else value
        for name, value in values.items()
    }


def read(pre="gpt-2", architecture="llama", template=None, **more):
    values = with_arrays(vocabulary(pre, **more))
    if template is not None:
        values["tokenizer.chat_template"] = template
    return read_text(values | {"general.architecture": architecture}, "m.gguf")


@cache
def both_tokenizers():
    from transformers import AutoTokenizer

    path = packaged()
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # From GGUF files, transformers splits text as GPT-2 does; this is SmolLM2's own rule.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    return tokenizer(open_checkpoint(path).text), theirs


def test_ids_of_the_packaged_model_equal_transformers():
    ours, theirs = both_tokenizers()
    for text in TEXTS:
        assert ours.encode(text).ids == theirs.encode(text), text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.one_of(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
            st.sampled_from(["<|im_start|>", "<|im_end|>", "\n", "  ", " 12", "é", "🤖", "'s"]),
        ),
        max_size=8,
    ).map("".join)
)
def test_ids_of_any_text_equal_transformers(text):
    ours, theirs = both_tokenizers()
    assert ours.encode(text).ids == theirs.encode(text)


def test_digits_are_cut_apart_before_words_as_smollm_says(demo_chat):
    ours = tokenizer(demo_chat)
    pieces = [ours.decode([token]) for token in ours.encode("in 2024").ids]
    assert pieces == ["in", " ", *"2024"]


def test_the_packaged_models_text_files_open(demo_chat):
    assert json.loads(demo_chat["text.json"]) == {
        "end_tokens": [2, 0],
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "special_tokens": {"unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"},
    }
    opened = open_text(demo_chat)
    assert (opened.end_tokens, opened.notices) == ((2, 0), ())
    chat = opened.encode_chat([{"role": "user", "content": "Hello"}])
    spelled = tokenizer(demo_chat).decode(chat, skip_special_tokens=False)
    assert spelled.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    text = "Größe 1234 🤖\n"
    assert opened.decode(opened.encode(text)) == text


def test_special_tokens_are_special_and_user_defined_ones_are_not():
    ours = tokenizer(read())
    added = ours.get_added_tokens_decoder()
    assert {token: added[token].special for token in added} == {
        0: True,
        1: True,
        2: True,
        3: True,
        4: False,
    }
    ids = ours.encode("<|user|>hello<think>").ids
    assert [ours.id_to_token(token) for token in ids] == ["<|user|>", "hello", "<think>"]
    assert ours.decode(ids) == "hello<think>"


def test_a_beginning_is_added_where_the_file_or_the_kind_says():
    def first(files):
        ours = tokenizer(files)
        return ours.id_to_token(ours.encode("hello").ids[0])

    assert first(read()) == "hello"
    assert first(read(add_bos_token=True)) == "<s>"
    assert first(read("llama-bpe")) == "<s>"
    assert first(read("tekken")) == "<s>"
    assert first(read("llama-bpe", add_bos_token=False)) == "hello"
    assert first(read(add_bos_token=True, bos_token_id=None)) == "hello"


def about(**more):
    return json.loads(read(**more)["text.json"])


def test_end_tokens_are_all_that_the_file_has():
    assert about()["end_tokens"] == [2]
    assert about(eot_token_id=3, eom_token_id=4)["end_tokens"] == [2, 3, 4]
    assert about(eot_token_id=2)["end_tokens"] == [2]
    assert about(fim_pad_token_id=3)["end_tokens"] == [2, 3]
    assert about(bos_token_id=None)["bos_token"] is None


# As llama.cpp has them, which also takes some back where others are beside them.
@pytest.mark.parametrize(
    ("words", "ends"),
    [
        *(([text], [text]) for text in (
            "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<|endoftext|>",
            "<|end_of_text|>", "<EOT>", "[EOT]", "<end_of_utterance>", "<eos>",
            "<\uff5cend\u2581of\u2581sentence\uff5c>",
        )),
        (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
        (["<|im_start|>", "<|eot|>"], []),
    ],
)  # fmt: skip
def test_tokens_that_end_a_turn_are_found_by_their_text(words, ends):
    tokens = vocabulary()["tokenizer.ggml.tokens"]
    files = read(tokens=[*tokens, *words], token_type=None)
    tokens = json.loads(files["text.json"])["end_tokens"]
    assert [tokenizer(files).id_to_token(token) for token in tokens] == ["</s>", *ends]
    # Files may have them as ordinary tokens: they are special all the same.
    for text in ends:
        assert tokenizer(files).decode(tokenizer(files).encode(f"hello{text}").ids) == "hello"


def test_templates_get_the_special_tokens_that_the_file_names():
    special = about(unknown_token_id=0, padding_token_id=2)["special_tokens"]
    assert special == {"unk_token": "<unk>", "pad_token": "</s>"}
    assert "special_tokens" not in about()


def test_chat_templates_are_kept_as_they_are():
    assert "chat_template.jinja" not in read()
    assert read(template="{{ 'ü' }}\n")["chat_template.jinja"] == "{{ 'ü' }}\n".encode()
    values = with_arrays(vocabulary()) | {"tokenizer.chat_template.tool_use": "t"}
    assert read_text(values, "m.gguf")["chat_template.tool_use.jinja"] == b"t"


# How the published tokenizers of these models split a text, according to their patterns.
@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "Hi 1234's  x", ["Hi", " 1234", "'s", " ", " x"]),
        ("smollm", "Hi 123's", ["Hi", " ", "1", "2", "3", "'s"]),
        ("llama-bpe", "Hi 1234'S\n\n x", ["Hi", " ", "123", "4", "'S", "\n\n", " x"]),
        ("llama3", "12345", ["123", "45"]),
        ("qwen2", "Hi 123 (x)\n", ["Hi", " ", "1", "2", "3", " (", "x", ")\n"]),
        ("tekken", "helloWorld 12/\n", ["hello", "World", " ", "1", "2", "/\n"]),
        ("falcon", "a`b 1234 (x)", ["a", "`", "b", " ", "123", "4", " ", "(", "x", ")"]),
        ("falcon3", "Hi 1234", ["Hi", " ", "123", "4"]),
        ("pixtral", "Hi 1234", ["Hi", " ", "123", "4"]),
        ("seed-coder", "Hi 12 (x)\n", ["Hi", " ", "1", "2", " (", "x", ")", "\n"]),
        ("gpt-4o", "helloWorld's 1234/\n", ["hello", "World's", " ", "123", "4", "/\n"]),
        ("minimax-m2", "helloWorld's 1234/\n", ["hello", "World's", " ", "123", "4", "/\n"]),
        ("afmoe", "a 12345678 b12", ["a", " ", "12", "345", "678", " b", "12"]),
        ("afmoe", "a\u4e00b", ["a", "\u00e4\u00b8\u0122", "b"]),  # of three bytes
        ("afmoe", "x.y (z)\n 123", ["x", ".y", " (", "z", ")\n", " ", "123"]),
        ("glm4", "Hi 1234'S", ["Hi", " ", "123", "4", "'S"]),
        ("lfm2", "Hi 1234'S", ["Hi", " ", "123", "4", "'S"]),
        ("qwen35", "e\u0301a 12", ["e\u00cc\u0123a", " ", "1", "2"]),  # an accent is two bytes
        ("stablelm2", "Hi 12\n", ["Hi", " ", "1", "2", "\n"]),
        ("youtu", "it's 12\uff0cab/\n", ["it's", " ", "1", "2", "ï¼Į", "ab", "/\n"]),
        ("deepseek-llm", "Hi you (1)\n", ["Hi", " you", " (", "1", ")", "\n"]),
        ("deepseek-v3", "Hi 1234 f(x)\n", ["Hi", " ", "123", "4", " f", "(x", ")\n"]),
        ("default", "a+b 1234", ["a", "+", "b", " ", "123", "4"]),
    ],
)
def test_words_are_cut_as_the_file_names_it(pre, text, words):
    ours = tokenizer(read(pre))
    pieces = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str(text)]
    assert [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece in pieces] == words


def test_a_file_that_names_no_way_of_cutting_has_the_default_one():
    assert read(pre=None)["tokenizer.json"] == read(pre="default")["tokenizer.json"]
    for none in (None, ""):
        (notice,) = about(pre=none)["notices"]
        assert notice.startswith("m.gguf names no pre-tokenizer (tokenizer.ggml.pre)")
    assert "notices" not in about(pre="default") | about(**sentencepiece())


def test_llama3_takes_a_word_that_is_a_token_whatever_its_merges():
    tokens = [*vocabulary()["tokenizer.ggml.tokens"], "xyz"]
    more = {"tokens": tokens, "token_type": None}
    assert tokenizer(read("llama-bpe", **more)).encode("xyz").tokens == ["<s>", "xyz"]
    assert tokenizer(read("gpt-2", **more)).encode("xyz").tokens == ["x", "y", "z"]


def test_qwen_composes_characters_first():
    assert (
        tokenizer(read("qwen2")).encode("e\u0301").ids == tokenizer(read("qwen2")).encode("é").ids
    )
    assert tokenizer(read()).encode("e\u0301").ids != tokenizer(read()).encode("é").ids


def sentencepiece(**more):
    special = ["<unk>", "<s>", "</s>"]
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁t", "he", "▁the", "▁▁", "▁", "t", "h", "e", "a", "é", "<user>"]
    types = [2, 3, 3] + [6] * 256 + [1] * 10 + [4]
    scores = [0.0] * 259 + [float(-number) for number in range(len(pieces))]
    values = {
        "model": "llama",
        "pre": None,
        "tokens": special + octets + pieces,
        "token_type": types,
        "scores": scores,
        "merges": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return values | more


def test_sentencepiece_merges_by_score_falls_back_to_bytes_and_begins():
    ours = tokenizer(read(**sentencepiece()))
    assert ours.encode("the the").tokens == ["<s>", "▁the", "▁the"]
    assert ours.encode("ea").tokens == ["<s>", "▁", "e", "a"]
    assert ours.encode("a🤖").tokens[-4:] == ["<0xF0>", "<0x9F>", "<0xA4>", "<0x96>"]
    assert ours.encode("<user>the").tokens == ["<s>", "<user>", "▁the"]
    for text in ("the  cat 🤖 é\n", " the", "日本"):
        assert ours.decode(ours.encode(text).ids) == text
    assert json.loads(read(**sentencepiece())["text.json"])["end_tokens"] == [2]


def test_sentencepiece_without_a_space_before_the_first_word():
    files = read(**sentencepiece(add_space_prefix=False, add_bos_token=False))
    ours = tokenizer(files)
    assert ours.encode("the the").tokens == ["t", "he", "▁the"]
    assert ours.decode(ours.encode(" the").ids) == " the"
    opened = open_text(files)
    assert opened.decode(opened.encode(" the é🤖")) == " the é🤖"


def test_gemma_4_merges_as_its_file_says():
    merges = ["h e", "▁ t", "▁ ▁"]
    files = read(
        **sentencepiece(
            model="gemma4", merges=merges, scores=None, add_space_prefix=False, bos_token_id=1
        )
    )
    ours = tokenizer(files)
    assert ours.encode("the the").tokens == ["<s>", "t", "he", "▁t", "he"]
    assert ours.encode("a🤖").tokens[-4:] == ["<0xF0>", "<0x9F>", "<0xA4>", "<0x96>"]
    for text in ("the  cat 🤖 é\n", " the", "日本"):
        assert ours.decode(ours.encode(text).ids) == text


def test_of_equal_cuts_the_pair_with_the_better_token_is_joined():
    better = sentencepiece()
    better["scores"] = [0.0] * 259 + [-5.0, 0.0, -6.0] + [-9.0] * 8
    assert tokenizer(read(**better)).encode("the").tokens == ["<s>", "▁the"]
    # Without the whole word, "he" comes before "▁t" by score, and after it by id, as for Gemma.
    better["tokens"] = [("-" if token == "▁the" else token) for token in better["tokens"]]
    assert tokenizer(read(**better)).encode("the").tokens == ["<s>", "▁t", "he"]
    better["scores"][259], better["scores"][260] = -1.0, -2.0
    assert tokenizer(read(**better)).encode("the").tokens == ["<s>", "▁t", "he"]


def test_gemmas_merges_follow_its_ids_and_its_spaces_are_respelled():
    gemma = sentencepiece(add_space_prefix=False)
    gemma["tokens"] = [("  " if token == "▁▁" else token) for token in gemma["tokens"]]
    gemma["scores"] = [-1000.0] * len(gemma["tokens"])
    ours = tokenizer(read(architecture="gemma3", **gemma))
    assert ours.encode("a  a the").tokens == ["<s>", "a", "▁▁", "a", "▁the"]


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_sentencepiece_ids_equal_transformers(architecture, tmp_path):
    from transformers import AutoTokenizer

    more = sentencepiece(add_space_prefix=architecture == "llama", add_bos_token=True)
    more |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    values = vocabulary(**more) | sizes(architecture)
    write(tmp_path / "m.gguf", architecture, values, tensors())
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = tokenizer(read(architecture=architecture, **more))
    texts = ["the the", "thethe a", "hea é🤖", "日本", "a<user>"]
    if architecture == "gemma3":
        # After a special token llama.cpp puts a space before a Llama's word, transformers does not.
        texts.append("a<user>a")
    for text in texts:
        assert ours.encode(text).ids == theirs.encode(text), text
