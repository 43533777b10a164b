"""CTranslate2, from a folder that its converter makes of the Hugging Face folder."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvcast.bench.contender import made_beside
from kvcast.bench.precision import FLOAT, INT8
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.trials import Tokens

_VOCABULARY = "shared_vocabulary.json"
_PRECISIONS = {"int8": INT8, "fp32": FLOAT}
_TYPES = {"int8": "int8", "fp32": "float32"}
_DTYPES = {"int8": "int8 weights, fp32 attention and cache", "fp32": "fp32"}


class CTranslate2:
    """int8 is its fastest on a CPU."""

    packages = ("ctranslate2", "transformers", "torch")
    modules = ("ctranslate2",)
    settings = "min_decoding_length = max_decoding_length, one hypothesis"

    def __init__(self, task: Task, kind: str) -> None:
        self._task = task
        self._kind = kind
        self.name = f"ctranslate2-{kind}"
        self.precision = _PRECISIONS[kind]
        self.dtype = _DTYPES[kind]
        self._model: Any = None
        self._words: list[str] = []
        self._tokens: dict[str, int] = {}

    def unfit(self) -> str | None:
        """See the protocol."""
        return self._task.unlike_hugging_face()

    def prepare(self) -> None:
        """Convert."""
        folder = self._folder
        if not folder.is_dir():
            from ctranslate2.converters import TransformersConverter

            with made_beside(folder) as beside:
                converter = TransformersConverter(self._task.folder)
                converter.convert(str(beside), quantization=_TYPES[self._kind])
                _tell_apart(beside / _VOCABULARY)

    def load(self) -> None:
        """See the protocol."""
        import ctranslate2

        self._model = ctranslate2.Translator(
            str(self._folder),
            device="cpu",
            compute_type=_TYPES[self._kind],
            inter_threads=1,
            intra_threads=self._task.threads,
        )
        self._words = json.loads((self._folder / _VOCABULARY).read_bytes())
        self._tokens = {word: token for token, word in enumerate(self._words)}

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See the protocol."""
        found = self._model.translate_batch(
            [[self._words[token] for token in source] for source in sources],
            beam_size=beams,
            min_decoding_length=tokens,
            max_decoding_length=tokens,
            max_input_length=0,
        )
        return [[self._tokens[word] for word in result.hypotheses[0]] for result in found]

    @property
    def _folder(self) -> Path:
        return self._task.made(f"ct2-{self._kind}", self.packages)


def _tell_apart(vocabulary: Path) -> None:
    """Give words of their own to tokens that share one.

    A T5 has more tokens than its tokenizer, and the converter calls them as others are called.
    """
    words: dict[str, None] = {}
    for token, word in enumerate(json.loads(vocabulary.read_bytes())):
        words[f"{word} {token}" if word in words else word] = None
    vocabulary.write_text(json.dumps(list(words)), encoding="utf-8")
