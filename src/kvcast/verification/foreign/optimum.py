"""Folders that optimum writes: ONNX graphs that take past keys and values, beside config.json.

A decoder is one graph (`model.onnx`), one with a branch for the first call
(`decoder_model_merged.onnx`), or two graphs (`decoder_model.onnx` for the first call,
`decoder_with_past_model.onnx` for a step), which are opened as optimum opens them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import read_json_object
from kvcast.errors import InputMissingError, KvcastError
from kvcast.verification.foreign.base import ForeignModel, Reader
from kvcast.verification.foreign.onnx_files import OnnxDecoderFiles, open_onnx

_ENCODER = "encoder_model.onnx"
_MERGED, _FIRST, _STEP = (
    f"decoder_{name}.onnx" for name in ("model_merged", "model", "with_past_model")
)
_WHOLE = ("model.onnx", _MERGED, _FIRST)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx")


def _graphs(folder: Path) -> Path:
    """Return the folder of the graphs: on the hub they often have one of their own."""
    return folder / "onnx" if (folder / "onnx").is_dir() else folder


def _detect(folder: Path) -> bool:
    graphs = _graphs(folder)
    return (folder / "config.json").is_file() and any((graphs / name).is_file() for name in _WHOLE)


def _open(folder: Path, threads: int) -> ForeignModel:
    graphs, config = _graphs(folder), read_json_object(folder / "config.json")
    step, first = _decoder(graphs)
    encoder = graphs / _ENCODER
    if config.get("is_encoder_decoder") and not encoder.is_file():
        raise InputMissingError(f"no {_ENCODER} in {graphs}: export the whole model")
    files = OnnxDecoderFiles(
        exporter="optimum (ONNX)",
        step=step,
        first=first,
        encoder=encoder if encoder.is_file() else None,
        vocab_size=_size(config, "vocab_size"),
        capacity=_capacity(config),
    )
    return open_onnx(files, threads)


def _decoder(graphs: Path) -> tuple[Path, Path | None]:
    """Return the graph of a step, and that of a first call if it is another."""
    for name in ("model.onnx", _MERGED):
        if (graphs / name).is_file():
            return graphs / name, None
    if not (graphs / _STEP).is_file():
        raise KvcastError(
            f"{graphs / _FIRST} has no {_STEP} beside it, so nothing is cached: export with past"
        )
    return graphs / _STEP, graphs / _FIRST


def _capacity(config: Mapping[str, Any]) -> int | None:
    """Return the most positions; those of a model with relative ones bound nothing."""
    if "relative_attention_num_buckets" in config:
        return None
    return next((size for name in _POSITIONS if (size := _size(config, name))), None)


def _size(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and 0 < value < 2**31 else None


READER = Reader(
    name=f"optimum (config.json with model.onnx, {_MERGED}, or {_FIRST} and {_STEP})",
    detect=_detect,
    open=_open,
)
