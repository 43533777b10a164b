"""kvcast itself: `generate` of the model that `kvcast.load` gives, told to hold end tokens back."""

from collections.abc import Sequence
from pathlib import Path

from kvcast.bench.contender import other_bundle
from kvcast.bench.precision import OURS, PRECISIONS
from kvcast.bench.sources.peers.base import Task
from kvcast.bench.sources.trials import Tokens
from kvcast.errors import KvcastError
from kvcast.runtimes.base import EncoderDecoder
from kvcast.tasks.sources import T5Model
from kvcast.text.base import Message, TextStream, TextTokenizer

_DTYPES = {
    "none": "fp32",
    "int8": "int8 weights, fp32 attention and cache",
    "int4": "int4 weights, int8 in the encoder, fp32 attention and cache",
}


class Kvcast:
    """ONNX Runtime with a bundle of one quantisation."""

    packages = ("kvcast", "onnxruntime")
    modules = ("kvcast.tasks.loading", "kvcast.tasks.sources", "kvcast.runtimes.onnx")
    settings = "generate, min_new_tokens = max_new_tokens, with text and log-probabilities"

    def __init__(self, task: Task, quantize: str) -> None:
        self._task = task
        self._quantize = quantize
        self.name = OURS[quantize]
        self.precision = PRECISIONS[quantize]
        self.dtype = _DTYPES[quantize]
        self._model: T5Model

    def unfit(self) -> str | None:
        """See the protocol."""
        return other_bundle(Path(self._task.folder), self._quantize)

    def prepare(self) -> None:
        """Export, which loading does the first time."""

    def load(self) -> None:
        """See the protocol."""
        self._model = open_t5(self._task.folder, self._quantize, self._task.threads)

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See the protocol."""
        return write(self._model, self._model.runtime, sources, beams, tokens)


def open_t5(model: str, quantize: str, threads: int) -> T5Model:
    """Load a model; raises KvcastError if it is no T5."""
    from kvcast.tasks.loading import load

    loaded = load(model, runtime="onnx", quantize=quantize, threads=threads)
    if isinstance(loaded, T5Model):
        return loaded
    raise KvcastError(f"{model} is no T5")


def write(
    model: T5Model, runtime: EncoderDecoder, sources: Sequence[Tokens], beams: int, tokens: int
) -> list[Tokens]:
    """Let a model write over a runtime, its own or one around it; see `Contender.write`."""
    tokenizer = NumbersAsText(model.tokenizer)
    found = T5Model(runtime, tokenizer, model.dimensions).generate_each(
        [" ".join(map(str, source)) for source in sources],
        beam=beams,
        min_new_tokens=tokens,
        max_new_tokens=tokens,
        batch=len(sources),
    )
    return [list(text.tokens) for [text] in found]


class NumbersAsText:
    """A tokenizer to which sources are given as numbers of tokens, for tokens have no one text.

    Meets `kvcast.text.base.TextTokenizer`; targets get their text as ever.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = tokenizer.vocab_size
        self.end_tokens = tokenizer.end_tokens

    def encode(self, text: str) -> list[int]:
        """Return the numbers."""
        return [int(number) for number in text.split()]

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """See the protocol."""
        return self._tokenizer.encode_chat(messages)

    def decode(self, tokens: Sequence[int]) -> str:
        """See the protocol."""
        return self._tokenizer.decode(tokens)

    def stream(self) -> TextStream:
        """See the protocol."""
        return self._tokenizer.stream()
