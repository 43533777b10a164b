"""Interprets Moonshines in Hugging Face layout: config.json, tensor names.

Defaults are those of transformers. Tensors are named as in its MoonshineForConditionalGeneration
and MoonshineStreamingForConditionalGeneration.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint, LazyTensors, StoredTensor
from kvcast.checkpoints.decoder.rotary import FULL, SHARE, read_rotary
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import START, HuggingFaceFamily, with_start_token
from kvcast.checkpoints.source_text import read_text
from kvcast.checkpoints.tensor_names import (
    apply_change,
    drop_tied,
    fill_evenly,
    head_order,
    of_modules,
    reorder,
    swap,
)
from kvcast.families.moonshine import (
    MoonshineDimensions,
    positions_over_samples,
)
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.sizes import MOST_LAYERS, MOST_POSITIONS

_SAMPLE_RATE = 16_000
LONGEST = 30 * _SAMPLE_RATE
"""Samples of the longest recordings that models over samples were trained on."""
_SCALINGS = ("none", "linear")

_OVER_SAMPLES: Mapping[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 288,
    "intermediate_size": 1152,
    "encoder_num_hidden_layers": 6,
    "decoder_num_hidden_layers": 6,
    "encoder_num_attention_heads": 8,
    "decoder_num_attention_heads": 8,
    "encoder_hidden_act": "gelu",
    "decoder_hidden_act": "silu",
    "max_position_embeddings": 512,
    "attention_bias": False,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
    SHARE: 0.9,
}
_OVER_FRAMES: Mapping[str, Any] = {
    "vocab_size": 32768,
    "hidden_size": 320,
    "intermediate_size": 1280,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
}
_OVER_FRAMES_SHARE = 0.8  # where no rope_parameters are
_ENCODER: Mapping[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 1280,
    "hidden_act": "gelu",
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "attention_bias": False,
    "sample_rate": _SAMPLE_RATE,
    "frame_ms": 5.0,
    "sliding_windows": [[16, 4], [16, 4], [16, 0], [16, 0], [16, 4], [16, 4]],
}

_HEAD, _EMBEDDING = "proj_out.weight", "decoder.embed_tokens.weight"
_LAYER = {stack: f"{stack}.layers.{{i}}" for stack in ("encoder", "decoder")}


def _attention_names(module: str, ours: str) -> dict[str, Sequence[str]]:
    return {
        f"{ours}.qkv": [f"{module}.{x}_proj" for x in "qkv"],
        f"{ours}.query": [f"{module}.q_proj"],
        f"{ours}.key_value": [f"{module}.{x}_proj" for x in "kv"],
        f"{ours}.out": [f"{module}.o_proj"],
    }


_SHARED_MODULES: Mapping[str, Sequence[str]] = {
    **_attention_names(f"{_LAYER['encoder']}.self_attn", f"{_LAYER['encoder']}.attention"),
    **_attention_names(f"{_LAYER['decoder']}.self_attn", f"{_LAYER['decoder']}.self_attention"),
    **_attention_names(f"{_LAYER['decoder']}.encoder_attn", f"{_LAYER['decoder']}.cross_attention"),
    f"{_LAYER['encoder']}.attention_norm": [f"{_LAYER['encoder']}.input_layernorm"],
    f"{_LAYER['encoder']}.feed_forward_norm": [f"{_LAYER['encoder']}.post_attention_layernorm"],
    f"{_LAYER['encoder']}.feed_forward.up": [f"{_LAYER['encoder']}.mlp.fc1"],
    f"{_LAYER['encoder']}.feed_forward.down": [f"{_LAYER['encoder']}.mlp.fc2"],
    f"{_LAYER['decoder']}.self_attention_norm": [f"{_LAYER['decoder']}.input_layernorm"],
    f"{_LAYER['decoder']}.cross_attention_norm": [f"{_LAYER['decoder']}.post_attention_layernorm"],
    f"{_LAYER['decoder']}.feed_forward_norm": [f"{_LAYER['decoder']}.final_layernorm"],
    f"{_LAYER['decoder']}.feed_forward.gate_up": [f"{_LAYER['decoder']}.mlp.fc1"],
    f"{_LAYER['decoder']}.feed_forward.down": [f"{_LAYER['decoder']}.mlp.fc2"],
    "decoder.embedding": ["decoder.embed_tokens"],
    "decoder.norm": ["decoder.norm"],
    "head": ["proj_out"],
}
_MODULES_OVER_SAMPLES: Mapping[str, Sequence[str]] = {
    **{f"encoder.conv{i}": [f"encoder.conv{i}"] for i in (1, 2, 3)},
    "encoder.sound_norm": ["encoder.groupnorm"],
    "encoder.norm": ["encoder.layer_norm"],
}
_MODULES_OVER_FRAMES: Mapping[str, Sequence[str]] = {
    **{f"encoder.conv{i}": [f"encoder.embedder.conv{i}"] for i in (1, 2)},
    "encoder.frames": ["encoder.embedder.linear"],
    "encoder.norm": ["encoder.final_norm"],
    "decoder.source": ["decoder.proj"],
}
_COMPRESSION, _POSITIONS = "encoder.embedder.comp.log_k", "decoder.pos_emb.weight"


NAMES_OVER_SAMPLES = of_modules({**_SHARED_MODULES, **_MODULES_OVER_SAMPLES})
NAMES_OVER_FRAMES: Mapping[str, Sequence[str]] = {
    **of_modules({**_SHARED_MODULES, **_MODULES_OVER_FRAMES}),
    "encoder.compression": [_COMPRESSION],
    "decoder.source_positions": [_POSITIONS],
}


def read_moonshine(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    config = with_start_token(folder, config)
    dimensions = moonshine_dimensions(config, str(folder / "config.json"))
    own = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    dimensions, tensors = assemble(dimensions, own, str(folder))
    defaults = _OVER_FRAMES if dimensions.frame else _OVER_SAMPLES
    return Checkpoint(
        dimensions=dimensions,
        tensors=tensors,
        text=read_text(folder, {**defaults, **config}),
        source=f"Hugging Face folder {folder}",
    )


def assemble(
    dimensions: MoonshineDimensions, own: dict[str, StoredTensor], label: str
) -> tuple[MoonshineDimensions, LazyTensors]:
    """Fill canonical tensors from those of transformers, without `model.`; see `fill_evenly`.

    The dimensions returned say whether the head is the embedding.
    """
    drop_tied(own, _HEAD, _EMBEDDING)
    dimensions = replace(dimensions, tied=_HEAD not in own)
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    tensors = fill_evenly(
        dimensions,
        NAMES_OVER_FRAMES if dimensions.frame else NAMES_OVER_SAMPLES,
        _canonical(own, dimensions),
        label,
        f"a {dimensions.architecture} model of {layers}",
    )
    return dimensions, tensors


def moonshine_dimensions(config: Mapping[str, Any], label: str) -> MoonshineDimensions:
    return _DIMENSIONS[config["model_type"]](config, label)


def _over_samples(config: Mapping[str, Any], label: str) -> MoonshineDimensions:
    fields = Fields(values=config, label=label).over(_OVER_SAMPLES)
    width, heads = fields.whole("hidden_size"), fields.whole("encoder_num_attention_heads")
    for name in (
        "encoder_num_key_value_heads",
        "decoder_num_attention_heads",
        "decoder_num_key_value_heads",
    ):
        _require_heads(fields, name, heads)
    head_dim = fields.whole("head_dim", max(1, width // heads))
    inner = fields.whole("intermediate_size")
    return fields.make(
        MoonshineDimensions,
        vocab_size=fields.whole("vocab_size"),
        **_alike(width=width, inner=inner, heads=heads, head_dim=head_dim),
        decoder_layers=fields.whole("decoder_num_hidden_layers", most=MOST_LAYERS),
        encoder_layers=fields.whole("encoder_num_hidden_layers", most=MOST_LAYERS),
        rotary=_rotary(fields),
        start_token=fields.whole(START, least=0),
        source_positions=positions_over_samples(LONGEST),
        target_positions=fields.whole("max_position_embeddings", most=MOST_POSITIONS),
        activation=fields.activation("decoder_hidden_act"),
        encoder_activation=fields.activation("encoder_hidden_act"),
        attention_bias=fields.flag("attention_bias"),
        encoder_attention_bias=fields.flag("attention_bias"),
    )


def _alike(**sizes: int) -> dict[str, int]:
    """Sizes of the decoder and, the same, of the encoder."""
    return sizes | {f"encoder_{name}": size for name, size in sizes.items()}


def _over_frames(config: Mapping[str, Any], label: str) -> MoonshineDimensions:
    share = {} if config.get("rope_parameters") is not None else {SHARE: _OVER_FRAMES_SHARE}
    fields = Fields(values=config, label=label).over({**_OVER_FRAMES, **share})
    encoder = fields.group_over("encoder_config", _ENCODER)
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    encoder_width = encoder.whole("hidden_size")
    encoder_heads = encoder.whole("num_attention_heads")
    _require_heads(fields, "num_key_value_heads", heads)
    _require_heads(encoder, "num_key_value_heads", encoder_heads)
    rate = encoder.whole("sample_rate")
    if rate != _SAMPLE_RATE:
        raise encoder.error(f"sample_rate must be {_SAMPLE_RATE}, not {rate}")
    positions = fields.whole("max_position_embeddings", most=MOST_POSITIONS)
    return fields.make(
        MoonshineDimensions,
        vocab_size=fields.whole("vocab_size"),
        width=width,
        inner=fields.whole("intermediate_size"),
        heads=heads,
        head_dim=fields.whole("head_dim", max(1, width // heads)),
        decoder_layers=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        encoder_width=encoder_width,
        encoder_inner=encoder.whole("intermediate_size"),
        encoder_heads=encoder_heads,
        encoder_head_dim=encoder.whole("head_dim", max(1, encoder_width // encoder_heads)),
        encoder_layers=encoder.whole("num_hidden_layers", most=MOST_LAYERS),
        rotary=_rotary(fields),
        start_token=fields.whole(START, fields.values["bos_token_id"], 0),
        source_positions=positions,
        target_positions=positions,
        activation=fields.activation("hidden_act"),
        encoder_activation=encoder.activation("hidden_act"),
        attention_bias=fields.flag("attention_bias"),
        encoder_attention_bias=encoder.flag("attention_bias"),
        frame=round(rate * min(encoder.positive("frame_ms"), MOST_POSITIONS) / 1000),
        windows=_windows(encoder),
    )


_DIMENSIONS: Mapping[str, Callable[[Mapping[str, Any], str], MoonshineDimensions]] = {
    "moonshine": _over_samples,
    "moonshine_streaming": _over_frames,
}


def _require_heads(fields: Fields, name: str, heads: int) -> None:
    """Raise KvcastError for another number of heads, which transformers does not support either."""
    if (given := fields.whole(name, heads)) != heads:
        raise fields.error(f"{name} must be {heads}, as the number of heads, not {given}")


def _rotary(fields: Fields) -> Rotary:
    rotary = read_rotary(fields, FULL, "rope_theta", own=(SHARE,))
    if rotary.scaling not in _SCALINGS:
        raise fields.error(f"rope type {rotary.scaling!r} is not supported in models of this type")
    return rotary


def _windows(fields: Fields) -> tuple[tuple[int, int], ...]:
    """Files count a position itself before it, and one too many after it."""
    listed, windows = fields.values["sliding_windows"], []
    for window in listed if isinstance(listed, list) else [listed]:
        if not isinstance(window, list) or [type(size) for size in window] != [int, int]:
            raise fields.error("sliding_windows must be a list of pairs of whole numbers")
        before, after = window
        if not 1 <= before <= MOST_POSITIONS or not 0 <= after <= MOST_POSITIONS:
            raise fields.error(
                f"the window {window} has no position, or more than any recording has"
            )
        windows.append((before - 1, max(0, after - 1)))
    return tuple(windows)


def _canonical(
    stored: Mapping[str, StoredTensor], dimensions: MoonshineDimensions
) -> dict[str, StoredTensor]:
    size = dimensions.head_dim
    order = head_order(size, dimensions.rotary.channels(size), neighbours=True)

    def turned(rows: NDArray[Any]) -> NDArray[Any]:
        heads = rows.reshape(-1, size, *rows.shape[1:])
        return heads[:, order].reshape(rows.shape)

    stacks = ("decoder.",) if dimensions.frame else ("encoder.", "decoder.")
    own = {}
    for name, tensor in stored.items():
        is_rotated = ".self_attn.q_proj" in name or ".self_attn.k_proj" in name
        if is_rotated and name.startswith(stacks) and not tensor.shape[0] % size:
            own[name] = reorder(tensor, turned)
        elif name.startswith("decoder.layers.") and ".mlp.fc1." in name:
            own[name] = reorder(tensor, swap)
        elif name.endswith(".gamma"):
            own[f"{name.removesuffix('gamma')}weight"] = apply_change(tensor, lambda x: x + 1)
        elif name == _COMPRESSION and not tensor.shape:
            own[name] = replace(apply_change(tensor, lambda x: np.exp(x).reshape(1)), shape=(1,))
        else:
            own[name] = tensor
    return own


MOONSHINE = HuggingFaceFamily(
    family=MoonshineDimensions,
    model_types=tuple(_DIMENSIONS),
    dimensions=moonshine_dimensions,
    read=read_moonshine,
    heads={_HEAD: (f"model.{_EMBEDDING}", _EMBEDDING)},
)
