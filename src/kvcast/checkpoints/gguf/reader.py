"""Reads models in GGUF files as llama.cpp and transcribe.cpp convert them, and LoRA adapters.

Rotary pairs of queries and keys may be neighbouring rows of a head, so its rows are reordered;
experts are stacked; layers after a model's own, which predict further tokens, are left out.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    LazyTensors,
    StoredTensor,
    require_file,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf import parakeet
from kvcast.checkpoints.gguf.config import ARCHITECTURES, EMBEDDING, HEAD
from kvcast.checkpoints.gguf.fields import ROTARY_TENSORS, Values
from kvcast.checkpoints.gguf.file import MAGIC, GgufFile, GgufTensor, read_gguf, read_parts
from kvcast.checkpoints.gguf.latents import STACKS, latent_tensors
from kvcast.checkpoints.gguf.tensors import CHOICE_BIAS, KEY_NORM, QUERY_NORM
from kvcast.checkpoints.gguf.tokenizer import read_text
from kvcast.checkpoints.lora import Adapter, Modules, merge
from kvcast.checkpoints.lora_changes import Change, LowRank, Replacement
from kvcast.checkpoints.tensor_names import fill_decoder, in_halves, transpose
from kvcast.errors import KvcastError, UsageError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.stored_matrices import Encoding

SUFFIX = ".gguf"
_PART = re.compile(
    r"(?P<stem>.+)-\d{5}-of-(?P<count>0*[1-9]\d{0,3})(?P<suffix>\.gguf)", re.IGNORECASE
)
_EXPERTS = ("_exps.weight", "_exps.bias")
_SHARED_GATE = ".ffn_gate_inp_shexp.weight"
_ROTATED = tuple(f".attn_{name}." for name in ("q", "k", "qkv", "q_norm", "k_norm"))
_LAYER_NUMBER = re.compile(r"blk\.(\d{1,9})\.")


def _read(source: Path, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    paths = _parts(source)
    path, file = paths[0], read_parts(paths)
    if str(file.values.get("general.architecture")) == parakeet.ARCHITECTURE:
        _check_architecture(adapters, parakeet.ARCHITECTURE, str(path))
        return parakeet.read_parakeet(file, str(path))
    dimensions, tensors = read_model(file, str(path), adapters)
    text = read_text(file.values, str(path))
    tokens = len(file.values["tokenizer.ggml.tokens"])
    if tokens > dimensions.vocab_size:
        raise KvcastError(f"{path}: {tokens} tokens do not fit {dimensions.vocab_size} embeddings")
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=text,
        source=f"GGUF file {path}",
    )


def read_model(
    file: GgufFile, label: str, adapters: Sequence[Adapter] = ()
) -> tuple[DecoderDimensions, LazyTensors]:
    fields = Fields(values=file.values, label=label)
    name = str(file.values.get("general.architecture"))
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        raise fields.error(
            f"architecture {name[:40]!r} is not supported (supported: {', '.join(ARCHITECTURES)})"
        )
    values = Values(fields=fields, architecture=name, tensors=file.tensors.keys())
    dimensions = architecture.dimensions(values, file)
    stored = _read_tensors(file, dimensions, values)
    if adapters:
        _check_architecture(adapters, name, label)
        stored = merge(stored, adapters, label, Modules(heads={HEAD: (EMBEDDING,)}))
        dimensions = replace(dimensions, tied=HEAD not in stored)
    stored = architecture.prepare({**stored, **architecture.tensors(values)}, dimensions)
    neighbours = architecture.are_neighbours(values)
    if dimensions.latents:
        stored = latent_tensors(stored, dimensions, neighbours=neighbours)
    else:
        stored = in_halves(stored, dimensions, is_rotated, neighbours=neighbours)
    return dimensions, fill_decoder(dimensions, architecture.names_in(values), stored, label)


def _check_architecture(adapters: Sequence[Adapter], architecture: str, label: str) -> None:
    for adapter in adapters:
        if adapter.base != architecture:
            raise KvcastError(
                f"{adapter.name} is for models of the architecture {adapter.base!r}, and {label} "
                f"is {architecture!r}"
            )


def _read_tensors(
    file: GgufFile, dimensions: DecoderDimensions, values: Values
) -> dict[str, StoredTensor]:
    stored, blocks = {}, values.whole("block_count")
    for name, tensor in _with_factors(file.tensors, values).items():
        layer = _LAYER_NUMBER.match(name)
        if layer and values.layers <= int(layer[1]) < blocks:
            continue
        if name.endswith(_EXPERTS):
            axes = 3 if name.endswith(_EXPERTS[0]) else 2
            if len(tensor.shape) != axes or tensor.shape[0] != dimensions.experts:
                raise values.fields.error(
                    f"tensor {name} does not hold {dimensions.experts} experts"
                )
            for number, expert in enumerate(tensor.slices()):
                stored[f"{name}.{number}"] = expert.stored()
        elif name.endswith(_SHARED_GATE):
            stored[name] = replace(tensor, shape=(1, *tensor.shape)).stored()
        elif name.endswith(STACKS):  # one matrix for each head
            stored[name] = replace(tensor, shape=_as_matrix(tensor.shape)).stored()
        elif name.endswith((QUERY_NORM, KEY_NORM, CHOICE_BIAS)):  # perhaps of two axes
            stored[name] = replace(tensor, shape=(math.prod(tensor.shape),)).stored()
        elif name not in ROTARY_TENSORS:
            stored[name] = tensor.stored()
    return stored


def _with_factors(tensors: Mapping[str, GgufTensor], values: Values) -> dict[str, GgufTensor]:
    """Attach the factors that conversions store beside tensors of NVFP4, one for each expert.

    Scales of their inputs, for kernels that round these to 4 bits too, are left out.
    """
    own = dict(tensors)
    for name, tensor in tensors.items():
        stem = name.removesuffix(".weight")
        if tensor.type != Encoding.NVFP4 or stem == name:
            continue
        own.pop(f"{stem}.input_scale", None)
        scale = own.pop(f"{stem}.scale", None)
        if scale is None:
            continue
        count = tensor.shape[0] if name.endswith(_EXPERTS) else 1
        is_fit = scale.type == Encoding.F32 and math.prod(scale.shape) in {1, count}
        factors = scale.stored().read().ravel() if is_fit else np.zeros(0, np.float32)
        if not is_fit or not np.isfinite(factors).all():
            raise values.fields.error(
                f"tensor {stem}.scale is damaged: it must hold finite numbers, {count} of them"
            )
        own[name] = replace(tensor, factors=np.broadcast_to(factors, count))
    return own


def _as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1]


def is_rotated(name: str) -> bool:
    return any(part in name for part in _ROTATED)


def _parts(source: Path) -> list[Path]:
    if source.is_file():
        return _all_parts(source)
    files = _files_in(source)
    models = {tuple(_all_parts(path)) for path in files}
    if len(models) != 1:
        raise UsageError(f"{source} holds {len(files)} GGUF files: give one of them")
    return list(models.pop())


def _all_parts(path: Path) -> list[Path]:
    match = _PART.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    names = [f"{match['stem']}-{i:05}-of-{count:05}{match['suffix']}" for i in range(1, count + 1)]
    return [require_file(path.parent / name, f"{path.name} is one of its parts") for name in names]


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if is_gguf(path))


def is_gguf(path: Path) -> bool:
    """Whether a file has GGUF's name, or its content under another name."""
    if not path.is_file():
        return False
    if path.suffix.lower() == SUFFIX:
        return True
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


