"""Reads CTranslate2's Whisper folders: model.bin, config.json, and a tokenizer.

The layout of model.bin, little-endian, from CTranslate2's python/ctranslate2/specs/model_spec.py
and src/models/model.cc; a string is a u16 length that includes a final NUL, then bytes:

    u32 version, string specification, u32 revision, u32 number of variables
    each variable: string name, u8 rank, u32 x rank shape, u8 kind, u32 number of bytes, bytes
    u32 number of aliases; each: string alias, string name of a variable

For Whisper only version 6 exists, as CTranslate2 did not support it before. The three revisions of
its specification differ in configuration, not in weights. Every count and length is checked against
the file before it is used.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    StoredTensor,
    generation_settings,
    read_json_object,
    tensor_from_bytes,
)
from kvcast.checkpoints.cursor import FileCursor
from kvcast.checkpoints.speech.whisper import assemble, check_tied, sinusoids, whisper_dimensions
from kvcast.checkpoints.speech.whisper_tokenizer import (
    check_preprocessor,
    optional_files,
    tokenizer_json,
)
from kvcast.errors import InputOutputError, KvcastError
from kvcast.families.whisper import WhisperDimensions

_VERSION = 6
_REVISIONS = range(1, 4)
_KINDS = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
_FLOATS = ("float32", "float16", "bfloat16")
_ITEM_SIZES = (4, 1, 2, 4, 2, 2)
_MAX_RANK = 4
# Two strings of at least a character and NUL, or a string and a variable's fixed fields.
_SMALLEST_VARIABLE = 2 + 2 + 1 + 1 + 4
_SMALLEST_ALIAS = 2 * (2 + 2)

_LINEARS = {
    "encoder.conv1": "encoder/conv1",
    "encoder.conv2": "encoder/conv2",
    "encoder.layers.{i}.attention.qkv": "encoder/layer_{i}/self_attention/linear_0",
    "encoder.layers.{i}.attention.out": "encoder/layer_{i}/self_attention/linear_1",
    "encoder.layers.{i}.feed_forward.up": "encoder/layer_{i}/ffn/linear_0",
    "encoder.layers.{i}.feed_forward.down": "encoder/layer_{i}/ffn/linear_1",
    "decoder.layers.{i}.self_attention.qkv": "decoder/layer_{i}/self_attention/linear_0",
    "decoder.layers.{i}.self_attention.out": "decoder/layer_{i}/self_attention/linear_1",
    "decoder.layers.{i}.cross_attention.query": "decoder/layer_{i}/attention/linear_0",
    "decoder.layers.{i}.cross_attention.key_value": "decoder/layer_{i}/attention/linear_1",
    "decoder.layers.{i}.cross_attention.out": "decoder/layer_{i}/attention/linear_2",
    "decoder.layers.{i}.feed_forward.up": "decoder/layer_{i}/ffn/linear_0",
    "decoder.layers.{i}.feed_forward.down": "decoder/layer_{i}/ffn/linear_1",
}
_NORMS = {
    "encoder.layers.{i}.attention_norm": "encoder/layer_{i}/self_attention/layer_norm",
    "encoder.layers.{i}.feed_forward_norm": "encoder/layer_{i}/ffn/layer_norm",
    "encoder.norm": "encoder/layer_norm",
    "decoder.layers.{i}.self_attention_norm": "decoder/layer_{i}/self_attention/layer_norm",
    "decoder.layers.{i}.cross_attention_norm": "decoder/layer_{i}/attention/layer_norm",
    "decoder.layers.{i}.feed_forward_norm": "decoder/layer_{i}/ffn/layer_norm",
    "decoder.norm": "decoder/layer_norm",
}
_EMBEDDING = "decoder/embeddings/weight"
_HEAD = "decoder/projection/weight"
_SOURCE_POSITIONS = "encoder/position_encodings/encodings"
_TARGET_POSITIONS = "decoder/position_encodings/encodings"
_NAMES = {
    **{f"{ours}.weight": (f"{theirs}/weight",) for ours, theirs in _LINEARS.items()},
    **{f"{ours}.bias": (f"{theirs}/bias",) for ours, theirs in _LINEARS.items()},
    **{f"{ours}.weight": (f"{theirs}/gamma",) for ours, theirs in _NORMS.items()},
    **{f"{ours}.bias": (f"{theirs}/beta",) for ours, theirs in _NORMS.items()},
    "encoder.positions": (_SOURCE_POSITIONS,),
    "decoder.embedding.weight": (_EMBEDDING,),
    "decoder.positions": (_TARGET_POSITIONS,),
}
_GENERATION = {
    "suppress_tokens": "suppress_ids",
    "begin_suppress_tokens": "suppress_ids_begin",
    "language_tokens": "lang_ids",
    "alignment_heads": "alignment_heads",
}


@dataclass(frozen=True, kw_only=True)
class Variable:
    """One entry of model.bin, as stored; the scale of a quantized entry is another entry."""

    kind: str
    shape: tuple[int, ...]
    raw: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    specification: str
    variables: Mapping[str, Variable]


class _ModelBinCursor(FileCursor):
    def unpack(self, layout: str, label: str) -> tuple[int, ...]:
        packed = struct.Struct(f"<{layout}")
        return packed.unpack(self.take(packed.size, label).tobytes())

    def count(self, smallest: int, label: str) -> int:
        """Read a u32 count of entries that take at least `smallest` bytes each."""
        (count,) = self.unpack("I", label)
        if count * smallest > self.remaining:
            raise self.error(f"it cannot hold {count} {label}")
        return count

    def string(self, label: str) -> str:
        (length,) = self.unpack("H", label)
        return self.terminated(length, label)


def parse_model_file(path: Path) -> ModelFile:
    """InputOutputError for damage, KvcastError for an unknown version."""
    cursor = _ModelBinCursor(path, "fetch or convert it again")
    (version,) = cursor.unpack("I", "the version")
    if version != _VERSION:
        raise KvcastError(
            f"{path} is not a CTranslate2 model of version {_VERSION} (its first number is "
            f"{version}): convert it with a current CTranslate2"
        )
    specification = cursor.string("the name of the specification")
    (revision,) = cursor.unpack("I", "the revision")
    if revision not in _REVISIONS:
        raise KvcastError(f"{path} has the unknown revision {revision} of {specification}")
    variables: dict[str, Variable] = {}
    for _ in range(cursor.count(_SMALLEST_VARIABLE, "variables")):
        name, variable = _parse_variable(cursor)
        if name in variables:
            raise cursor.error(f"variable {name} occurs twice")
        variables[name] = variable
    for _ in range(cursor.count(_SMALLEST_ALIAS, "aliases")):
        alias, name = cursor.string("an alias"), cursor.string("an alias")
        if alias in variables or name not in variables:
            raise cursor.error(f"alias {alias} of {name} leads nowhere")
        variables[alias] = variables[name]
        if f"{name}_scale" in variables:
            variables[f"{alias}_scale"] = variables[f"{name}_scale"]
    if cursor.remaining:
        raise cursor.error(f"{cursor.remaining} bytes follow its end")
    return ModelFile(specification=specification, variables=variables)


def _parse_variable(cursor: _ModelBinCursor) -> tuple[str, Variable]:
    name = cursor.string("the name of a variable")
    (rank,) = cursor.unpack("B", f"variable {name}")
    if rank > _MAX_RANK:
        raise cursor.error(f"variable {name} has {rank} axes")
    shape = cursor.unpack(f"{rank}I", f"variable {name}")
    kind, size = cursor.unpack("BI", f"variable {name}")
    if kind >= len(_KINDS):
        raise cursor.error(f"variable {name} is of the unknown kind {kind}")
    if math.prod(shape) * _ITEM_SIZES[kind] != size:
        raise cursor.error(f"variable {name} has {size} bytes for shape {list(shape)}")
    raw = cursor.take(size, f"variable {name}")
    return name, Variable(kind=_KINDS[kind], shape=shape, raw=raw)


def _tensors(variables: Mapping[str, Variable], label: str) -> dict[str, StoredTensor]:
    """All variables but settings (scalars) and scales, as floating-point tensors."""
    scales = {f"{name}_scale" for name in variables}
    return {
        name: _dequantise(variable, variables.get(f"{name}_scale"), f"{label}: tensor {name}")
        for name, variable in variables.items()
        if variable.shape and name not in scales
    }


def _dequantise(variable: Variable, scale: Variable | None, label: str) -> StoredTensor:
    """Floating-point values, divided by a scale per row (int8) or by one (int16)."""
    stored = tensor_from_bytes(variable.raw, variable.kind, variable.shape, label)
    if variable.kind in _FLOATS:
        return stored
    if scale is None or scale.kind not in _FLOATS:
        raise KvcastError(f"{label} is {variable.kind} without a scale: convert it again")
    if scale.shape not in ((), (1,), variable.shape[:1]):
        raise KvcastError(f"{label} has a scale of another shape, {list(scale.shape)}")
    factors = tensor_from_bytes(scale.raw, scale.kind, scale.shape, label).read()
    factors = factors.astype(np.float32)
    if not np.all(np.isfinite(factors) & (factors > 0)):
        raise InputOutputError(f"{label} is damaged: a scale is not a positive number")
    column = factors.reshape(-1, *[1] * (len(variable.shape) - 1))

    def read() -> NDArray[np.float32]:
        # A damaged scale may be tiny; then infinities are no worse than other wrong values.
        with np.errstate(over="ignore"):
            numbers: NDArray[np.float32] = np.divide(stored.read(), column, dtype=np.float32)
        return numbers

    return replace(stored, read=read)


def _dimensions(variables: Mapping[str, Variable], named: object, label: str) -> WhisperDimensions:
    """Derive sizes from shapes and the number of heads; `named`: config.json's alignment heads."""

    def size(name: str, axis: int, rank: int) -> int:
        if name not in variables or len(variables[name].shape) != rank:
            raise KvcastError(
                f"{label} has no tensor {name} of {rank} axes: it is not a whole model"
            )
        return variables[name].shape[axis]

    def heads(name: str) -> int:
        variable = variables.get(name)
        if variable is None or variable.shape or variable.kind not in ("int8", "int16", "int32"):
            raise KvcastError(f"{label} has no number {name}: it is not a whole model")
        return int(tensor_from_bytes(variable.raw, variable.kind, (), label).read())

    def layers(stack: str) -> int:
        count = 0
        while f"{stack}/layer_{count}/self_attention/linear_0/weight" in variables:
            count += 1
        return count

    d_model = size("encoder/conv1/weight", 0, 3)
    return whisper_dimensions(
        label,
        named,
        n_mels=size("encoder/conv1/weight", 1, 3),
        vocab_size=size(_EMBEDDING, 0, 2),
        d_model=d_model,
        encoder_layers=layers("encoder"),
        encoder_heads=heads("encoder/num_heads"),
        decoder_layers=layers("decoder"),
        decoder_heads=heads("decoder/num_heads"),
        source_positions=(
            size(_SOURCE_POSITIONS, 0, 2)
            if _SOURCE_POSITIONS in variables
            else sinusoids(d_model).shape[0]
        ),
        target_positions=size(_TARGET_POSITIONS, 0, 2),
    )


