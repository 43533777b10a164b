"""Granite Speech's encoder in Hugging Face layout: fields, names of tensors, what these become.

Norms of batches and halves of feed-forwards are multiplied into matrices, and numbers lie as
kernels read them. Knows nothing of how weights are stored, and no decoder.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.audio_type import AudioType
from kvcast.checkpoints.base import StoredTensor, read_json_object
from kvcast.checkpoints.conformer_huggingface import Tensors, fold_norm, halved
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.tables import of_modules, swapped
from kvcast.errors import KvcastError
from kvcast.families.block_conformer import BlockConformer
from kvcast.families.query_former import QueryFormer
from kvcast.spec.sizes import MOST_LAYERS

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

_LAYER, _QUERIED, _THEIRS = (
    "encoder.layers.{i}",
    "encoder.projector.layers.{i}",
    "projector.qformer.encoder.layer.{i}",
)
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
    """Read the configuration of an encoder with its projector."""
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
        # One of even length begins as far before a position, and ends one earlier.
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


def _prepared(
    stored: dict[str, StoredTensor], encoder: BlockConformer, label: str
) -> dict[str, StoredTensor]:
    """Return the encoder's tensors as `_NAMES` has them."""
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
        tensors.change(f"{layer}.{part}.down_proj.weight", shape, shape, halved)
        tensors.change(f"{layer}.{part}.down_proj.bias", shape[:1], shape[:1], halved)
    for name, first in (("to_k", 0), ("to_v", mixed)):
        tensors.part(
            f"{layer}.attn.to_kv.weight",
            (2 * mixed, width),
            f"{layer}.attn.{name}.weight",
            slice(first, first + mixed),
        )
    _distances(tensors, encoder, f"{layer}.attn.rel_pos_emb.weight")
    up, down = f"{layer}.conv.up_conv", f"{layer}.conv.down_conv"
    tensors.change(f"{up}.weight", (2 * channels, width, 1), (2 * channels, width), swapped)
    tensors.change(f"{up}.bias", (2 * channels,), (2 * channels,), swapped)
    tensors.change(f"{down}.weight", (width, channels, 1), (width, channels))
    convolution = f"{layer}.conv.depth_conv.conv"
    tensors.bias(f"{convolution}.bias", channels, there=False)
    kernel = tensors.changed.get(f"{convolution}.weight")
    even = kernel is not None and kernel.shape[-1:] == (encoder.kernel - 1,)
    given = (channels, 1, encoder.kernel - even)
    fold_norm(tensors, convolution, f"{layer}.conv.batch_norm", given, encoder.kernel)


def _distances(tensors: Tensors, encoder: BlockConformer, name: str) -> None:
    """Take the keys of distances in a block: those behind a query, and those ahead of it."""
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
    """Raise KvcastError if the files beside a model declare other features than kvcast computes."""
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
    prepare=_prepared,
    fixed={"logits_scaling": 1.0},  # transformers' head follows the norm
    adapted=True,
    lenient=True,
)
