"""The types of decoders that hear, in Hugging Face layout: Qwen3-ASR's and Voxtral's rows, and all.

Knows nothing of how weights are stored.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kvcast.checkpoints.audio_type import AudioType
from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.granite_speech import GRANITE_SPEECH
from kvcast.checkpoints.tables import changed, of_modules
from kvcast.checkpoints.voxtral_realtime import VOXTRAL_REALTIME
from kvcast.checkpoints.whisper_files import check_preprocessor
from kvcast.checkpoints.whisper_names import with_key_biases
from kvcast.families.audio_encoder import MOST_FRAMES, AudioEncoder
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


def _qwen3_asr(outer: Fields) -> AudioEncoder:
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
        AudioEncoder,
        **_sizes(audio, _QWEN_SIZES),
        chunk=chunk,
        window=audio.whole("n_window_infer"),
        activation=activation,
        projected=width,
        projector_activation=activation,
        projector_bias=True,
        output=audio.whole("output_dim"),
    )


def _voxtral(outer: Fields) -> AudioEncoder:
    audio = outer.group_over("audio_config", _VOXTRAL_AUDIO)
    if audio.whole("max_source_positions") != MOST_FRAMES // 2:
        raise audio.error(f"max_source_positions must be {MOST_FRAMES // 2}")
    width, inner = audio.whole("hidden_size"), audio.whole("intermediate_size")
    if inner % width:
        raise audio.error(f"intermediate_size {inner} is not a multiple of hidden_size {width}")
    text = outer.group("text_config") or outer
    output = text.whole("hidden_size", 3072)
    return audio.make(
        AudioEncoder,
        **_sizes(audio, _VOXTRAL_SIZES),
        joined=inner // width,
        activation=audio.activation("activation_function", "gelu"),
        projected=output,
        projector_activation=outer.activation("projector_hidden_act", "gelu"),
        output=output,
    )


def _time_first(
    tensors: dict[str, StoredTensor], encoder: AudioEncoder, _: str
) -> dict[str, StoredTensor]:
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


def _check(folder: Path, encoder: AudioEncoder, *, windows: bool) -> None:
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
