"""kvcast through its public API, as users use it.

Defines the name and the options of each pair of a runtime and a precision.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from kvcast.bundle.manifest import is_bundle, read_bundle
from kvcast.checkpoints.base import Checkpoint
from kvcast.decoding.params import NGRAM
from kvcast.errors import KvcastError
from kvcast.families.decoder import DECODER
from kvcast.inspect.roofline import Arithmetic
from kvcast.runtimes.target import TARGETS, BuildOptions, default_runtime
from kvcast.spec import runtimes
from kvcast.spec.runtimes import BundlePrecision, PrecisionRequest
from kvcast_bench.backend import (
    Backend,
    Continuer,
    Samples,
    Ticks,
    Tokens,
    Transcriber,
    Way,
    Writer,
)
from kvcast_bench.models import BenchModel, CausalModel
from kvcast_bench.turns import Trial
from kvcast_bench.workloads.causal import POSITION
from kvcast_bench.writing.huggingface import write_huggingface

OWN = "own"
"""The precision of a model's file, or a program's default."""

PRECISIONS = {"fp32": "none", "bf16": "none", "int8": "int8", "int4": "int4"}
"""Classes to compare within, and how each is quantised unless a runtime names it otherwise."""

QUANTIZED = {"int8": "int8", "int4": "int4", "none": "fp32", OWN: OWN}
"""The precision of a quantisation of ONNX Runtime's."""

EAGER, ONNX = "eager", "onnx"

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    EAGER: ("torch", "kvcast"),
    "onnx": ("onnxruntime", "kvcast"),
    "aoti": ("torch", "kvcast"),
    "executorch": ("executorch", "torch", "kvcast"),
    "native": ("kvcast",),
}
"""Runtimes, and the distributions that each needs."""

_DTYPES: Mapping[tuple[str, str], str] = {
    (EAGER, "int8"): "int8 linears over bf16 activations; fp32 head, attention and caches",
    (EAGER, "int4"): "int4 linears over bf16 activations; fp32 head, attention and caches",
    ("onnx", "int8"): "int8 matrices, int8 activations; fp32 attention",
    ("onnx", "int4"): "int4 decoder, int8 encoder, int8 activations; fp32 attention",
    ("aoti", "bf16"): "bf16 matrices, attention and caches",
    ("aoti", "int8"): "int8 matrices, int8 activations; bf16 attention and caches",
    ("aoti", "int4"): "int4 decoder, int8 encoder and table; bf16 activations and caches",
    ("native", "int8"): "int8 matrices, int8 activations; bf16 encoder attention, fp16 caches",
    ("native", OWN): "as the file has them, int8 if that is in floats; fp16 caches",
    ("native", "int4"): "int4 decoder, int8 else, int8 activations; fp16 caches",
    ("executorch", "int8"): "8da8w: int8 matrices, int8 activations; fp16 cross caches, else fp32",
    ("executorch", "int4"): "8da4w: int4 matrices, int8 activations; fp16 cross caches, else fp32",
}
_SCHEMES = {("executorch", "int8"): "8da8w", ("executorch", "int4"): "8da4w"}

RING = "kvcast-int8-ring"


def own_runtime(model: Path) -> str:
    """Return the runtime that a bundle is for, or that a checkpoint gets if a user names none."""
    return read_bundle(model).runtime if is_bundle(model) else default_runtime(PrecisionRequest())


