"""Interprets decoders that hear in Hugging Face layout: Qwen3-ASR and Voxtral, a row for each.

Their decoders are read as decoder-only models are, from `text_config`; a row has what differs in
the encoder. Qwen3-ASR's own files have all of it under `thinker`. Knows nothing of how weights are
stored.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from kvcast.checkpoints.tables import changed, fill_decoder, fill_evenly
from kvcast.checkpoints.whisper_files import check_preprocessor, split_tokenizer
from kvcast.families import audio_encoder
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.audio_encoder import MOST_FRAMES, AudioEncoder
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.sizes import MOST_LAYERS

_OUTER = re.compile(r"^(?:(?:thinker|model)\.)*(?=audio_tower\.|multi_modal_projector\.)")
_THINKER = re.compile(r"^thinker\.")
_TOKENIZER, _TEKKEN, _PARTS = "tokenizer.json", "tekken.json", ("vocab.json", "merges.txt")
_SOUND = ("audio_tower.", "multi_modal_projector.")
_CHUNK = 100  # frames; transformers counts positions of other chunks as if they were these
_LAYER, _THEIRS = "encoder.layers.{i}", "audio_tower.layers.{i}"
_MODULES = {
    f"{_LAYER}.attention_norm": (f"{_THEIRS}.self_attn_layer_norm",),
    f"{_LAYER}.attention.qkv": tuple(f"{_THEIRS}.self_attn.{x}_proj" for x in "qkv"),
    f"{_LAYER}.attention.out": (f"{_THEIRS}.self_attn.out_proj",),
    f"{_LAYER}.feed_forward_norm": (f"{_THEIRS}.final_layer_norm",),
    f"{_LAYER}.feed_forward.up": (f"{_THEIRS}.fc1",),
    f"{_LAYER}.feed_forward.down": (f"{_THEIRS}.fc2",),
    "encoder.projector.up": ("multi_modal_projector.linear_1",),
    "encoder.projector.down": ("multi_modal_projector.linear_2",),
}
_QWEN_MODULES = {
    **_MODULES,
    **{f"encoder.conv{i}": (f"audio_tower.conv2d{i}",) for i in (1, 2, 3)},
    "encoder.conv_out": ("audio_tower.conv_out",),
    "encoder.norm": ("audio_tower.ln_post",),
}
_VOXTRAL_MODULES = {
    **_MODULES,
    **{f"encoder.conv{i}": (f"audio_tower.conv{i}",) for i in (1, 2)},
    "encoder.norm": ("audio_tower.layer_norm",),
}
_ACTIVATIONS = {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}


@dataclass(frozen=True, kw_only=True)
class AudioType:
    """Properties of a model type.

    Attributes:
        decoder: the usual model type of its `text_config`.
        text: values of fields that its `text_config` may leave out, over the decoder's own.
        sizes: the fields of `audio_config` that give the encoder's sizes, by the sizes' names.
        audio: values of fields that its `audio_config` may leave out.
        particulars: further dimensions of the encoder from `audio_config` and the outer fields.
        modules: names of the encoder's modules, by canonical name.
        tensors: further names, of whole tensors.
        renamed: names in other files of the type, as regular expressions with replacements.
        prepare: changes the encoder's tensors as they are read.

    """

    decoder: str
    text: Mapping[str, Any]
    sizes: Mapping[str, str]
    audio: Mapping[str, Any]
    particulars: Callable[[Fields, Fields], dict[str, Any]]
    modules: Mapping[str, Sequence[str]]
    tensors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[dict[str, StoredTensor], AudioEncoder], dict[str, StoredTensor]] = (
        lambda tensors, _: tensors
    )

    @property
    def names(self) -> dict[str, Sequence[str]]:
        """Names in files by canonical name."""
        both = {
            f"{ours}.{leaf}": tuple(f"{module}.{leaf}" for module in theirs)
            for ours, theirs in self.modules.items()
            for leaf in ("weight", "bias")
        }
        return {**both, **self.tensors}


def _activation(fields: Fields, name: str, usual: str = "gelu") -> str:
    activation = str(fields.values.get(name) or usual)
    if activation not in _ACTIVATIONS:
        supported = ", ".join(_ACTIVATIONS)
        raise fields.error(f"{name} {activation!r} is not supported (supported: {supported})")
    return _ACTIVATIONS[activation]


def _qwen3_asr(audio: Fields, _: Fields) -> dict[str, Any]:
    chunk = 2 * audio.whole("n_window")
    if chunk != _CHUNK:
        raise audio.error(f"n_window must be {_CHUNK // 2}: positions of others are not defined")
    most, longest = audio.whole("max_position_embeddings", 1500), _CHUNK // 8 + 1
    if most < longest:
        raise audio.error(f"max_position_embeddings must be {longest} or more, not {most}")
    activation = _activation(audio, "activation_function")
    width = audio.whole("d_model")
    return {
        "chunk": chunk,
        "window": audio.whole("n_window_infer"),
        "activation": activation,
        "projected": width,
        "projector_activation": activation,
        "projector_bias": True,
        "output": audio.whole("output_dim"),
    }


def _voxtral(audio: Fields, outer: Fields) -> dict[str, Any]:
    if audio.whole("max_source_positions") != MOST_FRAMES // 2:
        raise audio.error(f"max_source_positions must be {MOST_FRAMES // 2}")
    width, inner = audio.whole("hidden_size"), audio.whole("intermediate_size")
    if inner % width:
        raise audio.error(f"intermediate_size {inner} is not a multiple of hidden_size {width}")
    text = outer.group("text_config") or outer
    output = text.whole("hidden_size", 3072)
    return {
        "joined": inner // width,
        "activation": _activation(audio, "activation_function"),
        "projected": output,
        "projector_activation": _activation(outer, "projector_hidden_act"),
        "output": output,
    }


def _time_first(tensors: dict[str, StoredTensor], encoder: AudioEncoder) -> dict[str, StoredTensor]:
    """Return kernels over time and frequency, and what follows them in this order of bands."""

    def by_band(matrix: NDArray[Any]) -> NDArray[Any]:
        apart = matrix.reshape(len(matrix), encoder.channels, encoder.bands)
        return apart.swapaxes(1, 2).reshape(matrix.shape)

    def kernel(weight: NDArray[Any]) -> NDArray[Any]:
        return weight.swapaxes(2, 3)

    shape = (encoder.width, encoder.bands * encoder.channels)
    own = {}
    for name, tensor in tensors.items():
        if name.endswith("conv_out.weight") and tensor.shape == shape:
            own[name] = changed(tensor, by_band)
        elif ".conv2d" in name and len(tensor.shape) == 4:
            own[name] = changed(tensor, kernel)
        else:
            own[name] = tensor
    return own


def _with_key_biases(tensors: dict[str, StoredTensor], _: AudioEncoder) -> dict[str, StoredTensor]:
    """Return tensors with biases of keys, which Whisper's encoder lacks."""
    own = dict(tensors)
    for name, weight in tensors.items():
        if name.endswith(".k_proj.weight"):
            own.setdefault(name.replace("weight", "bias"), _zeros(weight.shape[:1]))
    return own


