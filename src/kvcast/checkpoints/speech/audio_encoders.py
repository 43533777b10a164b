"""Encoders of decoders that take audio: Granite Speech's and Voxtral Realtime's.

Config fields, tensor-name map and weight transforms: BatchNorm and half-step FFN factors are folded
into the matrices. Voxtral Realtime's norms are scaled by the delay between audio and text, which is
constant, so the factor becomes part of the norm's weight.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor, read_json_object
from kvcast.checkpoints.decoder.rotary import FULL, read_rotary
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.speech.conformer import Tensors, fold_norm, halve
from kvcast.checkpoints.speech.whisper import with_key_biases
from kvcast.checkpoints.speech.whisper_tokenizer import check_preprocessor
from kvcast.checkpoints.tensor_names import apply_change, of_modules, swap
from kvcast.errors import KvcastError
from kvcast.families.audio_encoder import AudioEncoder
from kvcast.families.block_conformer import BlockConformer, QueryFormer
from kvcast.families.causal_encoder import CausalEncoder
from kvcast.spec.sizes import MOST_LAYERS


@dataclass(frozen=True, kw_only=True)
class AudioType:
    decoder: str  # the usual model type of its `text_config`
    text: Mapping[str, Any]  # defaults of its `text_config`, over the decoder's
    encoder: Callable[[Fields], AudioEncoder]
    check: Callable[[Path, Any], None]  # KvcastError if a folder declares other features
    prefixes: tuple[str, ...]  # prefixes of the encoder's tensor names, without the model's
    names: Mapping[str, Sequence[str]]  # names of the encoder's tensors in files, by canonical name
    # changes the encoder's tensors as they are read; takes a name for messages
    prepare: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]]
    prepare_text: Callable[[dict[str, StoredTensor], Any, str], dict[str, StoredTensor]] = (
        lambda tensors, _, __: tensors
    )
    renamed: Mapping[str, str] = field(default_factory=dict)  # regular expressions
    fixed: Mapping[str, Any] = field(default_factory=dict)  # overrides of its `text_config`
    adapted: bool = False  # whether a folder may have an adapter that belongs to the model
    lenient: bool = False  # whether files have unused tensors of the encoder


_ENCODER: Mapping[str, Any] = {
    "model_type": "granite_speech_encoder",
    "input_dim": 160,
    "num_layers": 10,
    "hidden_dim": 1024,
    "feedforward_mult": 4,
    "num_heads": 8,
    "output_dim": 42,
    "context_size": 200,
    "max_pos_emb": 512,
    "conv_kernel_size": 15,
    "conv_expansion_factor": 2,
}
_PROJECTOR: Mapping[str, Any] = {
    "model_type": "blip_2_qformer",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "cross_attention_frequency": 2,
    "encoder_hidden_size": 1408,
    "use_qformer_text_input": False,
}
_FEATURES = {"sampling_rate": 16_000, "n_fft": 512, "win_length": 400, "hop_length": 160}

_LAYER, _QUERIED = "encoder.layers.{i}", "encoder.projector.layers.{i}"
_THEIRS = "projector.qformer.encoder.layer.{i}"
_MODULES: Mapping[str, Sequence[str]] = {
    "encoder.in": ["encoder.input_linear"],
    "encoder.characters": ["encoder.out"],
    "encoder.of_characters": ["encoder.out_mid"],
    f"{_LAYER}.feed_forward_norm": [f"{_LAYER}.ff1.pre_norm"],
    f"{_LAYER}.feed_forward.up": [f"{_LAYER}.ff1.up_proj"],
    f"{_LAYER}.feed_forward.down": [f"{_LAYER}.ff1.down_proj"],
    f"{_LAYER}.self_attention_norm": [f"{_LAYER}.attn.pre_norm"],
    f"{_LAYER}.self_attention.qkv": [f"{_LAYER}.attn.to_{x}" for x in ("q", "kv")],
    f"{_LAYER}.self_attention.out": [f"{_LAYER}.attn.to_out"],
    f"{_LAYER}.convolution_norm": [f"{_LAYER}.conv.norm"],
    f"{_LAYER}.convolution.in": [f"{_LAYER}.conv.up_conv"],
    f"{_LAYER}.convolution.out": [f"{_LAYER}.conv.down_conv"],
    f"{_LAYER}.last_feed_forward_norm": [f"{_LAYER}.ff2.pre_norm"],
    f"{_LAYER}.last_feed_forward.up": [f"{_LAYER}.ff2.up_proj"],
    f"{_LAYER}.last_feed_forward.down": [f"{_LAYER}.ff2.down_proj"],
    f"{_LAYER}.norm": [f"{_LAYER}.post_norm"],
    "encoder.projector.queries_norm": ["projector.qformer.layernorm"],
    "encoder.projector.out": ["projector.linear"],
    **{
        f"{_QUERIED}.{ours}{part}": names
        for ours, theirs in (("self_attention", "attention"), ("cross_attention", "crossattention"))
        for part, names in {
            ".qkv": [f"{_THEIRS}.{theirs}.attention.{x}" for x in ("query", "key", "value")],
            ".query": [f"{_THEIRS}.{theirs}.attention.query"],
            ".key_value": [f"{_THEIRS}.{theirs}.attention.{x}" for x in ("key", "value")],
            ".out": [f"{_THEIRS}.{theirs}.output.dense"],
            "_norm": [f"{_THEIRS}.{theirs}.output.LayerNorm"],
        }.items()
    },
    f"{_QUERIED}.feed_forward.up": [f"{_THEIRS}.intermediate_query.dense"],
    f"{_QUERIED}.feed_forward.down": [f"{_THEIRS}.output_query.dense"],
    f"{_QUERIED}.feed_forward_norm": [f"{_THEIRS}.output_query.LayerNorm"],
}
_NAMES: Mapping[str, Sequence[str]] = {
    **of_modules(_MODULES),
    f"{_LAYER}.self_attention.qkv.weight": [f"{_LAYER}.attn.to_{x}.weight" for x in "qkv"],
    f"{_LAYER}.self_attention.distances": [f"{_LAYER}.attn.rel_pos_emb.weight"],
    f"{_LAYER}.convolution.kernel": [f"{_LAYER}.conv.depth_conv.conv.weight"],
    f"{_LAYER}.convolution.shift": [f"{_LAYER}.conv.depth_conv.conv.bias"],
    "encoder.projector.queries": ["projector.query"],
}


def _encoder_of(outer: Fields) -> BlockConformer:
    fields = outer.group_over("encoder_config", _ENCODER)
    width, heads = fields.whole("hidden_dim"), fields.whole("num_heads")
    block = fields.whole("context_size", most=fields.whole("max_pos_emb"))
    window, rate = outer.whole("window_size", 15), outer.whole("downsample_rate", 5)
    if window % rate:
        raise outer.error(f"window_size {window} is not a multiple of downsample_rate {rate}")
    if fields.whole("input_dim") % 2:
        raise fields.error("input_dim must be even: it is of two frames")
    text = outer.group("text_config") or outer
    return fields.make(
        BlockConformer,
        n_mels=fields.whole("input_dim"),
        width=width,
        inner=width * fields.whole("feedforward_mult"),
        heads=heads,
        head_dim=fields.whole("dim_head", width // heads),
        layers=fields.whole("num_layers", most=MOST_LAYERS),
        # An even kernel begins as far before a position, and ends one earlier.
        kernel=fields.whole("conv_kernel_size") // 2 * 2 + 1,
        channels=width * fields.whole("conv_expansion_factor"),
        block=block,
        characters=fields.whole("output_dim"),
        window=window,
        queries=window // rate,
        projector=_projector_of(outer, width),
        output=text.whole("hidden_size", 4096),
    )


def _projector_of(outer: Fields, source: int) -> QueryFormer:
    fields = outer.group_over("projector_config", _PROJECTOR)
    needed = {"model_type": "blip_2_qformer", "encoder_hidden_size": source}
    fields.require({**needed, "use_qformer_text_input": False})
    return fields.make(
        QueryFormer,
        width=fields.whole("hidden_size"),
        inner=fields.whole("intermediate_size"),
        heads=fields.whole("num_attention_heads"),
        layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        crossing=fields.whole("cross_attention_frequency"),
        epsilon=fields.positive("layer_norm_eps"),
        activation=fields.activation("hidden_act"),
    )


def _prepare(
    stored: dict[str, StoredTensor], encoder: BlockConformer, label: str
) -> dict[str, StoredTensor]:
    tensors = Tensors(stored, label)
    for i in range(encoder.layers):
        _of_layer(tensors, encoder, _LAYER.format(i=i))
    queries = (encoder.queries, encoder.projector.width)
    tensors.change("projector.query", (1, *queries), queries)
    return tensors.changed


def _of_layer(tensors: Tensors, encoder: BlockConformer, layer: str) -> None:
    width, inner, channels = encoder.width, encoder.inner, encoder.channels
    mixed = encoder.heads * encoder.head_dim
    for part in ("ff1", "ff2"):
        shape = (width, inner)
        tensors.change(f"{layer}.{part}.down_proj.weight", shape, shape, halve)
        tensors.change(f"{layer}.{part}.down_proj.bias", shape[:1], shape[:1], halve)
    for name, first in (("to_k", 0), ("to_v", mixed)):
        both, rows = f"{layer}.attn.to_kv.weight", slice(first, first + mixed)
        tensors.part(both, (2 * mixed, width), f"{layer}.attn.{name}.weight", rows)
    _distances(tensors, encoder, f"{layer}.attn.rel_pos_emb.weight")
    up, down = f"{layer}.conv.up_conv", f"{layer}.conv.down_conv"
    tensors.change(f"{up}.weight", (2 * channels, width, 1), (2 * channels, width), swap)
    tensors.change(f"{up}.bias", (2 * channels,), (2 * channels,), swap)
    tensors.change(f"{down}.weight", (width, channels, 1), (width, channels))
    convolution = f"{layer}.conv.depth_conv.conv"
    tensors.bias(f"{convolution}.bias", channels, there=False)
    kernel = tensors.changed.get(f"{convolution}.weight")
    even = kernel is not None and kernel.shape[-1:] == (encoder.kernel - 1,)
    given = (channels, 1, encoder.kernel - even)
    fold_norm(tensors, convolution, f"{layer}.conv.batch_norm", given, encoder.kernel)


def _distances(tensors: Tensors, encoder: BlockConformer, name: str) -> None:
    """Select the keys of relative distances in a block, behind and ahead of a query."""
    given = tensors.changed.get(name)
    rows = 0 if given is None or not given.shape else given.shape[0]
    shape, zero = (2, encoder.block, encoder.head_dim), rows // 2

    def both(keys: NDArray[Any]) -> NDArray[Any]:
        away = np.arange(encoder.block)
        return np.stack([keys[zero + away], keys[zero - away]])

    if rows % 2 == 0 or rows < 2 * encoder.block - 1:
        raise KvcastError(f"{name} has {rows} distances, and blocks {encoder.block} positions")
    tensors.change(name, (rows, encoder.head_dim), shape, both)


def _check(folder: Path, encoder: BlockConformer) -> None:
    path = folder / "preprocessor_config.json"
    fields = read_json_object(path) if path.is_file() else {}
    own = fields.get("melspec_kwargs")
    told = {**fields, **(own if isinstance(own, dict) else {})}
    needed = {
        **_FEATURES,
        "projector_window_size": encoder.window,
        "projector_downsample_rate": encoder.window // encoder.queries,
        "n_mels": encoder.n_mels // 2,
    }
    Fields(values=told, label=str(path)).require(needed)


GRANITE_SPEECH = AudioType(
    decoder="granite",
    text={},
    encoder=_encoder_of,
    check=_check,
    prefixes=("encoder.", "projector."),
    names=_NAMES,
    prepare=_prepare,
    fixed={"logits_scaling": 1.0},  # transformers' head follows the norm
    adapted=True,
    lenient=True,
)


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
_TOWER = "audio_tower.layers.{i}"
_REALTIME_NAMES = of_modules(
    {
        **{f"encoder.conv{i}": [f"audio_tower.embedder.conv{i}"] for i in (1, 2)},
        f"{_LAYER}.attention_norm": [f"{_TOWER}.self_attn_layer_norm"],
        f"{_LAYER}.attention.qkv": [f"{_TOWER}.self_attn.{x}_proj" for x in "qkv"],
        f"{_LAYER}.attention.out": [f"{_TOWER}.self_attn.o_proj"],
        f"{_LAYER}.feed_forward_norm": [f"{_TOWER}.final_layer_norm"],
        f"{_LAYER}.feed_forward.gate_up": [f"{_TOWER}.mlp.{x}_proj" for x in ("gate", "up")],
        f"{_LAYER}.feed_forward.down": [f"{_TOWER}.mlp.down_proj"],
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


def _fold_delay(
    stored: dict[str, StoredTensor], encoder: CausalEncoder, label: str
) -> dict[str, StoredTensor]:
    """Fold the delay's factors into norms."""
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
        own[name] = apply_change(weight, _factors_of(first, second, encoder.delay))
    return own


def _factors_of(first: StoredTensor, second: StoredTensor, delay: int) -> Any:
    def fold(weight: NDArray[Any]) -> NDArray[np.float32]:
        half = len(weight) // 2
        angles = delay * np.exp(-math.log(_TIMESCALE) / half * np.arange(half))
        time = np.concatenate([np.cos(angles), np.sin(angles)])
        inner = first.read().astype(np.float64) @ time
        gelu = np.array([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in inner])
        factors = 1 + second.read().astype(np.float64) @ gelu
        factored: NDArray[np.float32] = (weight.astype(np.float64) * factors).astype(np.float32)
        return factored

    return fold


def _check_realtime(folder: Path, encoder: CausalEncoder) -> None:
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
    prepare_text=_fold_delay,
)
