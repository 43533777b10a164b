"""Detects and opens folders of optimum-onnx, onnxruntime-genai and optimum-executorch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcast.bundle.manifest import is_bundle, stays_inside
from kvcast.checkpoints.base import read_json_object, require_file
from kvcast.errors import InputMissingError, KvcastError, UsageError
from kvcast.loading.exporting import require
from kvcast.machine.child import ask
from kvcast.spec.runtimes import RUNTIMES
from kvcast.verification.foreign.base import ForeignModel, Reader


@dataclass(frozen=True, kw_only=True)
class OnnxDecoderFiles:
    exporter: str
    step: Path
    first: Path | None = None  # graph of a first call, without caches
    encoder: Path | None = None
    vocab_size: int | None = None  # where the configuration has it
    capacity: int | None = None
    # heads and head size of a cache, where the graph leaves them open
    sizes: tuple[int, int] | None = None
    shared: bool = False  # past and present are bound to one buffer of all positions


def open_onnx(files: OnnxDecoderFiles, threads: int) -> ForeignModel:
    require("verifying ONNX graphs", ["onnxruntime", "onnx_ir"], RUNTIMES["onnx"].extra)
    from kvcast.verification.foreign.onnx_decoder import OnnxDecoder

    return OnnxDecoder(files, threads)


_ENCODER = "encoder_model.onnx"
_MERGED, _FIRST, _STEP = (
    f"decoder_{name}.onnx" for name in ("model_merged", "model", "with_past_model")
)
_WHOLE = ("model.onnx", _MERGED, _FIRST)
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions", "n_ctx")


def _graphs(folder: Path) -> Path:
    """Return the folder of the graphs, on the hub often a subfolder."""
    return folder / "onnx" if (folder / "onnx").is_dir() else folder


def _detect(folder: Path) -> bool:
    graphs = _graphs(folder)
    return (folder / "config.json").is_file() and any((graphs / name).is_file() for name in _WHOLE)


def _open_optimum(folder: Path, threads: int) -> ForeignModel:
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
        vocab_size=_logits_width(config, "vocab_size"),
        capacity=_capacity(config),
    )
    return open_onnx(files, threads)


def _decoder(graphs: Path) -> tuple[Path, Path | None]:
    """Return the graph of a step, and a separate one of a first call, if any."""
    for name in ("model.onnx", _MERGED):
        if (graphs / name).is_file():
            return graphs / name, None
    if not (graphs / _STEP).is_file():
        raise KvcastError(
            f"{graphs / _FIRST} has no {_STEP} beside it, so nothing is cached: export with past"
        )
    return graphs / _STEP, graphs / _FIRST


def _capacity(config: Mapping[str, Any]) -> int | None:
    """Return the most positions; None with relative positions."""
    if "relative_attention_num_buckets" in config:
        return None
    return next((size for name in _POSITIONS if (size := _logits_width(config, name))), None)


def _logits_width(config: Mapping[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and 0 < value < 2**31 else None


OPTIMUM = Reader(
    name=f"optimum (config.json with model.onnx, {_MERGED}, or {_FIRST} and {_STEP})",
    detect=_detect,
    open=_open_optimum,
)


CONFIG = "genai_config.json"
_LONGEST = 4096
"""Positions of a shared buffer: a configuration may ask for more than there is memory for."""


def _open_genai(folder: Path, threads: int) -> ForeignModel:
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
    context = _cache_size(model, "context_length", path)
    files = OnnxDecoderFiles(
        exporter="onnxruntime-genai",
        step=graph,
        vocab_size=_cache_size(model, "vocab_size", path),
        capacity=min(context, _LONGEST) if shared else context,
        sizes=(
            _cache_size(decoder, "num_key_value_heads", path),
            _cache_size(decoder, "head_size", path),
        ),
        shared=shared,
    )
    return open_onnx(files, threads)


def _object(fields: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise KvcastError(f"{path} has no {name!r}: write it again with the model builder")
    return value


def _cache_size(fields: Mapping[str, Any], name: str, path: Path) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 < value < 2**31:
        raise KvcastError(f"{path}: {name} is no size: {value!r}")
    return value


GENAI = Reader(
    name=f"onnxruntime-genai ({CONFIG})",
    detect=lambda folder: (folder / CONFIG).is_file(),
    open=_open_genai,
)


_FILE = "model.pte"


def _programs(folder: Path) -> Sequence[Path]:
    files = sorted(folder.glob("*.pte"))
    return [folder / _FILE] if folder / _FILE in files else files


def _open_pte(folder: Path, threads: int) -> ForeignModel:
    require("verifying .pte files", ["executorch", "torch"], RUNTIMES["executorch"].extra)
    programs = _programs(folder)
    if len(programs) > 1:
        names = ", ".join(path.name for path in programs[:4])
        raise KvcastError(f"{folder} has several programs ({names}), none of which is {_FILE}")
    from kvcast.verification.foreign.executorch import ExecutorchProgram

    return ExecutorchProgram(programs[0], threads)


EXECUTORCH = Reader(
    name=f"optimum-executorch ({_FILE})",
    detect=lambda folder: bool(_programs(folder)),
    open=_open_pte,
    native=_programs,
)


READERS: tuple[Reader, ...] = (GENAI, OPTIMUM, EXECUTORCH)
_CHILD = "kvcast.verification.foreign.readers:open_and_step"
_SECONDS = 300


def reader_of(folder: Path) -> Reader:
    """Return the reader of a folder; raises KvcastError if there is none."""
    if not folder.is_dir():
        raise InputMissingError(f"no folder {folder}: give one that another tool exported")
    if is_bundle(folder):
        raise UsageError(f"{folder} is a bundle of kvcast's own: leave out --foreign")
    for reader in READERS:
        if reader.detect(folder):
            return reader
    kinds = "; ".join(reader.name for reader in READERS)
    raise KvcastError(f"{folder} holds no exported decoder that is known here: {kinds}")


def open_foreign(folder: Path, threads: int, *, trust: bool) -> ForeignModel:
    """Open a folder, in a child first; KvcastError if damaged, or native code is untrusted."""
    reader = reader_of(folder)
    if native := list(reader.native(folder)):
        if not trust:
            raise KvcastError(
                f"{native[0]} can contain native code: give --trust if you trust its maker"
            )
        answer = ask(_CHILD, str(folder.absolute()), seconds=_SECONDS)
        if answer.ended:
            raise KvcastError(f"{native[0]} was opened in a process of its own: {answer.problem}")
    return reader.open(folder, threads)


def open_and_step(folder: str) -> None:
    """Open a folder, in a process that a crash may end."""
    path = Path(folder)
    reader_of(path).open(path, 1)
