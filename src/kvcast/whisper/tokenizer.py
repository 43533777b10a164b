"""Whisper's tokenizer: text to ids, ids to text, and the ids that control the model.

Text goes through a byte-level BPE built only from tokenizer.json's vocabulary and merges, so a
prompt that spells out `<|endoftext|>` is text and never a control token.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from kvcast.errors import InputMissingError, KvcastError, in_one_line
from kvcast.families.whisper import WhisperDimensions
from kvcast.spec.text_files import BYTES_BY_CHARACTER, whole_characters
from kvcast.speech.languages import LANGUAGES, language_code
from kvcast.tokenizers.vocabulary import ids_of
from tokenizers import Tokenizer, models, pre_tokenizers

SECONDS_PER_TIMESTAMP = 0.02
_TIMESTAMPS = 1501  # from 0.00 to 30.00 seconds

_END_OF_GPT2 = 50256  # English-only models keep GPT-2's vocabulary, which ends with this token

_RENAMED = {"<|nocaptions|>": "<|nospeech|>", "<|iw|>": "<|he|>"}  # names in older files

_NON_SPEECH = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))"),
    *("[[", "]]", "{{", "}}", "♪♪", "♪♪♪"),
)
_MUSIC = "♩♪♫♬♭♮♯"


FILE = "tokenizer.json"


def open_tokenizer(files: Mapping[str, bytes], dimensions: WhisperDimensions) -> "WhisperTokenizer":
    """Open the tokenizer of a bundle or checkpoint; InputMissingError if there is none."""
    if FILE not in files:
        raise InputMissingError(f"the bundle has no {FILE}: export it again")
    return WhisperTokenizer(files[FILE], dimensions.vocab_size)


class WhisperTokenizer:
    """A vocabulary and its special ids, named as in openai/whisper.

    Ids are text below `eot`, timestamps from `timestamp_begin` to before `timestamp_end`, and
    steer the model between. Fine-tuning may add tokens after the timestamps: the non-special ones
    are text. An embedding often has more rows, to round its size.
    """

    def __init__(self, tokenizer_json: bytes, vocab_size: int) -> None:
        """Read a tokenizer.json in Hugging Face's layout.

        `vocab_size`: the model's; 51,865 or more means multilingual, unless the vocabulary is the
        English-only models'. Raises KvcastError for another tokenizer or size.
        """
        try:
            description = json.loads(tokenizer_json)
            self._bpe = _byte_level_bpe(description["model"])
            added = description["added_tokens"]
            contents = {int(e["id"]): str(e["content"]) for e in added}
            special = {int(e["id"]) for e in added if e.get("special", True)}
            last = max(description["model"]["vocab"].values())
        except Exception as error:  # the tokenizers library raises bare Exception
            reason = in_one_line(f"{type(error).__name__}: {error}")
            raise KvcastError(f"tokenizer.json is not that of a Whisper model ({reason})") from None
        self._contents = {i: _RENAMED.get(content, content) for i, content in contents.items()}
        self._specials = {content: i for i, content in self._contents.items()}
        self.vocab_size = vocab_size
        if last >= vocab_size:
            raise KvcastError(
                f"tokenizer.json does not belong to this model: it has a token {last}, and the "
                f"model has {vocab_size}"
            )
        self.eot = self._special("<|endoftext|>")
        self.is_multilingual = vocab_size >= 51865 and self.eot != _END_OF_GPT2
        self.sot = self._special("<|startoftranscript|>")
        self.translate = self._special("<|translate|>")
        self.transcribe = self._special("<|transcribe|>")
        self.sot_lm = self._special("<|startoflm|>")
        self.sot_prev = self._special("<|startofprev|>")
        self.no_speech = self._special("<|nospeech|>")
        self.no_timestamps = self._special("<|notimestamps|>")
        self.timestamp_begin = self.no_timestamps + 1
        self.timestamp_end = min(timestamps_from(self.timestamp_begin).stop, vocab_size)
        if self.timestamp_begin >= vocab_size:
            raise KvcastError(
                f"tokenizer.json does not belong to this model: its timestamps begin at "
                f"{self.timestamp_begin}, beyond the model's {vocab_size} tokens"
            )
        beyond = {token for token in contents if self.timestamp_end <= token < vocab_size}
        self._added_text = frozenset(beyond - special)
        self._spelled: dict[int, bytes] = {}  # a window's tokens are spelled several times

    def is_text(self, token: int) -> bool:
        return token < self.eot or token in self._added_text

    @cached_property
    def added_text(self) -> tuple[int, ...]:
        """Tokens of text that fine-tuning added, after the timestamps, ascending."""
        return tuple(sorted(self._added_text))

    def is_timestamp(self, token: int) -> bool:
        return self.timestamp_begin <= token < self.timestamp_end

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """Codes of the model's languages, in the order of their tokens."""
        if not self.is_multilingual:
            return ("en",)
        return tuple(code for code in LANGUAGES if f"<|{code}|>" in self._specials)

    @cached_property
    def language_tokens(self) -> tuple[int, ...]:
        """Token ids of `languages`; English-only models do not use theirs."""
        return tuple(self._special(f"<|{code}|>") for code in self.languages)

    def language_code(self, language: str) -> str:
        """Return a language's code, given that or its name; raises UsageError if not supported."""
        return language_code(language, self.languages)

    def sot_sequence(self, language: str, task: str, *, timestamps: bool) -> tuple[int, ...]:
        """Return the tokens that start a transcript; `language` is a code of `languages`."""
        sequence = [self.sot]
        if self.is_multilingual:
            sequence.append(self._special(f"<|{language}|>"))
            sequence.append(self.translate if task == "translate" else self.transcribe)
        if not timestamps:
            sequence.append(self.no_timestamps)
        return tuple(sequence)

    def encode(self, text: str) -> list[int]:
        """Turn text into ids; never returns special tokens, even for text that spells them."""
        # Lone surrogates, as in undecodable arguments, become U+FFFD, as in tiktoken.
        return ids_of(self._bpe, whole_characters(text), add_special_tokens=False)

    def decode(self, tokens: Iterable[int]) -> str:
        """Turn ids into text, without timestamps; invalid bytes become U+FFFD."""
        return self.decode_with_timestamps(t for t in tokens if not self.is_timestamp(t))

    def decode_with_timestamps(self, tokens: Iterable[int]) -> str:
        """Turn ids into text with timestamps spelled out, as in `<|1.08|>`."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", errors="replace")

    @cached_property
    def blank(self) -> tuple[int, ...]:
        """Tokens that a transcript must not start with: a lone space, or the end of text."""
        return (*self.encode(" "), self.eot)

    @cached_property
    def non_speech_tokens(self) -> tuple[int, ...]:
        """Return ids of marks that are not spoken: speaker tags, brackets, music notes.

        As in openai/whisper, a mark counts if it is one token, alone or after a space; of a music
        sign that takes several tokens, the first one. A hyphen or an apostrophe counts only at the
        start of a word.
        """
        ids = {self.encode(" -")[0], self.encode(" '")[0]}
        for mark in (*_NON_SPEECH, *_MUSIC):
            for spelled in (self.encode(mark), self.encode(" " + mark)):
                if len(spelled) == 1 or mark in _MUSIC:
                    ids.add(spelled[0])
        return tuple(sorted(ids))

    @cached_property
    def control_tokens(self) -> tuple[int, ...]:
        """Ids that belong to prompts and never to a transcript."""
        return (
            self.sot,
            self.translate,
            self.transcribe,
            self.sot_lm,
            self.sot_prev,
            self.no_speech,
        )

    @cached_property
    def unused_tokens(self) -> tuple[int, ...]:
        """Ids that no transcript can have: ids without a token, and special additions."""
        named = set(self._bpe.get_vocab().values()) | self._contents.keys()
        named |= set(range(self.timestamp_begin, self.timestamp_end))
        steering = {token for token in self._contents if token >= self.timestamp_end}
        unnamed = set(range(self.vocab_size)) - named
        return tuple(sorted(unnamed | steering - self._added_text))

    def special_tokens(self) -> Mapping[str, Sequence[int]]:
        """Return the tokens that start, steer and end a text, by role.

        The start is for English without timestamps; another language's token replaces the second.
        """
        never = {*self.non_speech_tokens, *self.control_tokens, *self.unused_tokens}
        return {
            "start_tokens": self.sot_sequence("en", "transcribe", timestamps=False),
            "end_tokens": [self.eot],
            "language_tokens": self.language_tokens if self.is_multilingual else (),
            "transcribe_tokens": [self.transcribe],
            "translate_tokens": [self.translate],
            "no_timestamps_tokens": [self.no_timestamps],
            "no_speech_tokens": [self.no_speech],
            "previous_text_tokens": [self.sot_prev],
            "suppressed_tokens": sorted(never),
            "blank_tokens": self.blank,  # never chosen first
        }

    def token_bytes(self, token: int) -> bytes:
        """Return a token's bytes, which may be part of a character in UTF-8."""
        if self.is_timestamp(token):
            seconds = (token - self.timestamp_begin) * SECONDS_PER_TIMESTAMP
            return f"<|{seconds:.2f}|>".encode()
        if token in self._contents:
            return self._contents[token].encode()
        if token not in self._spelled:
            stand_ins = self._bpe.id_to_token(token)
            if stand_ins is None:
                raise KvcastError(f"token {token} is not in the vocabulary")
            self._spelled[token] = bytes(BYTES_BY_CHARACTER[stand_in] for stand_in in stand_ins)
        return self._spelled[token]

    def _special(self, name: str) -> int:
        if name not in self._specials:
            raise KvcastError(f"tokenizer.json has no {name}: it is not that of a Whisper model")
        token = self._specials[name]
        if not 0 <= token < self.vocab_size:
            raise KvcastError(
                f"tokenizer.json does not belong to this model: {name} is token {token}, and the "
                f"model has {self.vocab_size}"
            )
        return token


def timestamps_from(begin: int) -> range:
    """Return the ids of all timestamps; ids after them were added by fine-tuning."""
    return range(begin, begin + _TIMESTAMPS)


def _byte_level_bpe(model: dict[str, Any]) -> Tokenizer:
    pairs = [_pair(merge) for merge in model["merges"]]
    if foreign := set("".join(model["vocab"])) - BYTES_BY_CHARACTER.keys():
        raise ValueError(f"{foreign.pop()!r} does not stand for a byte")
    bpe = Tokenizer(models.BPE(vocab=model["vocab"], merges=pairs))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return bpe


def _pair(merge: str | Sequence[str]) -> tuple[str, str]:
    """Read a merge, which files spell as "a b" or ["a", "b"]."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right
