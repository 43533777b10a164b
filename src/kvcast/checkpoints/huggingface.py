"""Folders in Hugging Face layout: config.json, *.safetensors, tokenizer.json.

Names are those of transformers' WhisperForConditionalGeneration. Weights are memory-mapped;
anything that would have to be unpickled is refused. Knows nothing of other formats.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import (
    Reader,
    StoredTensor,
    WhisperCheckpoint,
    generation_settings,
    map_file,
    read_json_object,
    require_file,
    tensor_from_bytes,
    whisper_dimensions,
)
from kvcast.checkpoints.names import assemble, check_tied, sinusoids
from kvcast.errors import InputMissingError, InputOutputError, KvcastError
from kvcast.spec.whisper import WhisperDimensions

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

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
_NAMES = {
    **{
        f"{ours}.{leaf}": tuple(f"{module}.{leaf}" for module in theirs)
        for ours, theirs in _MODULES.items()
        for leaf in ("weight", "bias")
    },
    "encoder.positions": (_SOURCE_POSITIONS,),
    "decoder.embedding.weight": (_EMBEDDING,),
    "decoder.positions": ("decoder.embed_positions.weight",),
}
_DIMENSIONS = {
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
# What kvcast's Whisper does, and all published ones do; another value would mean another model.
_FIXED = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
_GENERATION = {
    "suppress_tokens": "suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "language_tokens": "language_tokens",
    "alignment_heads": "alignment_heads",
}


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """Map a safetensors file; float16 and float32 stay, bfloat16 reads as float32.

    Raises KvcastError without the safetensors library and for other kinds of numbers,
    InputOutputError for a file that is damaged.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise KvcastError(
            "reading safetensors needs more than the base install: pip install 'kvcast[export]'"
        ) from None
    data = map_file(path)
    try:
        # The library's parser vouches for the header; its NumPy side knows no bfloat16 and copies.
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        reason = "".join(filter(str.isprintable, str(error)))
        raise InputOutputError(f"{path} is damaged ({reason}): fetch it again") from None
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8:start].tobytes())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if not name.isprintable():
            raise InputOutputError(
                f"{path} is damaged: {name!r} is no tensor's name; fetch it again"
            )
        what = f"{path}: tensor {name}"
        if entry["dtype"] not in _KINDS:
            raise KvcastError(
                f"{what} is {entry['dtype']}, not one of {', '.join(_KINDS)}: convert it first"
            )
        begin, end = (start + offset for offset in entry["data_offsets"])
        kind, shape = _KINDS[entry["dtype"]], tuple(entry["shape"])
        tensors[name] = tensor_from_bytes(data[begin:end], kind, shape, what)
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    """List the files with weights, after the index if there are several."""
    if (folder / _WEIGHTS).is_file():
        return [folder / _WEIGHTS]
    index = folder / _INDEX
    if index.is_file():
        return [index, *(folder / name for name in _shard_names(index))]
    raise InputMissingError(
        f"no {_WEIGHTS} in {folder}: kvcast reads no pickled weights (pytorch_model.bin, *.pt); "
        "convert them with transformers' save_pretrained, which writes safetensors"
    )


def _shard_names(index: Path) -> list[str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputOutputError(f"{index} has no weight_map: fetch it again")
    names = set(weight_map.values())
    for name in names:
        # Symbolic links stay allowed: the hub's cache is made of them.
        if not isinstance(name, str) or "/" in name or "\\" in name or "\0" in name:
            raise KvcastError(f"{index} names {name!r}, which is not a file in its own folder")
        if not name.endswith(".safetensors") or not name.isprintable():
            raise KvcastError(f"{index} names {name!r}, which is not a safetensors file")
        require_file(index.parent / name, f"{index.name} names it: fetch it too")
    return sorted(names)


def _dimensions(config: Mapping[str, Any], what: str) -> WhisperDimensions:
    for name in _DIMENSIONS.values():
        if type(config.get(name)) is not int:
            raise KvcastError(f"{what}: {name} is missing or not a whole number")
    for name, value in _FIXED.items():
        if config.get(name, value) != value:
            raise KvcastError(f"{what}: {name} must be {value!r}, not {config[name]!r}")
    sizes = {ours: config[theirs] for ours, theirs in _DIMENSIONS.items()}
    return whisper_dimensions(what, **sizes)


def _stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Tensors of all weight files, without the prefix that depends on the class that saved them."""
    stored: dict[str, StoredTensor] = {}
    for path in _weight_files(folder):
        if path.suffix == ".safetensors":
            stored |= read_safetensors(path)
    return {name.removeprefix("model."): tensor for name, tensor in stored.items()}


def _read_whisper(folder: Path, config: Mapping[str, Any], content_hash: str) -> WhisperCheckpoint:
    dimensions = _dimensions(config, str(folder / "config.json"))
    stored = _stored_tensors(folder)
    stored.setdefault(_SOURCE_POSITIONS, sinusoids(dimensions.d_model))
    for name, weight in list(stored.items()):
        if name.endswith(".k_proj.weight"):
            # Whisper's keys have no bias; half precision, so that the fused bias keeps its kind.
            stored.setdefault(name.replace("weight", "bias"), _zeros(weight.shape[:1]))
    head = stored.pop(_HEAD, None)
    if head is not None and _EMBEDDING in stored:
        check_tied(head, stored[_EMBEDDING], str(folder))
    return WhisperCheckpoint(
        dimensions=dimensions,
        tensors=assemble(dimensions, _NAMES, stored, str(folder)),
        tokenizer_json=(folder / "tokenizer.json").read_bytes(),
        generation=_generation(folder, config),
        source=f"Hugging Face folder {folder}",
        content_hash=content_hash,
    )


def _zeros(shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(shape=shape, read=lambda: np.zeros(shape, np.float16))


def _generation(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """generation_config.json where it says something, else config.json, as older models have it."""
    path = folder / "generation_config.json"
    fields = dict(config)
    if path.is_file():
        fields |= read_json_object(path)
    languages = fields.get("lang_to_id")
    if isinstance(languages, dict):
        fields["language_tokens"] = list(languages.values())
    return generation_settings(fields, _GENERATION, str(path))


_FAMILIES: Mapping[str, Callable[[Path, Mapping[str, Any], str], WhisperCheckpoint]] = {
    "whisper": _read_whisper
}


def _read(folder: Path, content_hash: str) -> WhisperCheckpoint:
    path = folder / "config.json"
    config = read_json_object(path)
    family = _FAMILIES.get(str(config.get("model_type")))
    if family is None:
        raise KvcastError(
            f"{path}: model_type {config.get('model_type')!r} is not supported "
            f"(supported: {', '.join(_FAMILIES)})"
        )
    return family(folder, config, content_hash)


def _files(folder: Path) -> list[Path]:
    weights = _weight_files(folder)
    config = require_file(folder / "config.json", "it gives the model's dimensions: fetch it too")
    tokenizer = require_file(
        folder / "tokenizer.json",
        "vocab.json and merges.txt alone are not read; "
        "save the tokenizer with transformers' save_pretrained, or copy the base model's",
    )
    generation = folder / "generation_config.json"
    return [config, tokenizer, *([generation] if generation.is_file() else []), *weights]


READER = Reader(
    name=f"Hugging Face (config.json, {_WEIGHTS}, tokenizer.json)",
    detect=lambda folder: any(
        (folder / name).is_file() for name in ("config.json", _WEIGHTS, _INDEX, "pytorch_model.bin")
    ),
    files=_files,
    read=_read,
)
