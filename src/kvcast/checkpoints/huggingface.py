"""Reads folders in Hugging Face layout: config.json, *.safetensors, the tokenizer's files.

config.json's model_type decides what they contain. This module has the names of Whisper's tensors,
as in transformers' WhisperForConditionalGeneration; the other families have a module each. Weights
are memory-mapped, and pickled weights are refused. Knows nothing of other formats.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints import t5_huggingface, unilm_huggingface
from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    StoredTensor,
    generation_settings,
    read_json_object,
    require_file,
)
from kvcast.checkpoints.decoder_huggingface import MODEL_TYPES, decoder_dimensions, read_decoder
from kvcast.checkpoints.safetensors_files import read_weights, weight_files
from kvcast.checkpoints.whisper_files import check_preprocessor, tokenizer_json
from kvcast.checkpoints.whisper_names import assemble, check_tied, sinusoids, whisper_dimensions
from kvcast.errors import InputMissingError, KvcastError
from kvcast.families.whisper import WhisperDimensions

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Optional files. Which of them matter is known only after parsing, so the hash covers them all.
_OPTIONAL = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "spiece.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "preprocessor_config.json",
)

_ENCODER = "encoder.layers.{i}"
_DECODER = "decoder.layers.{i}"
_MODULES = {
    "encoder.conv1": ("encoder.conv1",),
    "encoder.conv2": ("encoder.conv2",),
    f"{_ENCODER}.attention_norm": (f"{_ENCODER}.self_attn_layer_norm",),
    f"{_ENCODER}.attention.qkv": tuple(f"{_ENCODER}.self_attn.{x}_proj" for x in "qkv"),
    f"{_ENCODER}.attention.out": (f"{_ENCODER}.self_attn.out_proj",),
    f"{_ENCODER}.feed_forward_norm": (f"{_ENCODER}.final_layer_norm",),
    f"{_ENCODER}.feed_forward.up": (f"{_ENCODER}.fc1",),
    f"{_ENCODER}.feed_forward.down": (f"{_ENCODER}.fc2",),
    "encoder.norm": ("encoder.layer_norm",),
    f"{_DECODER}.self_attention_norm": (f"{_DECODER}.self_attn_layer_norm",),
    f"{_DECODER}.self_attention.qkv": tuple(f"{_DECODER}.self_attn.{x}_proj" for x in "qkv"),
    f"{_DECODER}.self_attention.out": (f"{_DECODER}.self_attn.out_proj",),
    f"{_DECODER}.cross_attention_norm": (f"{_DECODER}.encoder_attn_layer_norm",),
    f"{_DECODER}.cross_attention.query": (f"{_DECODER}.encoder_attn.q_proj",),
    f"{_DECODER}.cross_attention.key_value": tuple(
        f"{_DECODER}.encoder_attn.{x}_proj" for x in "kv"
    ),
    f"{_DECODER}.cross_attention.out": (f"{_DECODER}.encoder_attn.out_proj",),
    f"{_DECODER}.feed_forward_norm": (f"{_DECODER}.final_layer_norm",),
    f"{_DECODER}.feed_forward.up": (f"{_DECODER}.fc1",),
    f"{_DECODER}.feed_forward.down": (f"{_DECODER}.fc2",),
    "decoder.norm": ("decoder.layer_norm",),
}
_EMBEDDING = "decoder.embed_tokens.weight"
_SOURCE_POSITIONS = "encoder.embed_positions.weight"
_HEAD = "proj_out.weight"
NAMES = {
    **{
        f"{ours}.{leaf}": tuple(f"{module}.{leaf}" for module in theirs)
        for ours, theirs in _MODULES.items()
        for leaf in ("weight", "bias")
    },
    "encoder.positions": (_SOURCE_POSITIONS,),
    "decoder.embedding.weight": (_EMBEDDING,),
    "decoder.positions": ("decoder.embed_positions.weight",),
}
DIMENSIONS = {
    "n_mels": "num_mel_bins",
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "encoder_layers": "encoder_layers",
    "encoder_heads": "encoder_attention_heads",
    "decoder_layers": "decoder_layers",
    "decoder_heads": "decoder_attention_heads",
    "source_positions": "max_source_positions",
    "target_positions": "max_target_positions",
}
# Fixed in kvcast's Whisper, and the same in all published ones.
_FIXED = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
_GENERATION = {
    "suppress_tokens": "suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "language_tokens": "language_tokens",
    "alignment_heads": "alignment_heads",
}


def _weight_files(folder: Path) -> list[Path]:
    """List the weight files; if there are several, after their index."""
    files = weight_files(folder, "model")
    if not files:
        raise InputMissingError(
            f"no {_WEIGHTS} in {folder}: kvcast reads no pickled weights (pytorch_model.bin, "
            "*.pt); convert them with transformers' save_pretrained, which writes safetensors"
        )
    return files


def _dimensions(config: Mapping[str, Any], what: str) -> WhisperDimensions:
    for name in DIMENSIONS.values():
        if type(config.get(name)) is not int:
            raise KvcastError(f"{what}: {name} is missing or not a whole number")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise KvcastError(f"{what}: {name} must be {value!r}, not {config[name]!r}")
    sizes = {ours: config[theirs] for ours, theirs in DIMENSIONS.items()}
    model = str(config.get("_name_or_path", ""))
    return whisper_dimensions(what, config.get("alignment_heads"), model, **sizes)


def _read_whisper(folder: Path, config: Mapping[str, Any], content_hash: str) -> Checkpoint:
    generation = _generation(folder, config)
    named = {"alignment_heads": generation.get("alignment_heads")}
    dimensions = _dimensions({**config, **named}, str(folder / "config.json"))
    check_preprocessor(folder, dimensions)
    # The prefix depends on the class that saved the model.
    weights = read_weights(_weight_files(folder))
    stored = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
    stored.setdefault(_SOURCE_POSITIONS, sinusoids(dimensions.d_model))
    for name, weight in list(stored.items()):
        if name.endswith(".k_proj.weight"):
            # Whisper's keys have no bias; zeros in float16 keep the dtype of the fused bias.
            stored.setdefault(name.replace("weight", "bias"), _zeros(weight.shape[:1]))
    head = stored.pop(_HEAD, None)
    if head is not None and _EMBEDDING in stored:
        check_tied(head, stored[_EMBEDDING], str(folder))
    return Checkpoint(
        dimensions=dimensions,
        tensors=assemble(dimensions, NAMES, stored, str(folder)),
        text={"tokenizer.json": tokenizer_json(folder)},
        generation=generation,
        source=f"Hugging Face folder {folder}",
        content_hash=content_hash,
    )


def _zeros(shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(shape=shape, read=lambda: np.zeros(shape, np.float16))


def _generation(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Read generation_config.json over config.json, where older models have these settings."""
    path = folder / "generation_config.json"
    fields = dict(config)
    if path.is_file():
        fields |= read_json_object(path)
    languages = fields.get("lang_to_id")
    if isinstance(languages, dict):
        fields["language_tokens"] = list(languages.values())
    return generation_settings(fields, _GENERATION, str(path))


