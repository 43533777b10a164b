"""Reads Whisper in Hugging Face layout, and fills its tensors by a table of names.

Alignment heads place words in time. They were found by looking at published models: Hugging Face's
generation_config.json and CTranslate2's config.json may list them. openai-whisper has a table for
OpenAI's own models (`_ALIGNMENT_HEADS` in whisper/__init__.py), which holds here for models of the
same sizes, as fine-tuning keeps heads. For other models, such as a distilled one,
`WhisperDimensions` chooses. A distilled model's files often name its teacher's heads, of layers
that it does not have; these are dropped.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import (
    Checkpoint,
    LazyTensors,
    StoredTensor,
    generation_settings,
    read_json_object,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_text import HuggingFaceFamily
from kvcast.checkpoints.speech.whisper_tokenizer import check_preprocessor, tokenizer_json
from kvcast.checkpoints.tensor_names import NameTable, fill_evenly, of_modules, same, zeros
from kvcast.errors import KvcastError
from kvcast.families.whisper import Heads, WhisperDimensions, head_pairs

_ENCODER = "encoder.layers.{i}"
_DECODER = "decoder.layers.{i}"
_MODULES = {
    "encoder.conv1": ("encoder.conv1",),
    "encoder.conv2": ("encoder.conv2",),
    f"{_ENCODER}.attention_norm": (f"{_ENCODER}.self_attn_layer_norm",),
    f"{_ENCODER}.attention.qkv": tuple(f"{_ENCODER}.self_attn.{x}_proj" for x in "qkv"),
    f"{_ENCODER}.attention.out": (f"{_ENCODER}.self_attn.out_proj",),
    f"{_ENCODER}.feed_forward_norm": (f"{_ENCODER}.final_layer_norm",),
    f"{_ENCODER}.feed_forward.up": (f"{_ENCODER}.fc1",),
    f"{_ENCODER}.feed_forward.down": (f"{_ENCODER}.fc2",),
    "encoder.norm": ("encoder.layer_norm",),
    f"{_DECODER}.self_attention_norm": (f"{_DECODER}.self_attn_layer_norm",),
    f"{_DECODER}.self_attention.qkv": tuple(f"{_DECODER}.self_attn.{x}_proj" for x in "qkv"),
    f"{_DECODER}.self_attention.out": (f"{_DECODER}.self_attn.out_proj",),
    f"{_DECODER}.cross_attention_norm": (f"{_DECODER}.encoder_attn_layer_norm",),
    f"{_DECODER}.cross_attention.query": (f"{_DECODER}.encoder_attn.q_proj",),
    f"{_DECODER}.cross_attention.key_value": tuple(
        f"{_DECODER}.encoder_attn.{x}_proj" for x in "kv"
    ),
    f"{_DECODER}.cross_attention.out": (f"{_DECODER}.encoder_attn.out_proj",),
    f"{_DECODER}.feed_forward_norm": (f"{_DECODER}.final_layer_norm",),
    f"{_DECODER}.feed_forward.up": (f"{_DECODER}.fc1",),
    f"{_DECODER}.feed_forward.down": (f"{_DECODER}.fc2",),
    "decoder.norm": ("decoder.layer_norm",),
}
_EMBEDDING = "decoder.embed_tokens.weight"
_SOURCE_POSITIONS = "encoder.embed_positions.weight"
_HEAD = "proj_out.weight"
NAMES = {
    **of_modules(_MODULES),
    "encoder.positions": (_SOURCE_POSITIONS,),
    "decoder.embedding.weight": (_EMBEDDING,),
    "decoder.positions": ("decoder.embed_positions.weight",),
}
DIMENSIONS = {
    "n_mels": "num_mel_bins",
    "vocab_size": "vocab_size",
    "d_model": "d_model",
    "encoder_layers": "encoder_layers",
    "encoder_heads": "encoder_attention_heads",
    "decoder_layers": "decoder_layers",
    "decoder_heads": "decoder_attention_heads",
    "source_positions": "max_source_positions",
    "target_positions": "max_target_positions",
}
# Fixed in kvcast's Whisper, and the same in all published ones.
_FIXED = {"activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True}
_GENERATION = {
    "suppress_tokens": "suppress_tokens",
    "begin_suppress_tokens": "begin_suppress_tokens",
    "language_tokens": "language_tokens",
    "alignment_heads": "alignment_heads",
}


def _dimensions(config: Mapping[str, Any], label: str) -> WhisperDimensions:
    for name in DIMENSIONS.values():
        if type(config.get(name)) is not int:
            raise KvcastError(f"{label}: {name} is missing or not a whole number")
    Fields(values=config, label=label).require(_FIXED)
    inner = 4 * config["d_model"]
    for name in ("encoder_ffn_dim", "decoder_ffn_dim"):
        if inner > 0 and config.get(name, inner) != inner:
            raise KvcastError(
                f"{label}: {name} must be 4 times d_model, {inner}, not {config[name]!r}"
            )
    sizes = {ours: config[theirs] for ours, theirs in DIMENSIONS.items()}
    model = str(config.get("_name_or_path", ""))
    return whisper_dimensions(label, config.get("alignment_heads"), model, **sizes)


def read_whisper(
    folder: Path, config: Mapping[str, Any], stored: Mapping[str, StoredTensor]
) -> Checkpoint:
    generation = _generation(folder, config)
    named = {"alignment_heads": generation.get("alignment_heads")}
    dimensions = _dimensions({**config, **named}, str(folder / "config.json"))
    check_preprocessor(folder, dimensions.n_mels)
    # The prefix depends on the class that saved the model.
    stored = {name.removeprefix("model."): tensor for name, tensor in stored.items()}
    stored.setdefault(_SOURCE_POSITIONS, sinusoids(dimensions.d_model))
    stored = with_key_biases(stored)
    head = stored.pop(_HEAD, None)
    if head is not None and _EMBEDDING in stored:
        check_tied(head, stored[_EMBEDDING], str(folder))
    return Checkpoint(
        dimensions=dimensions,
        tensors=assemble(dimensions, NAMES, stored, str(folder)),
        text={"tokenizer.json": tokenizer_json(folder)},
        generation=generation,
        source=f"Hugging Face folder {folder}",
    )


def _generation(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    path = folder / "generation_config.json"
    fields = dict(config)
    if path.is_file():
        fields |= read_json_object(path)
    languages = fields.get("lang_to_id")
    if isinstance(languages, dict):
        fields["language_tokens"] = list(languages.values())
    return generation_settings(fields, _GENERATION, str(path))


WHISPER = HuggingFaceFamily(
    family=WhisperDimensions,
    model_types=("whisper",),
    dimensions=_dimensions,
    read=read_whisper,
    heads={_HEAD: (_EMBEDDING,)},
)


SOURCE_POSITIONS = 1500


def whisper_dimensions(
    label: str, named: object, model: str = "", **sizes: Any
) -> WhisperDimensions:
    """KvcastError, naming `label`, for impossible sizes; see `alignment_heads` for the others."""
    try:
        dimensions = WhisperDimensions(**sizes)
        return replace(dimensions, alignment_heads=alignment_heads(dimensions, named, model))
    except KvcastError as error:
        raise KvcastError(f"{label}: {error}") from None


def assemble(
    dimensions: WhisperDimensions,
    table: NameTable,
    stored: Mapping[str, StoredTensor],
    label: str,
) -> LazyTensors:
    layers = f"{dimensions.encoder_layers} and {dimensions.decoder_layers} layers"
    return fill_evenly(dimensions, table, stored, label, f"a Whisper model of {layers}")


def check_tied(head: StoredTensor, embedding: StoredTensor, label: str) -> None:
    if not same(head, embedding):
        raise KvcastError(f"{label}: the output head differs from the embedding: not a Whisper")


def with_key_biases(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Whisper-like layers lack key biases."""
    own = dict(stored)
    for name, weight in stored.items():
        if name.endswith(".k_proj.weight"):
            own.setdefault(name.replace("weight", "bias"), zeros(weight.shape[:1]))
    return own


