"""Interprets RoFormers and BERTs in Hugging Face layout as UniLM generators.

A generator needs the masked-LM head, so the files are those of RoFormerForMaskedLM, BertForMaskedLM
or BertForPreTraining. Defaults are those of transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily
from kvcast.checkpoints.tensor_names import (
    apply_change,
    fill_evenly,
    halves_from_pairs,
    of_modules,
    same,
)
from kvcast.checkpoints.text2text.word_pieces import SEGMENTING, read_wordpiece
from kvcast.errors import KvcastError
from kvcast.families.unilm import UnilmDimensions
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.sizes import MOST_LAYERS

_COMMON = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "roformer": _COMMON | {"vocab_size": 50_000, "max_position_embeddings": 1536},
    "bert": _COMMON | {"vocab_size": 30_522, "max_position_embeddings": 512},
}

# Tokenizers that split text into words first; a RoFormer's does if it is not named.
_SEGMENTED = {"roformer": (*SEGMENTING, None), "bert": SEGMENTING}
_ROTARY = Rotary(base=10_000.0)

_ENCODER = "encoder.layer.{i}"
_HEAD = "cls.predictions"
_MODULES: Mapping[str, Sequence[str]] = {
    "embedding_norm": ("embeddings.LayerNorm",),
    "projection": ("embeddings_project",),
    "pooler": ("pooler.dense",),
    "layers.{i}.attention.qkv": tuple(
        f"{_ENCODER}.attention.self.{part}" for part in ("query", "key", "value")
    ),
    "layers.{i}.attention.out": (f"{_ENCODER}.attention.output.dense",),
    "layers.{i}.attention_norm": (f"{_ENCODER}.attention.output.LayerNorm",),
    "layers.{i}.feed_forward.up": (f"{_ENCODER}.intermediate.dense",),
    "layers.{i}.feed_forward.down": (f"{_ENCODER}.output.dense",),
    "layers.{i}.feed_forward_norm": (f"{_ENCODER}.output.LayerNorm",),
    "head.transform": (f"{_HEAD}.transform.dense",),
    "head.norm": (f"{_HEAD}.transform.LayerNorm",),
}
_EMBEDDING = "embeddings.word_embeddings.weight"
_NAMES: Mapping[str, Sequence[str]] = {
    **of_modules(_MODULES),
    "embedding.weight": (_EMBEDDING,),
    "segments.weight": ("embeddings.token_type_embeddings.weight",),
    "positions.weight": ("embeddings.position_embeddings.weight",),
    "head.bias": (f"{_HEAD}.bias",),
}
# Copies in the file, each with the tensor that it must equal.
_COPIES = {f"{_HEAD}.decoder.weight": _EMBEDDING, f"{_HEAD}.decoder.bias": f"{_HEAD}.bias"}
_ANGLES = "encoder.embed_positions.weight"
# The head for next-sentence prediction is not used.
_FOREIGN = "cls.seq_relationship."
# Names from before transformers existed.
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def read_unilm(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    dimensions = unilm_dimensions(config, str(folder / "config.json"))
    stored = _own_tensors(stored, dimensions.architecture, str(folder))
    dimensions = replace(dimensions, pooled="pooler.dense.weight" in stored)
    if dimensions.rotary is not None:
        stored = _reorder_rotary_pairs(stored, dimensions, str(folder))
    return Checkpoint(
        dimensions=dimensions,
        tensors=fill_evenly(
            dimensions,
            _NAMES,
            stored,
            str(folder),
            f"a {dimensions.architecture} model of {dimensions.layers} layers",
        ),
        text=read_wordpiece(folder, _SEGMENTED[dimensions.architecture]),
        source=f"Hugging Face folder {folder}",
    )


def unilm_dimensions(config: Mapping[str, Any], label: str) -> UnilmDimensions:
    """Read a configuration, which does not record whether there is a pooler."""
    kind = config["model_type"]
    fields = Fields(values={**_DEFAULTS[kind], **config}, label=label)
    if fields.flag("rotary_value", False):
        raise fields.error("rotary_value is not supported: only queries and keys are rotated")
    if fields.values.get("position_embedding_type", "absolute") != "absolute":
        raise fields.error("position_embedding_type must be 'absolute'")
    width = fields.whole("hidden_size")
    return fields.make(
        UnilmDimensions,
        architecture=kind,
        vocab_size=fields.whole("vocab_size"),
        segments=fields.whole("type_vocab_size"),
        width=width,
        embedding_width=fields.whole("embedding_size", width) if kind == "roformer" else width,
        inner=fields.whole("intermediate_size"),
        heads=fields.whole("num_attention_heads"),
        layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        max_positions=fields.whole("max_position_embeddings"),
        rotary=_ROTARY if kind == "roformer" else None,
        activation=fields.activation("hidden_act"),
        norm_eps=fields.positive("layer_norm_eps"),
    )


_ADVICE = {
    "roformer": "save the model from RoFormerForMaskedLM",
    "bert": "save the model from BertForMaskedLM; to embed texts, config.json must name BertModel "
    "in architectures, and to rank documents BertForSequenceClassification with one label",
}


def _own_tensors(
    stored: Mapping[str, StoredTensor], kind: str, label: str
) -> dict[str, StoredTensor]:
    own = {
        _plain(name, kind): tensor
        for name, tensor in stored.items()
        if not name.startswith(_FOREIGN)
    }
    if not any(name.startswith(f"{_HEAD}.") for name in own):
        raise KvcastError(
            f"{label} has no masked-LM head ({_HEAD}.*), which a UniLM generates with: "
            f"{_ADVICE[kind]}"
        )
    for name, original in _COPIES.items():
        copy = own.pop(name, None)
        if copy is not None and not same(copy, own.setdefault(original, copy)):
            raise KvcastError(f"{label}: tensor {name} differs from {original}: not a UniLM")
    return own


def _plain(name: str, kind: str) -> str:
    name = name.removeprefix(f"{kind}.")
    for old, new in _OLD_NAMES.items():
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _reorder_rotary_pairs(
    stored: Mapping[str, StoredTensor], dimensions: UnilmDimensions, label: str
) -> dict[str, StoredTensor]:
    """Reorder queries and keys, whose rotary pairs are neighbours, to pairs in halves of a head."""
    angles = stored.get(_ANGLES)
    expected = (dimensions.max_positions, dimensions.head_dim)
    if angles is not None and angles.shape != expected:
        raise KvcastError(
            f"{label}: tensor {_ANGLES} has shape {list(angles.shape)}, "
            f"but the configuration asks for {list(expected)}"
        )
    reorder = partial(halves_from_pairs, head_dim=dimensions.head_dim)
    parts = (".attention.self.query.", ".attention.self.key.")
    return {
        name: apply_change(tensor, reorder) if any(part in name for part in parts) else tensor
        for name, tensor in stored.items()
        if name != _ANGLES
    }


UNILM = HuggingFaceFamily(
    family=UnilmDimensions,
    model_types=tuple(_DEFAULTS),
    dimensions=unilm_dimensions,
    read=read_unilm,
    ignored="position_ids",  # 0, 1, 2, ... among an old BERT's weights
)
