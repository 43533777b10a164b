"""Reads decoders that take audio in Hugging Face layout: Qwen3-ASR, Voxtral, Granite Speech."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, LazyTensors, StoredTensor, read_file, require_file
from kvcast.checkpoints.decoder.huggingface import (
    HEAD,
    TYPES,
    decoder_dimensions,
    is_tied,
    names_in,
    own_tensors,
    text_files,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.gguf.tokenizer import QWEN2
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily
from kvcast.checkpoints.peft import CONFIG, is_peft
from kvcast.checkpoints.speech.audio_encoders import GRANITE_SPEECH, VOXTRAL_REALTIME, AudioType
from kvcast.checkpoints.speech.whisper import with_key_biases
from kvcast.checkpoints.speech.whisper_tokenizer import check_preprocessor, split_tokenizer
from kvcast.checkpoints.tensor_names import apply_change, fill_decoder, fill_evenly, of_modules
from kvcast.families.audio_decoder import AudioDecoderDimensions
from kvcast.families.audio_encoder import MOST_FRAMES, WhisperEncoder
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.sizes import MOST_LAYERS

_CHUNK = 100  # frames; transformers counts positions of other chunks as if they were these
_PREFIXES = ("audio_tower.", "multi_modal_projector.")
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
_QWEN_SIZES, _QWEN_AUDIO = (
    {
        "n_mels": "num_mel_bins",
        "width": "d_model",
        "inner": "encoder_ffn_dim",
        "heads": "encoder_attention_heads",
        "layers": "encoder_layers",
        "channels": "downsample_hidden_size",
    },
    {
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
)
_VOXTRAL_SIZES, _VOXTRAL_AUDIO = (
    {
        "n_mels": "num_mel_bins",
        "width": "hidden_size",
        "inner": "intermediate_size",
        "heads": "num_attention_heads",
        "layers": "num_hidden_layers",
    },
    {
        "num_mel_bins": 128,
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_attention_heads": 20,
        "num_hidden_layers": 32,
        "max_source_positions": 1500,
    },
)


def _sizes(audio: Fields, named: Mapping[str, str]) -> dict[str, int]:
    most = {"layers": {"most": MOST_LAYERS}}
    return {ours: audio.whole(theirs, **most.get(ours, {})) for ours, theirs in named.items()}


def _qwen3_asr(outer: Fields) -> WhisperEncoder:
    audio = outer.group_over("audio_config", _QWEN_AUDIO)
    chunk = 2 * audio.whole("n_window")
    if chunk != _CHUNK:
        raise audio.error(f"n_window must be {_CHUNK // 2}: positions of others are not defined")
    most, longest = audio.whole("max_position_embeddings", 1500), _CHUNK // 8 + 1
    if most < longest:
        raise audio.error(f"max_position_embeddings must be {longest} or more, not {most}")
    activation = audio.activation("activation_function", "gelu")
    width = audio.whole("d_model")
    return audio.make(
        WhisperEncoder,
        **_sizes(audio, _QWEN_SIZES),
        chunk=chunk,
        window=audio.whole("n_window_infer"),
        activation=activation,
        projected=width,
        projector_activation=activation,
        projector_bias=True,
        output=audio.whole("output_dim"),
    )


def _voxtral(outer: Fields) -> WhisperEncoder:
    audio = outer.group_over("audio_config", _VOXTRAL_AUDIO)
    if audio.whole("max_source_positions") != MOST_FRAMES // 2:
        raise audio.error(f"max_source_positions must be {MOST_FRAMES // 2}")
    width, inner = audio.whole("hidden_size"), audio.whole("intermediate_size")
    if inner % width:
        raise audio.error(f"intermediate_size {inner} is not a multiple of hidden_size {width}")
    text = outer.group("text_config") or outer
    output = text.whole("hidden_size", 3072)
    return audio.make(
        WhisperEncoder,
        **_sizes(audio, _VOXTRAL_SIZES),
        joined=inner // width,
        activation=audio.activation("activation_function", "gelu"),
        projected=output,
        projector_activation=outer.activation("projector_hidden_act", "gelu"),
        output=output,
    )


def _time_first(
    tensors: dict[str, StoredTensor], encoder: WhisperEncoder, _: str
) -> dict[str, StoredTensor]:
    """Kernels over time and frequency, and the matrix after them in this order of bands."""

    def by_band(matrix: NDArray[Any]) -> NDArray[Any]:
        apart = matrix.reshape(len(matrix), encoder.channels, encoder.bands)
        return apart.swapaxes(1, 2).reshape(matrix.shape)

    def kernel(weight: NDArray[Any]) -> NDArray[Any]:
        return weight.swapaxes(2, 3)

    shape = (encoder.width, encoder.bands * encoder.channels)
    own = {}
    for name, tensor in tensors.items():
        if name.endswith("conv_out.weight") and tensor.shape == shape:
            own[name] = apply_change(tensor, by_band)
        elif ".conv2d" in name and len(tensor.shape) == 4:
            own[name] = apply_change(tensor, kernel)
        else:
            own[name] = tensor
    return own


def _check(folder: Path, encoder: WhisperEncoder, *, windows: bool) -> None:
    check_preprocessor(folder, encoder.n_mels, windows=windows)


TYPES_OF_AUDIO: Mapping[str, AudioType] = {
    "granite_speech": GRANITE_SPEECH,
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
        encoder=_qwen3_asr,
        check=partial(_check, windows=False),
        prefixes=_PREFIXES,
        names=of_modules(_QWEN_MODULES),
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
        encoder=_voxtral,
        check=partial(_check, windows=True),
        prefixes=_PREFIXES,
        names={
            **of_modules(_VOXTRAL_MODULES),
            "encoder.positions": ("audio_tower.embed_positions.weight",),
        },
        prepare=lambda tensors, _, __: with_key_biases(tensors),
    ),
    "voxtral_realtime": VOXTRAL_REALTIME,
}
"""By the model type of configurations."""


_OUTER = re.compile(r"^(?:(?:thinker|model)\.)*")
_THINKER = re.compile(r"^thinker\.")
_TOKENIZER, _TEKKEN, _PARTS = "tokenizer.json", "tekken.json", ("vocab.json", "merges.txt")


def _read(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    label = str(folder / "config.json")
    kind = TYPES_OF_AUDIO[config["model_type"]]
    dimensions = _dimensions(config, label)
    kind.check(folder, dimensions.audio)
    audio, text = _apart(stored, kind)
    text = kind.prepare_text(text, dimensions.audio, str(folder))
    text_kind = TYPES[kind.decoder]
    own = own_tensors(text, dimensions, text_kind)
    if dimensions.tied:
        dimensions = replace(dimensions, tied=is_tied(own, text_kind))
    names = names_in(own, text_kind)
    of_text = fill_decoder(dimensions, names, own, str(folder), lenient=True)
    prepared = kind.prepare(audio, dimensions.audio, str(folder))
    model = f"the encoder of a {dimensions.architecture} model"
    of_sound = fill_evenly(
        dimensions,
        kind.names,
        prepared,
        str(folder),
        model,
        lenient=kind.lenient,
        prefix="encoder.",
    )
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
    if not config.get("has_lora_adapter") or is_peft(folder):
        return []
    return [
        f"{folder} lacks {CONFIG} although has_lora_adapter is true: fetch the adapter as well, or "
        "texts will be wrong"
    ]


def _text(folder: Path, config: Mapping[str, Any], notices: list[str]) -> Mapping[str, bytes]:
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
    audio, text = {}, {}
    for full_name, tensor in stored.items():
        name = _OUTER.sub("", full_name)
        if not name.startswith(kind.prefixes):
            text[_THINKER.sub("", full_name)] = tensor
            continue
        for pattern, replacement in kind.renamed.items():
            name = re.sub(pattern, replacement, name)
        audio[name] = tensor
    return audio, text


def _outer(config: Mapping[str, Any], label: str) -> Fields:
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