def sinusoids(width: int) -> StoredTensor:
    """Position embeddings [1500, width] of the encoder, for files that leave them out.

    As in openai/whisper's model.py: sines and cosines over log-spaced timescales from 1 to 10,000.
    Raises KvcastError for a width that is odd or below 4.
    """
    if width < 4 or width % 2:
        raise KvcastError(f"no sinusoidal positions exist for a width of {width}")

    def read() -> NDArray[np.float32]:
        half = width // 2
        inverse = np.exp(-np.log(10000) / (half - 1) * np.arange(half, dtype=np.float32))
        angles = np.arange(SOURCE_POSITIONS, dtype=np.float32)[:, None] * inverse
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)

    return StoredTensor(shape=(SOURCE_POSITIONS, width), read=read)


# By encoder layers, decoder layers, decoder heads and whether there are many languages.
_OPENAI: Mapping[tuple[int, int, int, bool], Heads] = {
    # tiny.en, tiny
    (4, 4, 6, False): ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)),
    (4, 4, 6, True): ((2, 2), (3, 0), (3, 2), (3, 3), (3, 4), (3, 5)),
    # base.en, base
    (6, 6, 8, False): ((3, 3), (4, 7), (5, 1), (5, 5), (5, 7)),
    (6, 6, 8, True): ((3, 1), (4, 2), (4, 3), (4, 7), (5, 1), (5, 2), (5, 4), (5, 6)),
    # small.en, small
    (12, 12, 12, False): (
        *((6, 6), (7, 0), (7, 3), (7, 8), (8, 2), (8, 5), (8, 7), (9, 0), (9, 4), (9, 8)),
        *((9, 10), (10, 0), (10, 1), (10, 2), (10, 3), (10, 6), (10, 11), (11, 2), (11, 4)),
    ),
    (12, 12, 12, True): (
        *((5, 3), (5, 9), (8, 0), (8, 4), (8, 7), (8, 8), (9, 0), (9, 7), (9, 9), (10, 5)),
    ),
    # medium.en, medium
    (24, 24, 16, False): (
        *((11, 4), (14, 1), (14, 12), (14, 14), (15, 4), (16, 0), (16, 4), (16, 9), (17, 12)),
        *((17, 14), (18, 7), (18, 10), (18, 15), (20, 0), (20, 3), (20, 9), (20, 14), (21, 12)),
    ),
    (24, 24, 16, True): ((13, 15), (15, 4), (15, 15), (16, 1), (20, 0), (23, 4)),
    # large-v3-turbo
    (32, 4, 20, True): ((2, 4), (2, 11), (3, 3), (3, 6), (3, 11), (3, 14)),
}
# The large models have the same layers. The third alone has this many mel bins; of the other two
# only their names differ.
_LARGE, _LARGE_V3_MELS = (32, 32, 20, True), 128
_LARGE_V3 = (
    *((7, 0), (10, 17), (12, 18), (13, 12), (16, 1), (17, 14), (19, 11), (21, 4), (24, 1)),
    (25, 6),
)
_NAMED_LARGE: Mapping[str, Heads] = {
    "large-v1": (
        *((9, 19), (11, 2), (11, 4), (11, 17), (22, 7), (22, 11), (22, 17), (23, 2), (23, 15)),
    ),
    "large-v2": (
        *((10, 12), (13, 17), (16, 11), (16, 12), (16, 13), (17, 15), (17, 16), (18, 4), (18, 11)),
        *((18, 19), (19, 11), (21, 2), (21, 3), (22, 3), (22, 9), (22, 12), (23, 5), (23, 7)),
        *((23, 13), (25, 5), (26, 1), (26, 12), (27, 15)),
    ),
}


def alignment_heads(dimensions: WhisperDimensions, named: object, model: str = "") -> Heads:
    """Return the alignment heads of a model of these dimensions; none if unknown.

    `named`: [[layer, head], ...] in its files, KvcastError for anything else; `model`: its name
    there, such as "openai/whisper-large-v2".
    """
    listed = () if named is None else head_pairs(named)
    if listed and all(_has(dimensions, layer, head) for layer, head in listed):
        return tuple(dict.fromkeys(listed))
    kind = (
        dimensions.encoder_layers,
        dimensions.decoder_layers,
        dimensions.decoder_heads,
        dimensions.is_multilingual,
    )
    if kind != _LARGE:
        return _OPENAI.get(kind, ())
    if dimensions.n_mels == _LARGE_V3_MELS:
        return _LARGE_V3
    return next((heads for name, heads in _NAMED_LARGE.items() if model.endswith(name)), ())


def _has(dimensions: WhisperDimensions, layer: int, head: int) -> bool:
    return 0 <= layer < dimensions.decoder_layers and 0 <= head < dimensions.decoder_heads
