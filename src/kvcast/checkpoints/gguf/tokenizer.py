"""Converts a GGUF file's tokenizer and chat template to the files that `kvcast.text` reads.

A GGUF file has a vocabulary, merges or scores, and the name of a pre-tokenizer. Pre-tokenizers are
taken from llama.cpp's src/llama-vocab.cpp and from the models' published tokenizer.json.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kvcast.checkpoints.fields import Fields
from kvcast.errors import KvcastError
from kvcast.spec.text_files import CHAT_TEMPLATES
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
# Longer than any token of a published model, and short enough to try all ways to split it in two.
_LONGEST_TOKEN = 1024

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HAN_AND_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_YOUTU = (
    r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b"
    r"\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + _HAN_AND_KANA
)
_DEEPSEEK = (
    r"[\r\n]",
    # Cased letters of the Unicode version that it was made with.
    r"\s?[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c88\u2d00-\u2d2d"
    "\ua790-\uab68\U00010570-\U000105bc\U00016e40-\U0001df1e]]+",
    r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    *(r"\s+$", r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}+"),
)
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# Digits in groups of three from the last on; scripts without spaces; all else.
_AFMOE = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf"
    "\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+",
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


# Tokens that end a turn, which files often do not name: llama.cpp, too, goes by their texts.
_TURN_ENDS = frozenset(
    (
        *("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>"),
        *(
            "<|endoftext|>",
            "<|end_of_text|>",
            "<\uff5cend\u2581of\u2581sentence\uff5c>",
            "<end_of_utterance>",
        ),
        *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "</s>", "<eos>", "<|tool_response>"),
        *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>"),
    )
)
# What templates call tokens, beside the first and the last, and what files call them.
_SPECIAL_TOKENS = {
    "unk_token": "unknown",
    "pad_token": "padding",
    "sep_token": "seperator",  # as the format spells it
    "cls_token": "cls",
    "mask_token": "mask",
}
# In formats with channels a message's end is not the turn's.
_CHANNEL_ENDS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|calls|>", "<|flush|>"}))
_PRE_TOKENIZER, _TEMPLATE = "tokenizer.ggml.pre", "tokenizer.chat_template"
_NO_WORDS = (
    f"names no pre-tokenizer ({_PRE_TOKENIZER}): text is split as llama.cpp does by default, and "
    "answers may be worse; convert the model again"
)


@dataclass(frozen=True, kw_only=True)
class _Words:
    """How text is split before byte-level BPE."""

    patterns: tuple[str, ...]  # applied in order; each splits the pieces that the one before left
    whole: bool = False  # a word that is a token is not merged (`ignore_merges`)
    starts: bool = False  # whether texts start with a token, if the file does not say
    composed: bool = False  # whether text is normalised to NFC first


_LLAMA3_WORDS = _Words(patterns=(_LLAMA3,), whole=True, starts=True)
_QWEN2_WORDS = _Words(patterns=(QWEN2,), composed=True)
_WORDS: Mapping[str, _Words] = {
    "default": _Words(patterns=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _Words(patterns=(_GPT2,)),
    **dict.fromkeys(("olmo", "mpt", "phi-2", "exaone4"), _Words(patterns=(_GPT2,))),
    "falcon": _Words(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r"), _Words(patterns=(r"\p{N}", _GPT2))
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _Words(patterns=(_LLAMA3,))),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "lfm2"), _LLAMA3_WORDS),
    **dict.fromkeys(("falcon3", "pixtral"), _LLAMA3_WORDS),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2_WORDS),
    "seed-coder": _Words(patterns=(QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+"),)),
    "qwen35": _Words(patterns=(_QWEN35,), composed=True),
    "stablelm2": _Words(patterns=(QWEN2,)),
    "tekken": _Words(patterns=(_TEKKEN,), whole=True, starts=True),
    **dict.fromkeys(("gpt-4o", "minimax-m2"), _Words(patterns=(_GPT4O,))),
    "afmoe": _Words(patterns=_AFMOE),
    "youtu": _Words(patterns=(_YOUTU, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), whole=True),
    "deepseek-llm": _Words(patterns=_DEEPSEEK),
    "deepseek-v3": _Words(patterns=(r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_3)),
    "glm4": _Words(patterns=(_LLAMA3,)),
    "chatglm-bpe": _Words(patterns=(_LLAMA3,)),
}


@dataclass(frozen=True, kw_only=True)
class _Vocabulary:
    """Checked `tokens` and their `types` by id; `fields` are all values of the file."""

    fields: Fields
    tokens: Sequence[str]
    types: Sequence[int]

    def token_id(self, role: str, default: int | None = None) -> int | None:
        name = f"tokenizer.ggml.{role}_token_id"
        if self.fields.values.get(name) is None and default is None:
            return None
        return self.fields.whole(name, default, least=0, most=len(self.tokens) - 1)

    def text_of(self, token: int | None) -> str | None:
        return None if token is None else self.tokens[token]

    def end_tokens(self, eos: int | None) -> list[int]:
        """Tokens that end a text: named by the file, then of known texts; KvcastError if none."""
        named = [eos, *map(self.token_id, ("eot", "eom", "fim_pad", "fim_rep", "fim_sep"))]
        texts = _TURN_ENDS.intersection(self.tokens)
        if any(ends <= texts for ends in _CHANNEL_ENDS):
            texts -= {"<|end|>"}
        if "<|tool_response>" in texts:
            texts -= {"</s>"}
        ends = [token for token in named if token is not None]
        ends += sorted(map(self.tokens.index, texts))
        if not ends:
            raise self.fields.error(
                "tokenizer.ggml.eos_token_id is missing: nothing would end a text"
            )
        return list(dict.fromkeys(ends))


@dataclass(frozen=True, kw_only=True)
class _TokenizerKind:
    build: Callable[[_Vocabulary], Tokenizer]
    starts: Callable[[Fields], bool]
    spell: Callable[[str], str] = str
    bos: int | None = None
    eos: int | None = None


def read_text(values: Mapping[str, Any], label: str) -> dict[str, bytes]:
    """tokenizer.json, text.json (`kvcast.tokenizers.settings`) and chat templates, if any.

    Raises KvcastError, naming `label`, for a tokenizer that is damaged or not supported.
    """
    fields = Fields(values=values, label=label)
    model = _MODELS.get(str(values.get("tokenizer.ggml.model")))
    if model is None:
        raise fields.error(
            f"tokenizer {_named(values.get('tokenizer.ggml.model'))} is not supported: "
            f"one of {', '.join(_MODELS)}"
        )
    vocabulary = _vocabulary(fields, model.spell)
    bos = vocabulary.token_id("bos", model.bos)
    eos = vocabulary.token_id("eos", model.eos)
    ends = vocabulary.end_tokens(eos)
    named = {name: vocabulary.token_id(role) for name, role in _SPECIAL_TOKENS.items()}
    special = {name: vocabulary.text_of(t) for name, t in named.items() if t is not None}
    text: dict[str, Any] = {
        "end_tokens": ends,
        "bos_token": vocabulary.text_of(bos),
        "eos_token": vocabulary.text_of(eos),
    }
    if special:
        text["special_tokens"] = special
    if model.build is _byte_level and _named_words(fields) is None:
        text["notices"] = [f"{label} {_NO_WORDS}"]
    starts = fields.flag("tokenizer.ggml.add_bos_token", model.starts(fields))
    files = {
        "tokenizer.json": _tokenizer_json(vocabulary, model, bos if starts else None, ends),
        "text.json": json.dumps(text).encode(),
    }
    for name, file in CHAT_TEMPLATES.items():
        template = values.get(f"tokenizer.chat_template.{name}" if name else _TEMPLATE)
        if isinstance(template, str):
            files[file] = template.encode()
    return files


def _vocabulary(fields: Fields, spell: Callable[[str], str]) -> _Vocabulary:
    stored = fields.values.get("tokenizer.ggml.tokens")
    if not isinstance(stored, list) or not stored:
        raise fields.error("tokenizer.ggml.tokens is not a list of texts")
    tokens = list(map(spell, stored))
    if len(set(tokens)) != len(tokens) or max(map(len, tokens)) > _LONGEST_TOKEN:
        raise fields.error("tokenizer.ggml.tokens has a token twice, or one that is too long")
    types = fields.values.get("tokenizer.ggml.token_type")
    if types is None:
        types = np.full(len(tokens), _NORMAL)
    return _Vocabulary(
        fields=fields,
        tokens=tokens,
        types=_values_of_pieces(fields, "token_type", types, len(tokens)),
    )


def _values_of_pieces(fields: Fields, name: str, values: object, count: int) -> list[Any]:
    if not isinstance(values, np.ndarray) or len(values) != count or not np.isfinite(values).all():
        raise fields.error(f"tokenizer.ggml.{name} is not a number for each token")
    return list(values.tolist())


def _tokenizer_json(
    vocabulary: _Vocabulary, model: _TokenizerKind, start: int | None, ends: Sequence[int]
) -> bytes:
    try:
        tokenizer = model.build(vocabulary)
        tokenizer.add_tokens(
            [
                AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
                for number, (token, kind) in enumerate(
                    zip(vocabulary.tokens, vocabulary.types, strict=True)
                )
                if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) or number in ends
            ]
        )
        if start is not None:
            token = vocabulary.tokens[start]
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[token, "$A"], special_tokens=[(token, start)]
            )
        return tokenizer.to_str().encode()
    except KvcastError:
        raise
    except Exception as error:  # the library raises bare Exception
        reason = "".join(filter(str.isprintable, str(error)))[:200]
        raise vocabulary.fields.error(f"its tokenizer cannot be built: {reason}") from None


def _byte_level(vocabulary: _Vocabulary) -> Tokenizer:
    words = _words(vocabulary.fields)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_ids(vocabulary.tokens),
            merges=_stored_merges(vocabulary.fields),
            ignore_merges=words.whole,
        )
    )
    if words.composed:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _named_words(fields: Fields) -> str | None:
    name = fields.values.get(_PRE_TOKENIZER)
    return None if name is None else str(name) or None


def _words(fields: Fields) -> _Words:
    name = _named_words(fields) or "default"
    words = _WORDS.get(name)
    if words is None:
        raise fields.error(
            f"pre-tokenizer {_named(name)} is not supported: one of {', '.join(_WORDS)}"
        )
    return words


def _sentencepiece(
    vocabulary: _Vocabulary, merges: Callable[[_Vocabulary], list[tuple[str, str]]]
) -> Tokenizer:
    """BPE over characters, with U+2581 for spaces and byte fallback."""
    prefix = vocabulary.fields.flag("tokenizer.ggml.add_space_prefix", True)
    unknown = vocabulary.token_id("unknown", 0)
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_ids(vocabulary.tokens),
            merges=merges(vocabulary),
            unk_token=vocabulary.text_of(unknown),
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _spell_spaces(token: str) -> str:
    """Gemma's files have plain spaces."""
    return token if token.strip(" ") else "▁" * len(token)


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def _stored_merges(fields: Fields) -> list[tuple[str, str]]:
    merges = fields.values.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise fields.error("tokenizer.ggml.merges is not a list of texts")
    # A token may itself begin with a space.
    cuts = [merge.find(" ", 1) for merge in merges]
    if -1 in cuts:
        raise fields.error("tokenizer.ggml.merges has an entry that is not two tokens")
    return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]


