"""Random Whispers with the proportions of published ones, in their publishers' file layouts.

Layers, heads, mel bins and vocabulary are the published ones; heads are narrow.
"""

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from kit.openai_whisper import openai_tokenizer_json

HEAD_DIM = 8


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes that differ among published models."""

    encoder_layers: int
    decoder_layers: int
    heads: int
    n_mels: int = 80
    languages: int = 99  # 0 is English only
    # tokens of a fine-tune: special or not
    added: Mapping[str, bool] = field(default_factory=dict)
    padding: int = 0  # rows of the embedding that mean nothing
    source_positions: int = 1500

    @property
    def tokenizer_json(self) -> bytes:
        tokenizer = json.loads(openai_tokenizer_json(bool(self.languages), self.languages or 99))
        first = 1 + max(entry["id"] for entry in tokenizer["added_tokens"])
        tokenizer["added_tokens"] += [
            {"id": token, "content": text, "special": special}
            for token, (text, special) in enumerate(self.added.items(), start=first)
        ]
        return json.dumps(tokenizer).encode()

    @property
    def vocab_size(self) -> int:
        named = 51766 + self.languages if self.languages else 51864
        return named + len(self.added) + self.padding


LARGE = {"encoder_layers": 32, "heads": 20}
PUBLISHED = {
    "large-v2": Shape(decoder_layers=32, **LARGE),
    "large-v3": Shape(decoder_layers=32, n_mels=128, languages=100, **LARGE),
    "large-v3-turbo": Shape(decoder_layers=4, n_mels=128, languages=100, **LARGE),
    "distil-large-v2": Shape(decoder_layers=2, **LARGE),
    "distil-large-v3": Shape(decoder_layers=2, n_mels=128, languages=100, **LARGE),
    "distil-medium.en": Shape(encoder_layers=24, decoder_layers=2, heads=16, languages=0),
    "distil-small.en": Shape(encoder_layers=12, decoder_layers=4, heads=12, languages=0),
}


def random_whisper(shape: Shape, seed: int = 0) -> WhisperForConditionalGeneration:
    """transformers' model with random parameters that all matter."""
    width = HEAD_DIM * shape.heads
    config = WhisperConfig(
        vocab_size=shape.vocab_size,
        num_mel_bins=shape.n_mels,
        d_model=width,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.heads,
        decoder_attention_heads=shape.heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=shape.source_positions,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 50257),
        suppress_tokens=[],
        begin_suppress_tokens=[220, 50257],
    )
    model = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            mean = 1 if name.endswith("norm.weight") else 0
            parameter.normal_(mean, 0.2, generator=generator)
    return model


def hugging_face(
    model: WhisperForConditionalGeneration, shape: Shape, folder: Path, **options: Any
) -> Path:
    """Write a Hugging Face folder with a tokenizer.json and a preprocessor_config.json."""
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_bytes(shape.tokenizer_json)
    _write_preprocessor(shape, folder)
    return folder


def ctranslate2(source: Path, shape: Shape, folder: Path) -> Path:
    """Convert a Hugging Face folder as people do: the tokenizer is a list of tokens."""
    converters = pytest.importorskip("ctranslate2.converters")
    converter = converters.TransformersConverter(str(source))
    tokenizer = json.loads(shape.tokenizer_json)
    ids = dict(tokenizer["model"]["vocab"])
    ids |= {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    library = types.SimpleNamespace(get_vocab=lambda: ids, additional_special_tokens=[])
    converter.load_tokenizer = lambda *_, **__: library
    converter.convert(str(folder))
    _write_preprocessor(shape, folder)
    assert not (folder / "tokenizer.json").exists()
    return folder


def _write_preprocessor(shape: Shape, folder: Path) -> None:
    fields = {
        "feature_size": shape.n_mels,
        "sampling_rate": 16000,
        "hop_length": 160,
        "chunk_length": 30,
        "n_fft": 400,
        "nb_max_frames": 3000,
        "feature_extractor_type": "WhisperFeatureExtractor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