def _zeros(shape: tuple[int, ...]) -> StoredTensor:
    return StoredTensor(shape=shape, read=lambda: np.zeros(shape, np.float16))


TYPES_OF_AUDIO: Mapping[str, AudioType] = {
    "qwen3_asr": AudioType(
        decoder="qwen3",
        text={
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 65536,
            "tie_word_embeddings": True,
        },
        sizes={
            "n_mels": "num_mel_bins",
            "width": "d_model",
            "inner": "encoder_ffn_dim",
            "heads": "encoder_attention_heads",
            "layers": "encoder_layers",
            "channels": "downsample_hidden_size",
        },
        audio={
            "num_mel_bins": 128,
            "d_model": 1024,
            "encoder_ffn_dim": 4096,
            "encoder_attention_heads": 16,
            "encoder_layers": 24,
            "downsample_hidden_size": 480,
            "n_window": 50,
            "n_window_infer": 800,
            "output_dim": 3584,
        },
        particulars=_qwen3_asr,
        modules=_QWEN_MODULES,
        renamed={
            r"^audio_tower\.proj1\.": "multi_modal_projector.linear_1.",
            r"^audio_tower\.proj2\.": "multi_modal_projector.linear_2.",
        },
        prepare=_time_first,
    ),
    "voxtral": AudioType(
        decoder="llama",
        text={
            "vocab_size": 131072,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 30,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 100_000_000.0,
            "tie_word_embeddings": False,
        },
        sizes={
            "n_mels": "num_mel_bins",
            "width": "hidden_size",
            "inner": "intermediate_size",
            "heads": "num_attention_heads",
            "layers": "num_hidden_layers",
        },
        audio={
            "num_mel_bins": 128,
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_attention_heads": 20,
            "num_hidden_layers": 32,
            "max_source_positions": 1500,
        },
        particulars=_voxtral,
        modules=_VOXTRAL_MODULES,
        tensors={"encoder.positions": ("audio_tower.embed_positions.weight",)},
        prepare=_with_key_biases,
    ),
}


