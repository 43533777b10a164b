"""Variants of kvcast: a runtime with a precision, or why there is no such variant.

What precisions a runtime has is for `kvcast.spec.runtimes` to say; here is what the pairs are
called and asked for. Knows no model.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kvcast.bench.floor import Arithmetic
from kvcast.errors import KvcastError
from kvcast.spec import runtimes
from kvcast.spec.runtimes import BundlePrecision, PrecisionRequest
from kvcast.tasks.targets import TARGETS
from kvcast.tasks.targets.base import BuildOptions

PRECISIONS = {"fp32": "none", "bf16": "none", "int8": "int8", "int4": "int4"}
"""Classes to compare within, and how each is quantised where a runtime has no word of its own."""

QUANTIZED = {"int8": "int8", "int4": "int4", "none": "fp32"}
"""The precision of a quantisation of ONNX Runtime's."""

EAGER = "eager"
REFERENCE = "onnx"
"""The runtime whose times the others' are divided by, in the same precision."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    EAGER: ("torch", "kvcast"),
    "onnx": ("onnxruntime", "kvcast"),
    "aoti": ("torch", "kvcast"),
    "executorch": ("executorch", "torch", "kvcast"),
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
    ("executorch", "int8"): "8da8w: int8 matrices, int8 activations; fp16 cross caches, else fp32",
    ("executorch", "int4"): "8da4w: int4 matrices, int8 activations; fp16 cross caches, else fp32",
}
_SCHEMES = {("executorch", "int8"): "8da8w", ("executorch", "int4"): "8da4w"}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A runtime with a precision."""

    runtime: str
    precision: str

    @property
    def name(self) -> str:
        """As tables have it."""
        return f"{self.runtime}-{self.precision}"

    @property
    def module(self) -> str:
        """What is imported before a model can be loaded."""
        return f"kvcast.runtimes.{self.runtime}"

    @property
    def dtype(self) -> str:
        """Kind of numbers, in words."""
        return _DTYPES.get((self.runtime, self.precision), self.precision)

    @property
    def arithmetic(self) -> Arithmetic:
        """For floors: ONNX Runtime's bundle stores the fewest bytes, whatever runs."""
        quantized = runtimes.RUNTIMES[self.runtime].quantized_dtype
        attention = self.precision if PRECISIONS[self.precision] == "none" else quantized
        return Arithmetic(precision=self.precision, bf16_products=attention == "bf16")

    @property
    def asked(self) -> PrecisionRequest:
        """What is asked of the runtime."""
        own = _SCHEMES.get((self.runtime, self.precision))
        return PrecisionRequest(
            quantize=own or PRECISIONS[self.precision],
            dtype="bf16" if self.precision == "bf16" else None,
        )

    @property
    def numbers(self) -> BundlePrecision:
        """What the runtime makes of it; raises UsageError where it has no such numbers."""
        return runtimes.RUNTIMES[self.runtime].choose_precision(self.asked)

    def refused(self) -> str | None:
        """Say why there is no such variant, or not here; None if there is."""
        try:
            precision = self.numbers
            if self.runtime in TARGETS:
                TARGETS[self.runtime].check_build(precision, BuildOptions())
        except KvcastError as error:
            return str(error)
        return None
