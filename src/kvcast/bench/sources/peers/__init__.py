"""The programs that kvcast's targets are compared with, each behind the same small interface."""

from collections.abc import Callable, Mapping
from functools import partial

from kvcast.bench.precision import OURS
from kvcast.bench.sources.peers.base import Contender, Task
from kvcast.bench.sources.peers.ctranslate2 import CTranslate2
from kvcast.bench.sources.peers.optimum import OptimumOnnx
from kvcast.bench.sources.peers.ours import Kvcast
from kvcast.bench.sources.peers.transformers import Transformers

__all__ = ["CONTENDERS", "PEERS"]

Make = Callable[[Task], Contender]

_PEERS: Mapping[str, Make] = {
    "ctranslate2-int8": partial(CTranslate2, kind="int8"),
    "ctranslate2-fp32": partial(CTranslate2, kind="fp32"),
    "optimum-onnx-int8": partial(OptimumOnnx, kind="int8"),
    "optimum-onnx-fp32": partial(OptimumOnnx, kind="fp32"),
    "transformers-bf16": partial(Transformers, dtype="bf16"),
    "transformers-fp32": partial(Transformers, dtype="fp32"),
}
PEERS = tuple(_PEERS)
CONTENDERS: Mapping[str, Make] = {
    **{name: partial(Kvcast, quantize=quantize) for quantize, name in OURS.items()},
    **_PEERS,
}