def _merges_by_rank(vocabulary: _Vocabulary) -> list[tuple[str, str]]:
    """Every pair of tokens that merge into a third, best first; Gemma's in the order of ids.

    As transformers' `generate_merges`: SentencePiece joins the pair of the highest score.
    """
    fields, tokens = vocabulary.fields, vocabulary.tokens
    if fields.values.get("general.architecture") == "gemma3":
        scores: Sequence[float] = range(0, -len(tokens), -1)
    else:
        stored = fields.values.get("tokenizer.ggml.scores")
        scores = _values_of_pieces(fields, "scores", stored, len(tokens))
    ids = {
        token: number
        for number, token in enumerate(tokens)
        if vocabulary.types[number] in (_NORMAL, _USER_DEFINED)
    }
    pairs = []
    for token, number in ids.items():
        halves = [
            (left, right)
            for left, right in ((token[:cut], token[cut:]) for cut in range(1, len(token)))
            if left in ids and right in ids
        ]
        halves.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        pairs += [(scores[number], len(left), len(right), left, right) for left, right in halves]
    pairs.sort(key=lambda pair: pair[:3], reverse=True)
    return [(left, right) for *_, left, right in pairs]


def _named(value: object) -> str:
    return repr(str(value)[:40])


_MODELS: Mapping[str, _TokenizerKind] = {
    "gpt2": _TokenizerKind(build=_byte_level, starts=lambda fields: _words(fields).starts),
    "llama": _TokenizerKind(
        build=partial(_sentencepiece, merges=_merges_by_rank),
        starts=lambda _: True,
        spell=_spell_spaces,
        bos=1,
        eos=2,
    ),
    "gemma4": _TokenizerKind(
        build=partial(_sentencepiece, merges=lambda vocabulary: _stored_merges(vocabulary.fields)),
        starts=lambda _: True,
        spell=_spell_spaces,
        bos=2,
        eos=1,
    ),
}