def _read_whisper(folder: Path, model: ModelFile) -> Checkpoint:
    label = str(folder / "model.bin")
    config = folder / "config.json"
    fields = read_json_object(config) if config.is_file() else {}
    generation = generation_settings(fields, _GENERATION, str(config))
    dimensions = _dimensions(model.variables, generation.get("alignment_heads"), label)
    check_preprocessor(folder, dimensions.n_mels)
    stored = _tensors(model.variables, label)
    stored.setdefault(_SOURCE_POSITIONS, sinusoids(dimensions.d_model))
    head = stored.pop(_HEAD, None)
    if head is not None and model.variables[_HEAD] is not model.variables[_EMBEDDING]:
        check_tied(head, stored[_EMBEDDING], label)
    return Checkpoint(
        dimensions=dimensions,
        tensors=assemble(dimensions, _NAMES, stored, label),
        text={"tokenizer.json": tokenizer_json(folder)},
        generation=generation,
        source=f"CTranslate2 folder {folder}",
    )


_FAMILIES: Mapping[str, Callable[[Path, ModelFile], Checkpoint]] = {"WhisperSpec": _read_whisper}


def _read(folder: Path) -> Checkpoint:
    model = parse_model_file(folder / "model.bin")
    family = _FAMILIES.get(model.specification)
    if family is None:
        raise KvcastError(
            f"{folder / 'model.bin'} holds a {model.specification}, which is not supported "
            f"(supported: {', '.join(_FAMILIES)})"
        )
    return family(folder, model)


def _files(folder: Path) -> list[Path]:
    config = folder / "config.json"
    return [
        folder / "model.bin",
        *optional_files(folder),
        *([config] if config.is_file() else []),
    ]


READER = CheckpointReader(
    name="CTranslate2 (model.bin, tokenizer.json or vocabulary.json)",
    detect=lambda folder: (folder / "model.bin").is_file(),
    files=_files,
    read=_read,
    types={WhisperDimensions: ("whisper",)},
)