def _read_decoder(folder: Path, config: Mapping[str, Any], content_hash: str) -> Checkpoint:
    _tokenizer_json(folder)
    stored = read_weights(_weight_files(folder))
    return read_decoder(folder, config, stored, content_hash)


def _read_t5(folder: Path, config: Mapping[str, Any], content_hash: str) -> Checkpoint:
    stored = read_weights(_weight_files(folder))
    return t5_huggingface.read_t5(folder, config, stored, content_hash)


def _read_unilm(folder: Path, config: Mapping[str, Any], content_hash: str) -> Checkpoint:
    # Old BERTs store position_ids (0, 1, 2, ...) among their weights.
    stored = read_weights(_weight_files(folder), ignored="position_ids")
    return unilm_huggingface.read_unilm(folder, config, stored, content_hash)


def _tokenizer_json(folder: Path) -> Path:
    return require_file(
        folder / "tokenizer.json",
        "vocab.json and merges.txt alone are not read; "
        "save the tokenizer with transformers' save_pretrained, or copy the base model's",
    )


_FAMILIES: Mapping[str, Callable[[Path, Mapping[str, Any], str], Checkpoint]] = {
    "whisper": _read_whisper,
    **dict.fromkeys(MODEL_TYPES, _read_decoder),
    **dict.fromkeys(t5_huggingface.MODEL_TYPES, _read_t5),
    **dict.fromkeys(unilm_huggingface.MODEL_TYPES, _read_unilm),
}
_CONFIGURED: Mapping[str, Callable[[Mapping[str, Any], str], Any]] = {
    "whisper": _dimensions,
    **dict.fromkeys(MODEL_TYPES, decoder_dimensions),
    **dict.fromkeys(t5_huggingface.MODEL_TYPES, t5_huggingface.t5_dimensions),
    **dict.fromkeys(unilm_huggingface.MODEL_TYPES, unilm_huggingface.unilm_dimensions),
}


def read_dimensions(config_path: Path) -> Any:
    """Read a config.json alone; None for one without a model_type, as CTranslate2's is."""
    config = read_json_object(config_path)
    kind = config.get("model_type")
    if kind is None:
        return None
    dimensions = _CONFIGURED.get(str(kind))
    if dimensions is None:
        raise _unsupported(config_path, kind)
    return dimensions(config, str(config_path))


def _unsupported(path: Path, kind: object) -> KvcastError:
    supported = ", ".join(_FAMILIES)
    return KvcastError(f"{path}: model_type {kind!r} is not supported (supported: {supported})")


def _read(folder: Path, content_hash: str) -> Checkpoint:
    path = folder / "config.json"
    config = read_json_object(path)
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise _unsupported(path, config.get("model_type"))
    return family(folder, config, content_hash)


def _files(folder: Path) -> list[Path]:
    weights = _weight_files(folder)
    config = require_file(folder / "config.json", "it gives the model's dimensions: fetch it too")
    optional = [folder / name for name in _OPTIONAL]
    return [config, *(path for path in optional if path.is_file()), *weights]


READER = CheckpointReader(
    name=f"Hugging Face (config.json, {_WEIGHTS}, tokenizer.json)",
    detect=lambda folder: any(
        (folder / name).is_file() for name in ("config.json", _WEIGHTS, _INDEX, "pytorch_model.bin")
    ),
    files=_files,
    read=_read,
)
