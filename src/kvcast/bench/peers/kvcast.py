"""kvcast itself, through its public API, as anybody would use it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from kvcast.bench import probes
from kvcast.bench.backend import Backend, Samples, Ticks, Tokens
from kvcast.bench.hugging_face import write_hugging_face
from kvcast.bench.models import CausalModel, Model
from kvcast.bench.schedule import Trial
from kvcast.bench.variants import REFERENCE, RUNTIMES, Variant
from kvcast.bench.workloads.causal import POSITION
from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.decoder_names import tensor_shapes

RING = "kvcast-int8-ring"


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
        self.packages = RUNTIMES[variant.runtime]
        self.modules = ("kvcast.tasks.loading", *model.modules, variant.module)

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
        import kvcast

        asked = self.variant.asked
        self.engine = kvcast.load(
            str(self.files()),
            runtime=self.variant.runtime,
            quantize=asked.quantize,
            dtype=asked.dtype,
            threads=self.model.threads,
        )

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
        model, rows = self.engine, len(prompts)
        tokenizer = _Clocked(model.tokenizer)
        endless = type(model)(model.runtime, tokenizer, model.dimensions)
        texts = _texts(endless, prompts, max_new_tokens=new)
        ticks.times[:] = tokenizer.times[rows - 1 :: rows]
        return texts

    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        """See `Writer`."""
        return _texts(
            self.engine, sources, beam=beams, min_new_tokens=tokens, max_new_tokens=tokens
        )

    def encode_seconds(self, samples: Samples) -> float:
        """See `probes.encode_seconds`."""
        return probes.encode_seconds(self.engine, samples)

    def step_seconds(self, samples: Samples, position: int) -> float:
        """See `probes.step_seconds`."""
        return probes.step_seconds(self.engine, samples, position)


class KvcastRing(Kvcast):
    """A Mistral of the model's own matrices, each of whose layers has a window."""

    model: CausalModel
    window: int

    def __init__(self, model: CausalModel, window: int) -> None:
        super().__init__(model, Variant(runtime=REFERENCE, precision="int8"), RING)
        self.window = window
        self.settings = f"{super().settings}; a Mistral with a window of {window} positions"

    @override
    def unfit(self) -> str | None:
        return self.model.unfit()

    @override
    def takes(self, trial: Trial) -> bool:
        return bool(trial["measure"] == POSITION)

    @override
    def files(self) -> Path:
        return self.model.made(
            f"ring-{self.window}",
            lambda folder: write_hugging_face(
                windowed(self.model.checkpoint(), self.window), folder
            ),
        )


def windowed(checkpoint: DecoderCheckpoint, window: int) -> DecoderCheckpoint:
    """Return a Mistral of a checkpoint's sizes and matrices, with a window in each layer."""
    dimensions = replace(
        checkpoint.dimensions,
        architecture="mistral",
        windows=(window,) * checkpoint.dimensions.layers,
        qkv_bias=False,
        out_bias=False,
        query_key_norm=False,
    )
    tensors = {name: checkpoint.tensors[name] for name in tensor_shapes(dimensions)}
    return replace(checkpoint, dimensions=dimensions, tensors=tensors)


def _texts(model: Any, prompts: Sequence[Tokens], **keywords: int) -> list[Tokens]:
    found = model.generate_each(prompts, batch=len(prompts), **keywords)
    return [list(text.tokens) for [text] in found]


class _Clocked:
    """A tokenizer that notes when each token comes, and knows no token that ends a text.

    Meets `kvcast.text.base.TextTokenizer`.
    """

    end_tokens = ()

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.times: list[float] = []

    def stream(self) -> Any:
        stream = self._tokenizer.stream()

        def push(token: int) -> str:
            self.times.append(time.perf_counter())
            piece: str = stream.push(token)
            return piece

        return SimpleNamespace(push=push, finish=stream.finish)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)