def _read(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    """Read a model of a type above; raises KvcastError with one line."""
    label = str(folder / "config.json")
    kind = TYPES_OF_AUDIO[config["model_type"]]
    dimensions = _dimensions(config, label)
    check_preprocessor(folder, dimensions.audio.n_mels, windows=not dimensions.audio.chunk)
    sound, text = _apart(stored, kind)
    text_kind = TYPES[_text_type(_outer(config, label), kind)]
    own = own_tensors(text, dimensions, text_kind)
    if dimensions.tied:
        dimensions = replace(dimensions, tied=is_tied(own, text_kind))
    names = names_in(own, text_kind)
    of_text = fill_decoder(dimensions, names, own, str(folder), lenient=True)
    shapes = audio_encoder.tensor_shapes(dimensions.audio)
    prepared = kind.prepare(sound, dimensions.audio)
    model = f"the encoder of a {dimensions.architecture} model"
    of_sound = fill_evenly(shapes, kind.names, prepared, str(folder), model)
    outer = _outer(config, label).values
    return Checkpoint(
        dimensions=dimensions,
        tensors=LazyTensors(
            {name: part.parts_of(name) for part in (of_sound, of_text) for name in part},
            of_text.unused,
        ),
        text=_text(folder, {**outer, "model_type": config["model_type"]}),
        source=f"Hugging Face folder {folder}",
    )


def _text(folder: Path, config: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return the tokenizer's files: tokenizer.json, or those that some folders have instead."""
    if (folder / _TOKENIZER).is_file():
        return text_files(folder, config, ())
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
        if not name.startswith(_SOUND):
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


def _text_type(outer: Fields, kind: AudioType) -> str:
    text = outer.group("text_config")
    named = kind.decoder if text is None else text.values.get("model_type", kind.decoder)
    # Qwen3-ASR's own files call it by the name of the whole.
    name = kind.decoder if str(named).startswith("qwen3_asr") else str(named)
    if name != kind.decoder:
        raise outer.error(f"model_type {name!r} of its text_config is not supported")
    return name


def _dimensions(config: Mapping[str, Any], label: str) -> AudioDecoderDimensions:
    architecture = config["model_type"]
    kind, outer = TYPES_OF_AUDIO[architecture], _outer(config, label)
    given = outer.group("text_config")
    own = {} if given is None else given.values
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    text = {**kind.text, **own, **tied, "model_type": _text_type(outer, kind)}
    decoder = decoder_dimensions(text, label if given is None else given.label)
    audio = _encoder(outer, kind)
    plain = {name: getattr(decoder, name) for name in DecoderDimensions.__dataclass_fields__}
    return outer.make(
        AudioDecoderDimensions, **{**plain, "architecture": architecture, "audio": audio}
    )


def _encoder(outer: Fields, kind: AudioType) -> AudioEncoder:
    given = outer.group("audio_config")
    fields = Fields(
        values={**kind.audio, **({} if given is None else given.values)},
        label=outer.label if given is None else given.label,
    )
    most = {"layers": MOST_LAYERS}
    sizes = {
        ours: fields.whole(theirs, **({"most": most[ours]} if ours in most else {}))
        for ours, theirs in kind.sizes.items()
    }
    return fields.make(AudioEncoder, **sizes, **kind.particulars(fields, outer))


AUDIO_DECODER = HuggingFaceFamily(
    family=AudioDecoderDimensions,
    model_types=tuple(TYPES_OF_AUDIO),
    dimensions=_dimensions,
    read=_read,
    heads={HEAD: ("embed_tokens.weight",)},
)
