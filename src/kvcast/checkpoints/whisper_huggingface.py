"""Interprets Whispers in Hugging Face layout: config.json, tensor names, text files.

Tensors are named as in transformers' WhisperForConditionalGeneration. Knows nothing of how weights
are stored.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvcast.checkpoints.base import (
    Checkpoint,
    StoredTensor,
    generation_settings,
    read_json_object,
)
from kvcast.checkpoints.fields import Fields
from kvcast.checkpoints.huggingface_family import HuggingFaceFamily
from kvcast.checkpoints.tables import of_modules
from kvcast.checkpoints.whisper_files import check_preprocessor, tokenizer_json
from kvcast.checkpoints.whisper_names import (
    assemble,
    check_tied,
    sinusoids,
    whisper_dimensions,
    with_key_biases,
)
from kvcast.errors import KvcastError
from kvcast.families.whisper import WhisperDimensions

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
    """Read a model whose model_type is "whisper".

    Raises KvcastError, naming the file, for a configuration or a preprocessor that kvcast's Whisper
    does not support and for tensors that do not belong to the configuration; InputMissingError
    without a tokenizer.
    """
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
    """Read generation_config.json over config.json, where older models have these settings."""
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
