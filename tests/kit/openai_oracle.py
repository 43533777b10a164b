"""openai-whisper fed with a checkpoint's canonical tensors: the oracle for decoding."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from whisper.model import ModelDimensions

import whisper
from kit.openai_tokenizers import openai_tokenizer
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.families.whisper import WhisperDimensions

# Canonical module to openai-whisper's; several are stacked in that order along the first axis.
_LAYER = {
    "attention_norm": ["attn_ln"],
    "attention.qkv": ["attn.query", "attn.key", "attn.value"],
    "attention.out": ["attn.out"],
    "self_attention_norm": ["attn_ln"],
    "self_attention.qkv": ["attn.query", "attn.key", "attn.value"],
    "self_attention.out": ["attn.out"],
    "cross_attention_norm": ["cross_attn_ln"],
    "cross_attention.query": ["cross_attn.query"],
    "cross_attention.key_value": ["cross_attn.key", "cross_attn.value"],
    "cross_attention.out": ["cross_attn.out"],
    "feed_forward_norm": ["mlp_ln"],
    "feed_forward.up": ["mlp.0"],
    "feed_forward.down": ["mlp.2"],
}
_OUTSIDE = {
    "encoder.positions": "encoder.positional_embedding",
    "encoder.norm.weight": "encoder.ln_post.weight",
    "encoder.norm.bias": "encoder.ln_post.bias",
    "decoder.embedding.weight": "decoder.token_embedding.weight",
    "decoder.positions": "decoder.positional_embedding",
    "decoder.norm.weight": "decoder.ln.weight",
    "decoder.norm.bias": "decoder.ln.bias",
}


class Oracle:
    """One model; asked twice the same, it remembers."""

    def __init__(self, checkpoint: WhisperCheckpoint) -> None:
        self._model = openai_model(checkpoint.dimensions, checkpoint.tensors)
        openai_tokenizer(self._model.is_multilingual)
        self._transcripts: dict[str, dict[str, Any]] = {}

    def transcribe(self, name: str, samples: np.ndarray, **options: Any) -> dict[str, Any]:
        """Transcribe samples that go by a name; options are kvcast's, less fallback.

        Segments that openai-whisper emptied, which kvcast does not yield, are left out.
        """
        key = repr((name, sorted(options.items())))
        if key not in self._transcripts:
            found = self._model.transcribe(
                torch.from_numpy(samples), fp16=False, verbose=None, **_renamed_options(options)
            )
            found["segments"] = [segment for segment in found["segments"] if segment["text"]]
            self._transcripts[key] = found
        return self._transcripts[key]


def _renamed_options(options: Mapping[str, Any]) -> dict[str, Any]:
    theirs = dict(options)
    beam = theirs.pop("beam", 1)
    start, end = theirs.pop("clip_start", 0.0), theirs.pop("clip_end", None)
    theirs["beam_size"] = None if beam == 1 else beam
    theirs.setdefault("clip_timestamps", [start] if end is None else [start, end])
    theirs["without_timestamps"] = not theirs.pop("timestamps", True)
    theirs["sample_len"] = theirs.pop("max_new_tokens", None)
    return theirs


def openai_model(
    dimensions: WhisperDimensions, tensors: Mapping[str, np.ndarray]
) -> whisper.Whisper:
    model = whisper.Whisper(
        ModelDimensions(
            n_mels=dimensions.n_mels,
            n_audio_ctx=dimensions.source_positions,
            n_audio_state=dimensions.d_model,
            n_audio_head=dimensions.encoder_heads,
            n_audio_layer=dimensions.encoder_layers,
            n_vocab=dimensions.vocab_size,
            n_text_ctx=dimensions.target_positions,
            n_text_state=dimensions.d_model,
            n_text_head=dimensions.decoder_heads,
            n_text_layer=dimensions.decoder_layers,
        )
    )
    state = {}
    for name in tensors:
        state |= _renamed(name, torch.from_numpy(np.array(tensors[name], np.float32)))
    # Whisper's key projections have no bias; what a file stores for one is zero.
    for name in [n for n in state if n.endswith("attn.key.bias")]:
        assert not state.pop(name).any()
    model.load_state_dict(state)
    heads = torch.zeros(dimensions.decoder_layers, dimensions.decoder_heads, dtype=torch.bool)
    for layer, head in dimensions.alignment_heads:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def _renamed(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    layer = re.fullmatch(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if layer is None:
        return {_OUTSIDE.get(name, name): tensor}
    side, index, module, kind = layer.groups()
    targets = _LAYER[module]
    return {
        f"{side}.blocks.{index}.{target}.{kind}": part
        for target, part in zip(targets, tensor.chunk(len(targets)), strict=True)
    }
