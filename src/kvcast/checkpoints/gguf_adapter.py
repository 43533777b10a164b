"""Reads LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them.

general.type is "adapter", adapter.type "lora"; each tensor of the model that it changes has two
here, NAME.lora_a and NAME.lora_b. Tensors are those of a GGUF model of the same architecture, with
queries and keys in its order. Knows no model.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf_file import GgufTensor, read_gguf
from kvcast.checkpoints.merging import Adapter, Change, LowRank, Replacement

_A, _B = ".lora_a", ".lora_b"
_TOKENS = "token_embd.weight"
_MATRIX, _STACKED = 2, 3  # axes


def read_gguf_adapter(path: Path, name: str) -> Adapter:
    """Read an adapter, which users call `name`; raises KvcastError with one line."""
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
        stored = _turned(stored)
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


def _turned(tensor: StoredTensor) -> StoredTensor:
    def read() -> NDArray[np.float32]:
        turned: NDArray[np.float32] = tensor.read().T
        return turned

    return replace(tensor, shape=tensor.shape[::-1], read=read, blocks=None, rows=None)
