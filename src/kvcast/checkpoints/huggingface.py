"""Reads folders in Hugging Face layout: config.json, *.safetensors, the tokenizer's files.

config.json's model_type decides on their contents: each family has a record in the table below.
Weights are memory-mapped, and pickled weights are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import Checkpoint, CheckpointReader, read_json_object, require_file
from kvcast.checkpoints.decoder.huggingface import DECODER
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily
from kvcast.checkpoints.lora import Adapter, merge
from kvcast.checkpoints.peft import is_peft, read_peft
from kvcast.checkpoints.prequantized.mlx import experts_apart
from kvcast.checkpoints.prequantized.table import METHODS, MLX, MODELOPT, read_prequantized
from kvcast.checkpoints.safetensors import read_weights, weight_files
from kvcast.checkpoints.sentence_transformers import sentence_files
from kvcast.checkpoints.speech.audio_decoder import AUDIO_DECODER
from kvcast.checkpoints.speech.canary import CANARY
from kvcast.checkpoints.speech.moonshine import MOONSHINE
from kvcast.checkpoints.speech.parakeet import PARAKEET
from kvcast.checkpoints.speech.whisper import WHISPER
from kvcast.checkpoints.text2text.bart import BART
from kvcast.checkpoints.text2text.t5 import T5
from kvcast.checkpoints.text2text.t5gemma import T5GEMMA, T5GEMMA2
from kvcast.checkpoints.text2text.unilm import UNILM
from kvcast.checkpoints.text_encoders import CROSS_ENCODER, TEXT_ENCODER
from kvcast.checkpoints.unsupported import refuse_incomplete
from kvcast.errors import InputMissingError, KvcastError

_WEIGHTS = "model.safetensors"
# Configurations that GPTQ and AWQ add to the model's.
_OF_CODES = ("quantize_config.json", "quant_config.json")
_OF_MODELOPT = "hf_quant_config.json"
_NOT_READ = "which is not read: give the model that it was made from, or a GGUF file of it"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_INDEX = "model.safetensors.index.json"
# Optional files. Which of them matter is known only after parsing, so the hash covers them all.
_OPTIONAL = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "spiece.model",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
    "source.spm",
    "sentencepiece.bpe.model",
    "target_vocab.json",
    "tekken.json",
)

# Of models whose folders have one that is a part of them.
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors")

_FAMILIES = (
    CROSS_ENCODER,
    TEXT_ENCODER,
    WHISPER,
    DECODER,
    T5,
    UNILM,
    BART,
    AUDIO_DECODER,
    T5GEMMA,
    T5GEMMA2,
    MOONSHINE,
    CANARY,
    PARAKEET,
)
"""The first that has a folder's model type, and claims the folder, reads it."""
_TYPES = tuple(dict.fromkeys(kind for family in _FAMILIES for kind in family.model_types))


def _weight_files(folder: Path) -> list[Path]:
    files = weight_files(folder, "model")
    if files:
        return files
    has_pickles = any(path.suffix in _PICKLES for path in folder.iterdir())
    refuse_incomplete(folder, missing="" if has_pickles else _WEIGHTS)
    raise InputMissingError(
        f"no {_WEIGHTS} in {folder}: kvcast reads no pickled weights (pytorch_model.bin, "
        "*.pt); convert them with transformers' save_pretrained, which writes safetensors"
    )


def read_dimensions(config_path: Path) -> Any:
    config = read_json_object(config_path)
    kind = config.get("model_type")
    if kind is None:
        return None
    return _family(config_path, config).dimensions(config, str(config_path))


def _family(path: Path, config: Mapping[str, Any]) -> HuggingFaceFamily:
    model_type = config.get("model_type")
    having = [family for family in _FAMILIES if str(model_type) in family.model_types]
    if not having:
        raise KvcastError(
            f"{path}: model_type {model_type!r} is not supported (supported: {', '.join(_TYPES)})"
        )
    return next((each for each in having if each.claims(path.parent, config)), having[-1])


def _read(folder: Path, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    path = folder / "config.json"
    config = read_json_object(path)
    family = _family(path, config)
    quantization = _quantization(config, path, family.codes.get(str(config.get("model_type"))))
    for name, advice in family.required.items():
        require_file(folder / name, advice)
    files = experts_apart(read_weights(_weight_files(folder), ignored=family.ignored))
    if quantization is not None:
        method, values = quantization
        files = read_prequantized(method, Fields(values=values, label=str(path)), files)
    stored = {family.renamed(name): tensor for name, tensor in files.items()}
    if str(config.get("model_type")) in family.adapted and is_peft(folder):
        adapters = [read_peft(folder, "its own adapter"), *adapters]
    if adapters:
        modules = replace(family.modules(config), heads=family.heads)
        stored = merge(stored, adapters, str(folder), modules)
    return family.read(folder, config, stored)


def _quantization(
    config: Mapping[str, Any], path: Path, known: str | None
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the method and its fields; None if no matrix is quantized, or as the type has them."""
    if isinstance(of_mlx := config.get("quantization"), dict) and "group_size" in of_mlx:
        return MLX, of_mlx
    for name in ("quantization_config", "compression_config"):
        if fields := config.get(name):
            kind = fields.get("quant_method") if isinstance(fields, dict) else None
            if name == "quantization_config" and kind in METHODS:
                return str(kind), fields
            if kind is None or kind != known:
                raise KvcastError(f"{path}: {name} of the kind {str(kind)[:40]!r}, {_NOT_READ}")
    if (own := path.parent / _OF_MODELOPT).is_file():
        fields = read_json_object(own).get("quantization")
        return MODELOPT, fields if isinstance(fields, dict) else {}
    for name in _OF_CODES:
        if (path.parent / name).is_file():
            raise KvcastError(f"{path.parent} holds weights in codes ({name}), {_NOT_READ}")
    return None


def _files(folder: Path) -> list[Path]:
    weights = _weight_files(folder)
    config = require_file(folder / "config.json", "it gives the model's dimensions: fetch it too")
    optional = [folder / name for name in (*_OPTIONAL, *_ADAPTER)]
    present = [path for path in optional if path.is_file()]
    return [config, *present, *sentence_files(folder), *weights]


READER = CheckpointReader(
    name=f"Hugging Face (config.json, {_WEIGHTS}, tokenizer.json)",
    detect=lambda folder: any(
        (folder / name).is_file() for name in ("config.json", _WEIGHTS, _INDEX, "pytorch_model.bin")
    ),
    files=_files,
    read=_read,
    types={
        dimensions: tuple(
            kind
            for family in _FAMILIES
            if family.family is dimensions
            for kind in family.model_types
        )
        for dimensions in dict.fromkeys(family.family for family in _FAMILIES)
    },
    adapter_layout="PEFT",
)
