"""The programs that kvcast's generation is compared with, each behind the same small interface."""

from collections.abc import Callable, Mapping
from functools import partial

from kvcast.bench.precision import OURS
from kvcast.bench.text.peers.base import Contender, Task
from kvcast.bench.text.peers.ctranslate2 import CTranslate2
from kvcast.bench.text.peers.genai import OnnxRuntimeGenAI
from kvcast.bench.text.peers.llamacpp import LlamaCpp
from kvcast.bench.text.peers.ours import COMPILED, RING, Compiled, Kvcast, KvcastRing
from kvcast.bench.text.peers.transformers import Transformers

__all__ = ["CONTENDERS", "PEERS", "RING"]

Make = Callable[[Task], Contender]

_PEERS: Mapping[str, Make] = {
    **{name: partial(Compiled, quantize=quantize) for quantize, name in COMPILED.items()},
    "llama.cpp-q8_0": partial(LlamaCpp, kind="Q8_0"),
    "llama.cpp-q4_0": partial(LlamaCpp, kind="Q4_0"),
    "onnxruntime-genai-int4": OnnxRuntimeGenAI,
    "ctranslate2-int8": CTranslate2,
    "transformers-bf16": partial(Transformers, dtype="bf16"),
    "transformers-fp32": partial(Transformers, dtype="fp32"),
}
PEERS = tuple(_PEERS)
CONTENDERS: Mapping[str, Make] = {
    **{name: partial(Kvcast, quantize=quantize) for quantize, name in OURS.items()},
    RING: KvcastRing,
    **_PEERS,
}
