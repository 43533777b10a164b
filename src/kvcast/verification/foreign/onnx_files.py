"""What a reader of ONNX folders finds: graphs, and sizes of the configuration.

Needs no ONNX library until a folder is opened. Knows no exporter.
"""

from dataclasses import dataclass
from pathlib import Path

from kvcast.loading.exporting import require
from kvcast.spec.runtimes import RUNTIMES
from kvcast.verification.foreign.base import ForeignModel


@dataclass(frozen=True, kw_only=True)
class OnnxDecoderFiles:
    """The files of a decoder, and what its configuration says.

    Attributes:
        exporter: what made them.
        step: the graph of a step; also of a first call, unless there is `first`.
        first: the graph of a first call, without caches; None: there is none.
        encoder: the encoder's graph; None without one.
        vocab_size: width of the logits, where the configuration says.
        capacity: most positions, where the configuration says.
        sizes: heads and their size of a cache, where the graph leaves them open.
        shared: whether past and present are given one buffer of all positions.

    """

    exporter: str
    step: Path
    first: Path | None = None
    encoder: Path | None = None
    vocab_size: int | None = None
    capacity: int | None = None
    sizes: tuple[int, int] | None = None
    shared: bool = False


def open_onnx(files: OnnxDecoderFiles, threads: int) -> ForeignModel:
    """Open a decoder; raises KvcastError with one line."""
    require("verifying ONNX graphs", ["onnxruntime", "onnx_ir"], RUNTIMES["onnx"].extra)
    from kvcast.verification.foreign.onnx_decoder import OnnxDecoder

    return OnnxDecoder(files, threads)