READER = CheckpointReader(
    name="GGUF (a file *.gguf)",
    detect=lambda source: is_gguf(source) or (source.is_dir() and bool(_files_in(source))),
    files=_parts,
    read=_read,
    types={DecoderDimensions: tuple(ARCHITECTURES), **parakeet.TYPES},
    adapter_layout="GGUF",
)


_A, _B = ".lora_a", ".lora_b"
_TOKENS = "token_embd.weight"
_MATRIX, _STACKED = 2, 3  # axes


def read_gguf_adapter(path: Path, name: str) -> Adapter:
    file = read_gguf(path)
    fields = Fields(values=file.values, label=str(path))
    for field, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        if (kind := file.values.get(field)) != wanted:
            raise fields.error(
                f"{field} is {str(kind)[:40]!r}, not {wanted}: it is no LoRA adapter"
            )
    if "adapter.alora.invocation_tokens" in file.values:
        raise fields.error("an activated LoRA, which begins at some tokens, is not supported")
    return Adapter(
        name=name,
        layout="GGUF",
        files=[path],
        changes=_changes(file.tensors, fields),
        base=str(file.values.get("general.architecture", ""))[:40],
    )


def _changes(tensors: Mapping[str, GgufTensor], fields: Fields) -> dict[str, list[Change]]:
    alpha = fields.values.get("adapter.lora.alpha")
    changes: dict[str, list[Change]] = {}
    for name, tensor in tensors.items():
        own = name.removesuffix(_A).removesuffix(_B)
        other = own + (_B if name.endswith(_A) else _A)
        if own == name:
            replaced = Replacement(tensor=tensor.stored(), label=tensor.label)
            changes[name] = [replaced]
        elif other not in tensors:
            raise fields.error(f"{own} has one matrix of two: it is no whole adapter")
        elif name.endswith(_A):
            changes |= _low_ranks(own, tensor, tensors[other], alpha, fields)
    if not changes:
        raise fields.error("it has no tensors: it is no whole adapter")
    return changes


def _low_ranks(
    name: str, lora_a: GgufTensor, lora_b: GgufTensor, alpha: object, fields: Fields
) -> dict[str, list[Change]]:
    """Return the change of a matrix, or one for each of stacked experts, by name."""
    axes = len(lora_a.shape)
    if axes == _STACKED and lora_a.shape[0] == lora_b.shape[0] and len(lora_b.shape) == axes:
        pairs = zip(lora_a.slices(), lora_b.slices(), strict=True)
        names = (f"{name}.{expert}" for expert in range(lora_a.shape[0]))
        parts = [
            _low_ranks(own, *pair, alpha, fields) for own, pair in zip(names, pairs, strict=True)
        ]
        return {own: change for part in parts for own, change in part.items()}
    # The first matrix of embeddings is looked up by rows.
    stored = lora_a.stored()
    if name == _TOKENS and axes == _MATRIX:
        stored = transpose(stored)
    rank = stored.shape[0]
    if axes != _MATRIX or len(lora_b.shape) != _MATRIX or lora_b.shape[1] != rank:
        raise fields.error(
            f"{name} has matrices of {list(lora_a.shape)} and {list(lora_b.shape)}, no product"
        )
    # As in llama.cpp, no alpha is no scale.
    scale = fields.positive("adapter.lora.alpha") / rank if alpha else 1.0
    change = LowRank(
        lora_a=stored,
        lora_b=lora_b.stored(),
        scale=scale,
        transposed=name == _TOKENS,
        label=lora_a.label,
    )
    return {name: [change]}
