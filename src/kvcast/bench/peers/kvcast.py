"""kvcast itself, through its public API, as anybody would use it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from kvcast.bench import probes
from kvcast.bench.backend import Backend, Samples, Ticks, Tokens
from kvcast.bench.files.hugging_face import write_hugging_face
from kvcast.bench.models import CausalModel, Model, made_beside
from kvcast.bench.schedule import Trial
from kvcast.bench.variants import REFERENCE, Variant
from kvcast.bench.workloads.causal import POSITION
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.decoder_names import tensor_shapes

RING = "kvcast-int8-ring"
_SPREAD = 0.02


class Kvcast(Backend):
    """A model of any family on one runtime in one precision; does all that a backend can do."""

    settings = "kvcast's programs and caches, with text and log-probabilities"

    def __init__(self, model: Model, variant: Variant, name: str | None = None) -> None:
        super().__init__(
            model=model,
            name=name or variant.name,
            dtype=variant.dtype,
            precision=variant.precision,
            arithmetic=variant.arithmetic,
        )
        self.variant = variant
        self.packages = variant.of.packages
        self.modules = ("kvcast.tasks.loading", *model.modules, variant.of.module)

    @override
    def unfit(self) -> str | None:
        folder = Path(self.model.folder)
        if self.variant.runtime != REFERENCE:
            return self.model.needs_checkpoint() or self.variant.refused()
        asked = self.variant.asked.quantize
        if is_bundle(folder) and (has := read_bundle(folder).quantize) != asked:
            return f"the bundle was exported with --quantize {has}"
        return self.variant.refused()

    @override
    def load(self) -> None:
        self.engine = self._open(self.model.folder)

    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        """See `Transcriber`."""
        segments = self.engine.transcribe(
            samples,
            language=language,
            beam=beam,
            temperature=0.0,
            condition_on_previous_text=False,
        )
        return "".join(segment.text for segment in segments)

    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        """See `Continuer`."""
        tokenizer = _Clocked(self.engine.tokenizer, ends=False)
        texts = self._texts(tokenizer, prompts, max_new_tokens=new)
        rows = len(prompts)
        ticks.times[:] = tokenizer.times[-rows * new :][rows - 1 :: rows]
        return texts

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See `Writer`."""
        tokenizer = _Clocked(self.engine.tokenizer, ends=True)
        return self._texts(
            tokenizer, sources, beam=beams, min_new_tokens=tokens, max_new_tokens=tokens
        )

    def encode_seconds(self, samples: Samples) -> float:
        """See `probes.encode_seconds`."""
        return probes.encode_seconds(self.engine, samples)

    def step_seconds(self, samples: Samples, position: int) -> float:
        """See `probes.step_seconds`."""
        return probes.step_seconds(self.engine, samples, position)

    def _open(self, folder: str) -> Any:
        import kvcast

        asked = self.variant.asked
        return kvcast.load(
            folder,
            runtime=self.variant.runtime,
            quantize=asked.quantize,
            dtype=asked.dtype,
            threads=self.model.threads,
        )

    def _texts(
        self, tokenizer: "_Clocked", prompts: Sequence[Tokens], **keywords: int
    ) -> list[Tokens]:
        model = self.engine
        found = type(model)(model.runtime, tokenizer, model.dimensions).generate_each(
            prompts, batch=len(prompts), **keywords
        )
        return [list(text.tokens) for [text] in found]


class KvcastRing(Kvcast):
    """A model of the same sizes with random weights, each of whose layers has a window."""

    model: CausalModel

    def __init__(self, model: CausalModel, window: int) -> None:
        super().__init__(model, Variant(runtime=REFERENCE, precision="int8"), RING)
        self.window = window
        self.settings = f"{super().settings}; random weights, a window of {window} positions"

    @override
    def unfit(self) -> str | None:
        return self.model.unlike_hugging_face()

    @override
    def takes(self, trial: Trial) -> bool:
        return bool(trial["measure"] == POSITION)

    @override
    def prepare(self) -> None:
        folder = self._folder
        if not folder.is_dir() and self.window is not None:
            with made_beside(folder) as beside:
                write_hugging_face(windowed(self.model.checkpoint(), self.window), beside)

    @override
    def load(self) -> None:
        self.engine = self._open(str(self._folder))

    @property
    def _folder(self) -> Path:
        return self.model.made(f"window-{self.window}")


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


class _Clocked:
    """A tokenizer that notes when each token comes; meets `kvcast.text.base.TextTokenizer`."""

    def __init__(self, tokenizer: Any, *, ends: bool) -> None:
        self._tokenizer = tokenizer
        self.end_tokens = tokenizer.end_tokens if ends else ()
        self.times: list[float] = []

    def stream(self) -> "_Stream":
        return _Stream(self._tokenizer.stream(), self.times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class _Stream:
    """Text under way."""

    def __init__(self, stream: Any, times: list[float]) -> None:
        self._stream = stream
        self._times = times

    def push(self, token: int) -> str:
        self._times.append(time.perf_counter())
        piece: str = self._stream.push(token)
        return piece

    def finish(self) -> str:
        rest: str = self._stream.finish()
        return rest
