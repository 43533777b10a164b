"""Folders of onnxruntime-genai: `genai_config.json` and the ONNX graph that it names.

The graph runs on ONNX Runtime as that library runs it: past and present have one buffer of all
positions where the configuration says so (`past_present_share_buffer`), else present is new memory.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import stays_inside
from kvcast.checkpoints.base import read_json_object, require_file
from kvcast.errors import KvcastError
from kvcast.verification.foreign.base import ForeignModel, Reader
from kvcast.verification.foreign.onnx_files import OnnxDecoderFiles, open_onnx

CONFIG = "genai_config.json"
_LONGEST = 4096
"""Positions of a shared buffer: a configuration may ask for more than there is memory for."""


def _open(folder: Path, threads: int) -> ForeignModel:
    config = read_json_object(folder / CONFIG)
    path = folder / CONFIG
    model = _object(config, "model", path)
    decoder = _object(model, "decoder", path)
    if "encoder" in model or "vision" in model:
        raise KvcastError(f"{path}: models with an encoder are not verified: decoders alone are")
    name = decoder.get("filename")
    if not isinstance(name, str) or not stays_inside(name):
        raise KvcastError(f"{path} names no graph inside of the folder: {name!r}")
    graph = require_file(folder / name, f"{CONFIG} names it: fetch it too")
    search = config.get("search")
    shared = isinstance(search, dict) and search.get("past_present_share_buffer") is True
    context = _size(model, "context_length", path)
    files = OnnxDecoderFiles(
        exporter="onnxruntime-genai",
        step=graph,
        vocab_size=_size(model, "vocab_size", path),
        capacity=min(context, _LONGEST) if shared else context,
        sizes=(_size(decoder, "num_key_value_heads", path), _size(decoder, "head_size", path)),
        shared=shared,
    )
    return open_onnx(files, threads)


def _object(fields: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise KvcastError(f"{path} has no {name!r}: write it again with the model builder")
    return value


def _size(fields: Mapping[str, Any], name: str, path: Path) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise KvcastError(f"{path}: {name} is no size: {value!r}")
    return value


READER = Reader(
    name=f"onnxruntime-genai ({CONFIG})",
    detect=lambda folder: (folder / CONFIG).is_file(),
    open=_open,
)
