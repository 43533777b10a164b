"""Writes Hugging Face folders of Whispers and of decoder-only models, for programs that read them.

It inverts the readers by the readers' tables. Decoder-only models must have a configuration that is
like Llama's: dense ones without scaled rotation, as Llama, Mistral, Qwen 2 and Qwen 3 are. Tensors
are written in fp32.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.decoder.huggingface import SIZES, decoder_dimensions
from kvcast.checkpoints.decoder.tensor_names import NAMES
from kvcast.checkpoints.speech.whisper import DIMENSIONS as WHISPER_DIMENSIONS
from kvcast.checkpoints.speech.whisper import NAMES as WHISPER_NAMES
from kvcast.checkpoints.tensor_names import take_apart
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions

Tensors = Iterator[tuple[str, NDArray[Any]]]
TOKENIZER = "tokenizer.json"
_HEAD = "lm_head.weight"


def write_huggingface(checkpoint: Checkpoint, folder: Path) -> None:
    """Fill `folder`, which is made unless it exists.

    A decoder-only model must be `is_like_llama` and have a tokenizer.json.
    """
    _WRITERS[checkpoint.family.name](checkpoint, folder)


def write_folder(
    folder: Path, tensors: Iterable[tuple[str, NDArray[Any]]], **files: Mapping[str, Any]
) -> None:
    """Write tensors by name in fp32, and JSON files by their names without the ending."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name, fields in files.items():
        (folder / f"{name}.json").write_text(json.dumps(fields), encoding="utf-8")
    whole = {name: np.array(tensor, np.float32) for name, tensor in tensors}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def model_type(dimensions: DecoderDimensions) -> str:
    """Return Hugging Face's model_type for these dimensions, if they are `is_like_llama`."""
    if dimensions.query_key_norm:
        return "qwen3"
    if dimensions.qkv_bias and not dimensions.out_bias:
        return "qwen2"
    return "llama" if dimensions.windows[0] is None else "mistral"


def is_like_llama(dimensions: DecoderDimensions) -> bool:
    """Return whether a configuration written here is complete: reading it gives the same model."""
    if dimensions.rotary is None:
        return False
    config = _decoder_config(dimensions)
    same = replace(dimensions, architecture=config["model_type"])
    return decoder_dimensions(config, "what would be written") == same


def transformers_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield a Whisper's tensors as transformers' WhisperModel names them; it has no keys' biases.

    Raises KvcastError for a bias of keys that is not zero.
    """
    for name, tensor in take_apart(tensors, WHISPER_NAMES):
        if not name.endswith("k_proj.bias"):
            yield name, tensor
        elif tensor.any():
            raise KvcastError(f"{name}: a bias of keys, which no other Whisper has")


def _decoder_config(dimensions: DecoderDimensions) -> dict[str, Any]:
    kind = model_type(dimensions)
    return {
        "model_type": kind,
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "dtype": "float32",
        **{theirs: getattr(dimensions, ours) for ours, theirs in SIZES.items()},
        "num_hidden_layers": dimensions.layers,
        "sliding_window": dimensions.windows[0],
        "rope_theta": dimensions.rotary and dimensions.rotary.base,
        "rms_norm_eps": dimensions.norm_eps,
        "hidden_act": "silu",
        "attention_bias": dimensions.out_bias,
        "tie_word_embeddings": dimensions.tied,
    }


def _write_decoder(checkpoint: Checkpoint, folder: Path) -> None:
    dimensions, about = checkpoint.dimensions, json.loads(checkpoint.text["text.json"])
    end = (about["end_tokens"] or [0])[0]
    special = {name: about[name] for name in ("bos_token", "eos_token") if about[name]}
    keys = dimensions.kv_heads * dimensions.head_dim
    parts = take_apart(checkpoint.tensors, NAMES, keys)
    write_folder(
        folder,
        ((name if name == _HEAD else f"model.{name}", tensor) for name, tensor in parts),
        config=_decoder_config(dimensions) | {"bos_token_id": end, "eos_token_id": end},
        tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **special},
        tokenizer=json.loads(checkpoint.text[TOKENIZER]),
    )


def _write_whisper(checkpoint: Checkpoint, folder: Path) -> None:
    sizes, tokenizer = checkpoint.dimensions, json.loads(checkpoint.text["tokenizer.json"])
    texts = {added["id"]: added["content"] for added in tokenizer["added_tokens"]}
    ids = {text: token for token, text in texts.items()}
    special = {f"{role}_token_id": ids["<|endoftext|>"] for role in ("bos", "eos", "pad")}
    special["decoder_start_token_id"] = ids["<|startoftranscript|>"]
    generation = dict(checkpoint.generation)
    languages = generation.pop("language_tokens", None)
    # With this field, transformers begins with a language, which English-only models do not know.
    if languages and sizes.vocab_size >= 51865:
        generation["lang_to_id"] = {texts[token]: token for token in languages}
    write_folder(
        folder,
        ((f"model.{name}", tensor) for name, tensor in transformers_tensors(checkpoint.tensors)),
        config={
            "model_type": "whisper",
            "architectures": ["WhisperForConditionalGeneration"],
            "dtype": "float32",
            **{theirs: getattr(sizes, ours) for ours, theirs in WHISPER_DIMENSIONS.items()},
            "encoder_ffn_dim": 4 * sizes.d_model,
            "decoder_ffn_dim": 4 * sizes.d_model,
            **special,
        },
        generation_config={**special, **generation, "alignment_heads": sizes.alignment_heads},
        tokenizer=tokenizer,
    )


_WRITERS: Mapping[str, Callable[[Any, Path], None]] = {
    "decoder": _write_decoder,
    "whisper": _write_whisper,
}