class Kvcast(Backend, Transcriber, Continuer, Writer):
    """A model of any family on one runtime in one precision; does all that a backend can do."""

    settings = "kvcast's programs and caches, with text and log-probabilities"
    draft: str | None = None

    def __init__(
        self, model: BenchModel, runtime: str, precision: str, name: str | None = None
    ) -> None:
        quantize = _SCHEMES.get((runtime, precision), PRECISIONS.get(precision))
        dtype = "bf16" if precision == "bf16" else None
        usual = "fp32" if quantize == "none" else runtimes.RUNTIMES[runtime].quantized_dtype
        super().__init__(
            model=model,
            name=name or f"{runtime}-{precision}",
            dtype=_DTYPES.get((runtime, precision), precision),
            precision=precision,
            # ONNX Runtime's bundle stores the fewest bytes, whatever runs.
            arithmetic=None
            if precision == OWN
            else Arithmetic(
                precision=precision,
                # Native's attention of encoders and prompts is int8 and bf16 unless all is fp32.
                bf16_products=(dtype or usual) == "bf16"
                or (runtime == "native" and precision != "fp32"),
            ),
        )
        self.runtime = runtime
        self.request = PrecisionRequest(quantize=quantize, dtype=dtype)
        self.packages = RUNTIMES[runtime]
        self.modules = ("kvcast.loading.opening", *model.modules, f"kvcast.runtimes.{runtime}")

    @property
    def bundled(self) -> BundlePrecision:
        """The runtime's form of the precision; raises UsageError where it has none."""
        return runtimes.RUNTIMES[self.runtime].choose_precision(self.request)

    @override
    def unfit(self) -> str | None:
        folder = Path(self.model.folder)
        if is_bundle(folder) and (has := read_bundle(folder).quantize) != self.request.quantize:
            return f"the bundle was exported with --quantize {has}"
        try:
            precision = self.bundled
            if self.runtime in TARGETS:
                TARGETS[self.runtime].check_build(precision, BuildOptions())
        except KvcastError as error:
            return str(error)
        return None

    @override
    def load(self) -> None:
        import kvcast

        self.engine = kvcast.load(
            str(self.files()),
            runtime=self.runtime,
            # `unfit` has compared a bundle's, whose codes may be calibrated ones.
            quantize=None if is_bundle(Path(self.model.folder)) else self.request.quantize,
            dtype=self.request.dtype,
            threads=self.model.threads,
            generation_config=False,  # peers ignore it
        )

    @override
    def goes(self, way: Way) -> bool:
        return True

    @override
    def transcribe(self, samples: Samples, language: str, beam: int) -> str:
        return _text(self.engine.transcribe(samples, **self._options(language, beam)))

    @override
    def transcribe_all(self, recordings: Sequence[Samples], language: str, beam: int) -> list[str]:
        if self.way.batch is None:
            return super().transcribe_all(recordings, language, beam)
        options = self._options(language, beam)
        return [
            _text(segments) for segments in self.engine.transcribe_all(list(recordings), **options)
        ]

    def _options(self, language: str, beam: int) -> dict[str, Any]:
        way = {"batch": self.way.batch, "vad": self.way.vad, "word_timestamps": self.way.words}
        return {
            "language": language,
            "beam": beam,
            "temperature": 0.0,
            "condition_on_previous_text": False,
            **{name: value for name, value in way.items() if value},
        }

    @override
    def generate(self, prompts: Sequence[Tokens], new: int, ticks: Ticks) -> list[Tokens]:
        model, rows = self.engine, len(prompts)
        tokenizer = _Clocked(model.tokenizer)
        endless = type(model)(model.runtime, tokenizer, model.dimensions)
        texts = _texts(endless, prompts, max_new_tokens=new, draft=self.draft)
        ticks.times[:] = tokenizer.times[-rows * new :][rows - 1 :: rows]
        return texts

    @override
    def write(self, sources: Sequence[Tokens], beams: int, tokens: int) -> list[Tokens]:
        return _texts(
            self.engine, sources, beam=beams, min_new_tokens=tokens, max_new_tokens=tokens
        )


class KvcastElsewhere(Kvcast):
    """The model on another runtime, which opens its checkpoint."""

    @override
    def unfit(self) -> str | None:
        return self.model.needs_checkpoint() or super().unfit()


class KvcastNgram(Kvcast):
    """The model with drafts from the text so far."""

    draft = NGRAM

    def __init__(self, model: BenchModel, precision: str) -> None:
        runtime = own_runtime(Path(model.folder))
        super().__init__(model, runtime, precision, f"kvcast-{precision}-{NGRAM}")
        self.settings = f"{super().settings}; --draft {NGRAM}"

    @override
    def takes(self, trial: Trial) -> bool:
        return bool(trial["measure"] != POSITION and trial["rows"] == 1)


class KvcastRing(Kvcast):
    """A Mistral of the model's own matrices, each of whose layers has a window."""

    model: CausalModel
    window: int

    def __init__(self, model: CausalModel, window: int) -> None:
        super().__init__(model, own_runtime(Path(model.folder)), "int8", RING)
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
            lambda folder: write_huggingface(
                windowed(self.model.checkpoint(), self.window), folder
            ),
        )


def windowed(checkpoint: Checkpoint, window: int) -> Checkpoint:
    """Return a Mistral of a checkpoint's sizes and matrices, with a window in each layer."""
    dimensions = replace(
        checkpoint.dimensions,
        architecture="mistral",
        windows=(window,) * checkpoint.dimensions.layers,
        qkv_bias=False,
        out_bias=False,
        query_key_norm=False,
    )
    tensors = checkpoint.tensors.only(DECODER.tensor_shapes(dimensions))
    return replace(checkpoint, dimensions=dimensions, tensors=tensors)


def _text(segments: Iterable[Any]) -> str:
    return "".join(segment.text for segment in segments)


def _texts(model: Any, prompts: Sequence[Tokens], **keywords: Any) -> list[Tokens]:
    texts = model.generate_each(prompts, batch=len(prompts), **keywords)
    return [list(text.tokens) for [text] in texts]


class _Clocked:
    """A tokenizer that records when each token arrives, and has no end tokens.

    Meets `kvcast.tokenizers.base.TextTokenizer`.
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
