"""Interprets decoders that hear in Hugging Face layout: Qwen3-ASR, Voxtral, Granite Speech.

Their decoders are read as decoder-only models are, from `text_config`; `audio_decoder_types` has
what differs in the encoder. Qwen3-ASR's own files have all of it under `thinker`. Knows nothing of
how weights are stored.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcast.checkpoints.audio_decoder_types import TYPES_OF_AUDIO
from kvcast.checkpoints.audio_type import AudioType
from kvcast.checkpoints.base import (
    Checkpoint,
    LazyTensors,
    StoredTensor,
    read_file,
    require_file,
)
from kvcast.checkpoints.decoder_huggingface import (
    HEAD,
    decoder_dimensions,
    is_tied,
    names_in,
    own_tensors,
    text_files,
)
from kvcast.checkpoints.decoder_types import TYPES
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf_text import QWEN2
from kvcast.checkpoints.huggingface_family import HuggingFaceFamily
from kvcast.checkpoints.peft import CONFIG, is_peft
from kvcast.checkpoints.tables import fill_decoder, fill_evenly
from kvcast.checkpoints.whisper_files import split_tokenizer
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.decoder_dimensions import DecoderDimensions

_OUTER = re.compile(r"^(?:(?:thinker|model)\.)*")
_THINKER = re.compile(r"^thinker\.")
_TOKENIZER, _TEKKEN, _PARTS = "tokenizer.json", "tekken.json", ("vocab.json", "merges.txt")


def _read(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    """Read a model of a type above; raises KvcastError with one line."""
    label = str(folder / "config.json")
    kind = TYPES_OF_AUDIO[config["model_type"]]
    dimensions = _dimensions(config, label)
    kind.check(folder, dimensions.audio)
    sound, text = _apart(stored, kind)
    text = kind.prepare_text(text, dimensions.audio, str(folder))
    text_kind = TYPES[kind.decoder]
    own = own_tensors(text, dimensions, text_kind)
    if dimensions.tied:
        dimensions = replace(dimensions, tied=is_tied(own, text_kind))
    names = names_in(own, text_kind)
    of_text = fill_decoder(dimensions, names, own, str(folder), lenient=True)
    prepared = kind.prepare(sound, dimensions.audio, str(folder))
    model = f"the encoder of a {dimensions.architecture} model"
    shapes, lenient = dimensions.audio.shapes(), kind.lenient
    of_sound = fill_evenly(shapes, kind.names, prepared, str(folder), model, lenient=lenient)
    outer = _outer(config, label).values
    return Checkpoint(
        dimensions=dimensions,
        tensors=LazyTensors(
            {name: part.parts_of(name) for part in (of_sound, of_text) for name in part},
            of_text.unused,
        ),
        text=_text(
            folder, {**outer, "model_type": config["model_type"]}, _about_adapter(folder, config)
        ),
        source=f"Hugging Face folder {folder}",
    )


def _about_adapter(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """Return a notice for a folder that lacks the adapter which its configuration tells of."""
    if not config.get("has_lora_adapter") or is_peft(folder):
        return []
    return [
        f"{folder} lacks {CONFIG} although has_lora_adapter is true: fetch the adapter as well, or "
        "texts will be wrong"
    ]


def _text(folder: Path, config: Mapping[str, Any], notices: list[str]) -> Mapping[str, bytes]:
    """Return the tokenizer's files: tokenizer.json, or those that some folders have instead."""
    if (folder / _TOKENIZER).is_file():
        return text_files(folder, config, notices)
    if (folder / _TEKKEN).is_file():
        return {_TEKKEN: read_file(folder / _TEKKEN)}
    for name in _PARTS:
        require_file(folder / name, f"nor is there a {_TOKENIZER}: fetch the model again")
    return text_files(folder, config, (), split_tokenizer(folder, QWEN2))


def _apart(
    stored: Mapping[str, StoredTensor], kind: AudioType
) -> tuple[dict[str, StoredTensor], dict[str, StoredTensor]]:
    """Return the tensors of the encoder, and all others, without names of the whole."""
    sound, text = {}, {}
    for full_name, tensor in stored.items():
        name = _OUTER.sub("", full_name)
        if not name.startswith(kind.prefixes):
            text[_THINKER.sub("", full_name)] = tensor
            continue
        for pattern, replacement in kind.renamed.items():
            name = re.sub(pattern, replacement, name)
        sound[name] = tensor
    return sound, text


def _outer(config: Mapping[str, Any], label: str) -> Fields:
    """Return the fields that hold those of the encoder and the decoder."""
    fields = Fields(values=config, label=label)
    return fields.group("thinker_config") or fields


def _text_type(outer: Fields, kind: AudioType, whole: str) -> str:
    text = outer.group("text_config")
    named = kind.decoder if text is None else text.values.get("model_type", kind.decoder)
    # Some call it by the name of the whole.
    name = kind.decoder if str(named).startswith(whole) else str(named)
    if name != kind.decoder:
        raise outer.error(f"model_type {name!r} of its text_config is not supported")
    return name


def _dimensions(config: Mapping[str, Any], label: str) -> AudioDecoderDimensions:
    architecture = config["model_type"]
    kind, outer = TYPES_OF_AUDIO[architecture], _outer(config, label)
    given = outer.group("text_config")
    own = {} if given is None else given.values
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    named = {"model_type": _text_type(outer, kind, architecture)}
    text = {**kind.text, **own, **tied, **kind.fixed, **named}
    decoder = decoder_dimensions(text, label if given is None else given.label)
    audio = kind.encoder(outer)
    plain = {name: getattr(decoder, name) for name in DecoderDimensions.__dataclass_fields__}
    return outer.make(
        AudioDecoderDimensions, **{**plain, "architecture": architecture, "audio": audio}
    )


AUDIO_DECODER = HuggingFaceFamily(
    family=AudioDecoderDimensions,
    model_types=tuple(TYPES_OF_AUDIO),
    dimensions=_dimensions,
    read=_read,
    heads={HEAD: ("embed_tokens.weight",)},
    adapted=frozenset(name for name, kind in TYPES_OF_AUDIO.items() if kind.adapted),
)
