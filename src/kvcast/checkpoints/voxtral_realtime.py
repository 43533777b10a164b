"""Voxtral Realtime in Hugging Face layout: its encoder's fields, and norms that know the delay.

After attention a decoder's layer multiplies by what two small matrices make of the delay between
sound and text. That is the same at every position, so it becomes a part of the norm's weight. Knows
nothing of how weights are stored.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.audio_type import AudioType
from kvcast.checkpoints.base import StoredTensor, read_json_object
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.rotary_huggingface import FULL, read_rotary
from kvcast.checkpoints.tables import changed, of_modules
from kvcast.checkpoints.whisper_files import check_preprocessor
from kvcast.checkpoints.whisper_names import with_key_biases
from kvcast.errors import KvcastError
from kvcast.families.causal_encoder import CausalEncoder
from kvcast.spec.sizes import MOST_LAYERS

_AUDIO: Mapping[str, Any] = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "head_dim": 64,
    "num_mel_bins": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "sliding_window": 750,
    "max_position_embeddings": 1500,
    "rope_theta": 10_000.0,
}
_LOUDEST = 1.5  # log10 of the power that features are floored below
_TIMESCALE, _RANK = 10_000.0, 32
_NORM, _FIRST, _SECOND = (
    ".post_attention_layernorm.weight",
    ".ada_rms_norm.linear1.weight",
    ".ada_rms_norm.linear2.weight",
)
_REALTIME_LAYER, _REALTIME_THEIRS = "encoder.layers.{i}", "audio_tower.layers.{i}"
_REALTIME_NAMES = of_modules(
    {
        **{f"encoder.conv{i}": [f"audio_tower.embedder.conv{i}"] for i in (1, 2)},
        f"{_REALTIME_LAYER}.attention_norm": [f"{_REALTIME_THEIRS}.self_attn_layer_norm"],
        f"{_REALTIME_LAYER}.attention.qkv": [f"{_REALTIME_THEIRS}.self_attn.{x}_proj" for x in "qkv"],
        f"{_REALTIME_LAYER}.attention.out": [f"{_REALTIME_THEIRS}.self_attn.o_proj"],
        f"{_REALTIME_LAYER}.feed_forward_norm": [f"{_REALTIME_THEIRS}.final_layer_norm"],
        f"{_REALTIME_LAYER}.feed_forward.gate_up": [f"{_REALTIME_THEIRS}.mlp.{x}_proj" for x in ("gate", "up")],
        f"{_REALTIME_LAYER}.feed_forward.down": [f"{_REALTIME_THEIRS}.mlp.down_proj"],
        "encoder.norm": ["audio_tower.norm"],
        "encoder.projector.up": ["multi_modal_projector.linear_1"],
        "encoder.projector.down": ["multi_modal_projector.linear_2"],
    }
)


def _realtime_encoder_of(outer: Fields) -> CausalEncoder:
    audio = outer.group_over("audio_config", _AUDIO)
    heads, joined = audio.whole("num_attention_heads"), outer.whole("downsample_factor", 4)
    if audio.values.get("num_key_value_heads") not in (None, heads):
        raise audio.error(f"num_key_value_heads must be {heads}, as num_attention_heads is")
    if outer.whole("audio_length_per_tok", 8) != 2 * joined:
        raise outer.error(f"audio_length_per_tok must be twice downsample_factor, {2 * joined}")
    text = outer.group("text_config") or outer
    return audio.make(
        CausalEncoder,
        n_mels=audio.whole("num_mel_bins"),
        width=audio.whole("hidden_size"),
        inner=audio.whole("intermediate_size"),
        heads=heads,
        head_dim=audio.whole("head_dim"),
        layers=audio.whole("num_hidden_layers", most=MOST_LAYERS),
        window=audio.whole("sliding_window"),
        rotary=read_rotary(audio, FULL, "rope_theta"),
        epsilon=audio.positive("rms_norm_eps"),
        activation=audio.activation("hidden_act"),
        joined=joined,
        projector_activation=outer.activation("projector_hidden_act", "gelu"),
        output=text.whole("hidden_size", 3072),
        delay=outer.whole("default_num_delay_tokens", 6),
    )


def _conditioned(
    stored: dict[str, StoredTensor], encoder: CausalEncoder, label: str
) -> dict[str, StoredTensor]:
    """Return the decoder's tensors, where norms have what the delay multiplies by."""
    own = dict(stored)
    for name in stored:
        if not name.endswith(_NORM):
            continue
        layer, weight = name.removesuffix(_NORM), stored[name]
        first, second = (own.pop(layer + leaf, None) for leaf in (_FIRST, _SECOND))
        if first is None or second is None:
            raise KvcastError(f"{label} has no tensor {layer}{_FIRST}: it is not a whole model")
        width = weight.shape[0] if weight.shape else 0
        if width % 2 or (first.shape, second.shape) != ((_RANK, width), (width, _RANK)):
            raise KvcastError(f"{label}: tensors {layer}.ada_rms_norm have other shapes")
        own[name] = changed(weight, _factors_of(first, second, encoder.delay))
    return own


def _factors_of(first: StoredTensor, second: StoredTensor, delay: int) -> Any:
    def conditioned(weight: NDArray[Any]) -> NDArray[np.float32]:
        half = len(weight) // 2
        angles = delay * np.exp(-math.log(_TIMESCALE) / half * np.arange(half))
        time = np.concatenate([np.cos(angles), np.sin(angles)])
        inner = first.read().astype(np.float64) @ time
        gelu = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in inner])
        factors = 1 + second.read().astype(np.float64) @ gelu
        factored: NDArray[np.float32] = (weight.astype(np.float64) * factors).astype(np.float32)
        return factored

    return conditioned


def _check_realtime(folder: Path, encoder: CausalEncoder) -> None:
    """Raise KvcastError if the files beside a model declare other features or another delay."""
    check_preprocessor(folder, encoder.n_mels, windows=False)
    path = folder / "preprocessor_config.json"
    fields = read_json_object(path) if path.is_file() else {}
    Fields(values=fields, label=str(path)).require({"global_log_mel_max": _LOUDEST})
    path = folder / "tekken.json"
    audio = read_json_object(path).get("audio") if path.is_file() else None
    told = {} if not isinstance(audio, dict) else audio
    needed = {
        "transcription_delay_ms": 80 * encoder.delay,
        "streaming_n_left_pad_tokens": encoder.silence,
        "frame_rate": 12.5,
    }
    Fields(values=told, label=str(path)).require(needed)


VOXTRAL_REALTIME = AudioType(
    decoder="mistral",
    text={
        "vocab_size": 131072,
        "hidden_size": 3072,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": 8192,
        "tie_word_embeddings": True,
    },
    encoder=_realtime_encoder_of,
    check=_check_realtime,
    prefixes=("audio_tower.", "multi_modal_projector."),
    names=_REALTIME_NAMES,
    prepare=lambda tensors, _, __: with_key_biases(tensors),
    prepare_text=_conditioned,
)
