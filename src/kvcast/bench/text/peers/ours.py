"""kvcast itself, with the loop that `TextModel.generate` runs, told to ignore end tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvcast.bench.contender import made_beside, needs_checkpoint, other_bundle
from kvcast.bench.precision import OURS, PRECISIONS
from kvcast.bench.runtimes.forms import Form
from kvcast.bench.text.huggingface import write_hugging_face
from kvcast.bench.text.peers.base import Task, Tick
from kvcast.bench.text.trials import Tokens
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.decoder_names import tensor_shapes
from kvcast.decoding.continuous import write
from kvcast.decoding.drafts import Draft, Endings, Stopwatch
from kvcast.decoding.params import SamplingParams
from kvcast.decoding.prefixes import Nothing
from kvcast.decoding.sampling import Sampler
from kvcast.errors import KvcastError
from kvcast.runtimes.base import DecoderOnly
from kvcast.tasks.generate import TextModel
from kvcast.text.base import TextTokenizer
from kvcast.text.stops import StopStrings

_CHUNK = 512
RING = "kvcast-int8-ring"
COMPILED = {"int8": "kvcast-aoti-int8", "int4": "kvcast-aoti-int4"}
"""Names of the compiled ones, by quantisation."""
_DTYPES = {
    "none": "fp32",
    "int8": "int8 weights, fp32 attention and cache",
    "int4": "int4 weights, fp32 attention and cache",
}
_SPREAD = 0.02


class Kvcast:
    """ONNX Runtime with a bundle of one quantisation."""

    packages = ("kvcast", "onnxruntime")
    modules = ("kvcast.tasks.loading", "kvcast.tasks.generate", "kvcast.runtimes.onnx_decoder")
    settings = f"defaults: chunks of {_CHUNK}, its own greedy loop with text and log-probabilities"

    def __init__(self, task: Task, quantize: str) -> None:
        self._task = task
        self._quantize = quantize
        self.name = OURS[quantize]
        self.precision = PRECISIONS[quantize]
        self.dtype = _DTYPES[quantize]
        self.model: TextModel

    def unfit(self) -> str | None:
        """See the protocol."""
        return other_bundle(Path(self._task.folder), self._quantize)

    def prepare(self) -> None:
        """Export, which loading does the first time."""

    def load(self) -> None:
        """See the protocol."""
        self.model = open_text_model(self._task.model, self._quantize, self._task.threads)

    def generate(self, prompts: Sequence[Tokens], new: int, tick: Tick) -> list[Tokens]:
        """See the protocol."""
        return generate(self.model.runtime, self.model.tokenizer, prompts, new, tick)


class Compiled(Kvcast):
    """AOTInductor with a bundle of one quantisation, which compiling for minutes makes once."""

    packages = ("kvcast", "torch")
    modules = ("kvcast.tasks.loading", "kvcast.tasks.generate", "kvcast.runtimes.aoti_decoder")

    def __init__(self, task: Task, quantize: str) -> None:
        super().__init__(task, quantize)
        self._form = Form(runtime="aoti", precision=quantize)
        self.name = COMPILED[quantize]
        self.dtype = self._form.dtype

    def unfit(self) -> str | None:
        """See the protocol."""
        return needs_checkpoint(Path(self._task.folder)) or self._form.refused()

    def load(self) -> None:
        """See the protocol."""
        task = self._task
        self.model = open_text_model(task.model, self._quantize, task.threads, runtime="aoti")


class KvcastRing(Kvcast):
    """A model of the same sizes with random weights, each of whose layers has a window."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, "int8")
        self.name = RING
        self.settings = f"{super().settings}; random weights, a window of {task.window} positions"

    def unfit(self) -> str | None:
        """See the protocol."""
        return self._task.unlike_hugging_face()

    def prepare(self) -> None:
        """Make the model, as a Hugging Face folder, and export it."""
        folder = self._folder
        if not folder.is_dir():
            with made_beside(folder) as beside:
                write_hugging_face(windowed(self._task.checkpoint(), self._task.window), beside)

    def load(self) -> None:
        """See the protocol."""
        self.model = open_text_model(str(self._folder), "int8", self._task.threads)

    @property
    def _folder(self) -> Path:
        return self._task.made(f"window-{self._task.window}")


def open_text_model(model: str, quantize: str, threads: int, *, runtime: str = "onnx") -> TextModel:
    """Load a model; raises KvcastError if it generates no text."""
    from kvcast.tasks.loading import load

    loaded = load(model, runtime=runtime, quantize=quantize, threads=threads)
    if isinstance(loaded, TextModel):
        return loaded
    raise KvcastError(f"{model} is no decoder-only model, so it cannot generate")


def generate(
    runtime: DecoderOnly, tokenizer: TextTokenizer, prompts: Sequence[Tokens], new: int, tick: Tick
) -> list[Tokens]:
    """Run the product's loop over token prompts; see `Contender.generate`."""
    endings = Endings(end_tokens=(), stops=StopStrings(), max_new_tokens=new)
    drafts = [
        Draft(
            prompt,
            read=0,
            endings=endings,
            choose=Sampler(SamplingParams()),
            tokenizer=tokenizer,
            watch=Stopwatch(),
        )
        for prompt in prompts
    ]
    progress = write(Nothing(runtime), drafts, rows=len(drafts), chunk=_CHUNK)
    for count, _ in enumerate(progress, 1):
        if count % len(drafts) == 0:
            tick()
    return [draft.tokens for draft in drafts]


def windowed(checkpoint: DecoderCheckpoint, window: int) -> DecoderCheckpoint:
    """Return a Mistral of the checkpoint's sizes: random weights, and a window in each layer."""
    dimensions = replace(
        checkpoint.dimensions,
        architecture="mistral",
        windows=(window,) * checkpoint.dimensions.layers,
        qkv_bias=False,
        out_bias=False,
        query_key_norm=False,
    )
    rng = np.random.default_rng(0)
    tensors = {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else rng.standard_normal(shape, np.float32) * np.float32(_SPREAD)
        for name, shape in tensor_shapes(dimensions).items()
    }
    return replace(checkpoint, dimensions=dimensions, tensors=tensors, source="random weights")
