"""The peers of each workload: a row for each program and dtype.

Imports none of the other programs' packages.
"""

from collections.abc import Callable, Mapping
from functools import partial

from kvcast_bench.backend import Backend
from kvcast_bench.peers.ctranslate2 import CausalCTranslate2, FasterWhisper, Seq2seqCTranslate2
from kvcast_bench.peers.genai import OnnxRuntimeGenAI
from kvcast_bench.peers.kvcast import KvcastElsewhere
from kvcast_bench.peers.llamacpp import LlamaCpp, LlamaCppOwn
from kvcast_bench.peers.openai_whisper import OpenAIWhisper, WhisperCpp
from kvcast_bench.peers.openvino import PRECISION, CausalOpenVINO, WhisperOpenVINO
from kvcast_bench.peers.servers import LlamaServer, WrappedFasterWhisper
from kvcast_bench.peers.transformers import (
    CausalTransformers,
    OptimumOnnx,
    Seq2seqTransformers,
    WhisperTransformers,
)
from kvcast_bench.peers.vllm import VLLM

Make = Callable[..., Backend]
_INT8 = "int8 weights, fp32 attention"
_INT8_CACHE = f"{_INT8} and cache"
_INT4 = "int4 weights, fp32 attention"
_OPENVINO = f"{{}} weights, {PRECISION} else"


def _peers(*rows: tuple[str, Make, str, str, str]) -> dict[str, Make]:
    """Each row: name, class, precision, dtype, kind; see `Backend`."""
    return {
        name: partial(make, name=name, precision=precision, dtype=dtype, kind=kind)
        for name, make, precision, dtype, kind in rows
    }


_OWN = {
    "kvcast-onnx": partial(KvcastElsewhere, runtime="onnx", precision="int8", name="kvcast-onnx")
}
SPEECH: Mapping[str, Make] = {
    **_OWN,
    **_peers(
        ("faster-whisper", FasterWhisper, "int8", _INT8, "int8"),
        ("whisper.cpp-q8_0", WhisperCpp, "int8", "q8_0 matrices, fp16 else", "q8_0"),
        ("whisper.cpp-f16", WhisperCpp, "fp16", "fp16", "f16"),
        ("openvino-int8", WhisperOpenVINO, "int8", _OPENVINO.format("int8"), "int8"),
        ("transformers", WhisperTransformers, "bf16", "bf16", "bfloat16"),
        ("openai-whisper", OpenAIWhisper, "fp32", "fp32", "float32"),
    ),
}
CAUSAL: Mapping[str, Make] = {
    **{
        name: partial(KvcastElsewhere, runtime="aoti", precision=precision, name=name)
        for name, precision in (("kvcast-aoti-int8", "int8"), ("kvcast-aoti-int4", "int4"))
    },
    **_OWN,
    **_peers(
        ("llama.cpp-q8_0", LlamaCpp, "int8", "Q8_0 matrices, fp16 cache", "Q8_0"),
        ("llama.cpp-q4_0", LlamaCpp, "int4", "Q4_0 matrices, fp16 cache", "Q4_0"),
        ("llama.cpp-own", LlamaCppOwn, "own", "as the file has them, fp16 cache", ""),
        ("onnxruntime-genai-int4", OnnxRuntimeGenAI, "int4", _INT4, "int4"),
        ("ctranslate2-int8", CausalCTranslate2, "int8", _INT8_CACHE, "int8"),
        ("openvino-int8", CausalOpenVINO, "int8", _OPENVINO.format("int8"), "int8"),
        ("openvino-int4", CausalOpenVINO, "int4", _OPENVINO.format("int4"), "int4"),
        ("vllm-bf16", VLLM, "bf16", "bf16", "bfloat16"),
        ("transformers-bf16", CausalTransformers, "bf16", "bf16", "bfloat16"),
        ("transformers-fp32", CausalTransformers, "fp32", "fp32", "float32"),
    ),
}
SERVED_TEXTS: Mapping[str, Make] = _peers(
    ("llama.cpp-server-q8_0", LlamaServer, "int8", "Q8_0 matrices, fp16 cache", "Q8_0"),
    ("llama.cpp-server-q4_0", LlamaServer, "int4", "Q4_0 matrices, fp16 cache", "Q4_0"),
)
SERVED_SPEECH: Mapping[str, Make] = _peers(
    ("faster-whisper", WrappedFasterWhisper, "int8", _INT8, "int8"),
)
SEQ2SEQ: Mapping[str, Make] = _OWN | _peers(
    ("ctranslate2-int8", Seq2seqCTranslate2, "int8", _INT8_CACHE, "int8"),
    ("ctranslate2-fp32", Seq2seqCTranslate2, "fp32", "fp32", "float32"),
    ("optimum-onnx-int8", OptimumOnnx, "int8", _INT8_CACHE, "int8"),
    ("optimum-onnx-fp32", OptimumOnnx, "fp32", "fp32", "fp32"),
    ("transformers-bf16", Seq2seqTransformers, "bf16", "bf16", "bfloat16"),
    ("transformers-fp32", Seq2seqTransformers, "fp32", "fp32", "float32"),
)
