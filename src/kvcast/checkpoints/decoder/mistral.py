"""Reads folders in Mistral's own layout: params.json, consolidated*.safetensors, a tokenizer.

Names and defaults are those of mistral-inference (args.py, transformer.py and cache.py).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kvcast.checkpoints.base import (
    Checkpoint,
    CheckpointReader,
    LazyTensors,
    StoredTensor,
    read_file,
    read_json_object,
    require_file,
)
from kvcast.checkpoints.decoder.tensor_names import MISTRAL_NAMES, MISTRAL_SIGHTS
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.safetensors import read_weights, weight_files
from kvcast.checkpoints.tensor_names import fill_decoder, halves_from_pairs, reorder
from kvcast.checkpoints.unsupported import refuse_incomplete
from kvcast.errors import InputMissingError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.spec.position_encodings import Rotary
from kvcast.spec.sizes import MOST_LAYERS

_STEM = "consolidated"
# mistral-inference computes rotary angles for this many positions, whatever the model.
_POSITIONS = 128_000

_LAYER = "decoder.layers.{i}"
_FEED_FORWARD = "layers.{i}.feed_forward"
_NAMES: Mapping[str, Sequence[str]] = {
    **MISTRAL_NAMES,
    f"{_LAYER}.attention.qkv.weight": tuple(f"layers.{{i}}.attention.w{x}.weight" for x in "qkv"),
    f"{_LAYER}.feed_forward.router.weight": (f"{_FEED_FORWARD}.gate.weight",),
    f"{_LAYER}.feed_forward.gate_up": (
        f"{_FEED_FORWARD}.experts.{{e}}.w1.weight",
        f"{_FEED_FORWARD}.experts.{{e}}.w3.weight",
    ),
    f"{_LAYER}.feed_forward.down": (f"{_FEED_FORWARD}.experts.{{e}}.w2.weight",),
}
_ROTATED = (".attention.wq.weight", ".attention.wk.weight")
# Fields that change the model in ways that are not supported.
_OTHERS = ("llama_4_scaling", "lora", "quantization", "q_lora_rank")


def _dimensions(params: Fields) -> DecoderDimensions:
    if params.values.get("model_type") not in (None, "transformer"):
        raise params.error(f"model_type {params.values['model_type']!r} is not supported")
    for name in _OTHERS:
        if params.values.get(name):
            raise params.error(f"{name} is not supported")
    experts = params.group("moe")
    head_dim = params.whole("head_dim")
    return params.make(
        DecoderDimensions,
        architecture="mistral" if experts is None else "mixtral",
        vocab_size=params.whole("vocab_size"),
        width=params.whole("dim"),
        inner=params.whole("hidden_dim"),
        heads=params.whole("n_heads"),
        kv_heads=params.whole("n_kv_heads"),
        head_dim=head_dim,
        windows=_windows(params),
        max_positions=params.whole(
            "max_position_embeddings", params.whole("max_seq_len", _POSITIONS)
        ),
        rotary=_rotary(params),
        norm_eps=params.positive("norm_eps"),
        attention_scale=head_dim**-0.5,
        tied=params.flag("tied_embeddings", False),
        experts=0 if experts is None else experts.whole("num_experts"),
        experts_per_token=0 if experts is None else experts.whole("num_experts_per_tok"),
    )


def _windows(params: Fields) -> tuple[int | None, ...]:
    """Each layer's window, from one value for all or a list that repeats; null is none."""
    layers = params.whole("n_layers", most=MOST_LAYERS)
    given = params.values.get("sliding_window")
    cycle = given if isinstance(given, list) else [given]
    if not cycle or layers % len(cycle):
        raise params.error(f"sliding_window must list a window for each of {layers} layers")
    each = [Fields(values={"sliding_window": window}, label=params.label) for window in cycle]
    windows = [
        None if layer.values["sliding_window"] is None else layer.whole("sliding_window")
        for layer in each
    ]
    return tuple(windows * (layers // len(cycle)))


def _rotary(params: Fields) -> Rotary:
    # The first model had a window and base 10,000, and its params.json does not name the base.
    usual = 1_000_000.0 if params.values.get("sliding_window") is None else 10_000.0
    base, yarn = params.positive("rope_theta", usual), params.group("yarn")
    if yarn is None:
        return params.make(Rotary, base=base)
    return yarn.make(
        Rotary,
        base=base,
        scaling="yarn",
        factor=yarn.positive("factor"),
        low_frequency=yarn.positive("alpha", 1.0),
        high_frequency=yarn.positive("beta", 32.0),
        trained_positions=yarn.whole("original_max_position_embeddings"),
        attention_factor=None if yarn.flag("apply_scale", True) else 1.0,
    )


def _tensors(folder: Path, dimensions: DecoderDimensions) -> LazyTensors:
    def halves(weight: NDArray[Any]) -> NDArray[Any]:
        return halves_from_pairs(weight, dimensions.head_dim)

    stored: dict[str, StoredTensor] = {
        name: reorder(tensor, halves) if name.endswith(_ROTATED) else tensor
        for name, tensor in read_weights(_weight_files(folder)).items()
        if not name.startswith(MISTRAL_SIGHTS)
    }
    return fill_decoder(dimensions, _NAMES, stored, str(folder))


def _weight_files(folder: Path) -> list[Path]:
    files = weight_files(folder, _STEM) or sorted(folder.glob(f"{_STEM}-*.safetensors"))
    if not files:
        refuse_incomplete(folder)
        raise InputMissingError(
            f"no {_STEM}.safetensors in {folder}: kvcast reads no pickled weights "
            f"({_STEM}.*.pth); fetch a revision of the model that has safetensors"
        )
    return files


def _tokenizer(folder: Path) -> Path:
    """tekken.json, or the newest tokenizer.model.v*."""
    if (folder / "tekken.json").is_file():
        return folder / "tekken.json"
    models = [path for path in folder.glob("tokenizer.model*") if path.is_file()]
    if not models:
        raise InputMissingError(
            f"no tekken.json or tokenizer.model* in {folder}: fetch the model's tokenizer too"
        )
    # By length first: v11 is newer than v3, and any version is newer than none.
    return max(models, key=lambda path: (len(path.name), path.name))


def read_dimensions(params_path: Path) -> DecoderDimensions:
    return _dimensions(Fields(values=read_json_object(params_path), label=str(params_path)))


def _read(folder: Path) -> Checkpoint:
    dimensions = read_dimensions(folder / "params.json")
    tokenizer = _tokenizer(folder)
    # These tokenizers know which tokens end a generation.
    about = {"end_tokens": [], "bos_token": "", "eos_token": ""}
    return Checkpoint(
        dimensions=dimensions,
        tensors=_tensors(folder, dimensions),
        text={tokenizer.name: read_file(tokenizer), "text.json": json.dumps(about).encode()},
        source=f"Mistral folder {folder}",
    )


def _detect(folder: Path) -> bool:
    """Mistral publishes both layouts; Hugging Face's tokenizer needs no further library."""
    own = (folder / "params.json").is_file() and any(folder.glob(f"{_STEM}*"))
    return own and not any(folder.glob("model*.safetensors"))


READER = CheckpointReader(
    name=f"Mistral (params.json, {_STEM}.safetensors, tekken.json or tokenizer.model.v3)",
    detect=_detect,
    files=lambda folder: [
        require_file(folder / "params.json", "it gives the model's dimensions: fetch it too"),
        _tokenizer(folder),
        *_weight_files(folder),
    ],
    read=_read,
    types={DecoderDimensions: ("mistral", "mixtral")},
)
