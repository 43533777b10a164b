"""A checkpoint's tensors under the names that other programs give them.

One function for each scheme: openai-whisper's, which whisper.cpp shares, and transformers'. Knows
names and how stacked tensors come apart; nothing of what becomes of them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError

Tensors = Iterator[tuple[str, NDArray[Any]]]

_LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)\.(weight|bias)")


@dataclass(frozen=True, kw_only=True)
class _Scheme:
    """Names for modules of a layer and for all else; `key` ends the name of a key projection."""

    layers: str
    modules: Mapping[str, Sequence[str]]
    others: Mapping[str, str]
    key: str

    def rename(self, tensors: Mapping[str, NDArray[Any]]) -> Tensors:
        for name in tensors:
            for theirs, part in self._parts(name, tensors[name]):
                if not theirs.endswith(f"{self.key}.bias"):
                    yield theirs, part
                elif part.any():
                    raise KvcastError(f"{name} gives keys a bias, which no other Whisper knows")

    def _parts(self, name: str, tensor: NDArray[Any]) -> Tensors:
        layer = _LAYER.fullmatch(name)
        if layer is None:
            yield self.others.get(name, name), tensor
            return
        side, index, module, leaf = layer.groups()
        theirs = self.modules[module]
        for target, part in zip(theirs, np.split(tensor, len(theirs)), strict=True):
            yield f"{side}.{self.layers}.{index}.{target}.{leaf}", part


_OPENAI = _Scheme(
    layers="blocks",
    modules={
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
    },
    others={
        "encoder.positions": "encoder.positional_embedding",
        "encoder.norm.weight": "encoder.ln_post.weight",
        "encoder.norm.bias": "encoder.ln_post.bias",
        "decoder.embedding.weight": "decoder.token_embedding.weight",
        "decoder.positions": "decoder.positional_embedding",
        "decoder.norm.weight": "decoder.ln.weight",
        "decoder.norm.bias": "decoder.ln.bias",
    },
    key="attn.key",
)
_TRANSFORMERS = _Scheme(
    layers="layers",
    modules={
        "attention_norm": ["self_attn_layer_norm"],
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.out": ["self_attn.out_proj"],
        "self_attention_norm": ["self_attn_layer_norm"],
        "self_attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attention.out": ["self_attn.out_proj"],
        "cross_attention_norm": ["encoder_attn_layer_norm"],
        "cross_attention.query": ["encoder_attn.q_proj"],
        "cross_attention.key_value": ["encoder_attn.k_proj", "encoder_attn.v_proj"],
        "cross_attention.out": ["encoder_attn.out_proj"],
        "feed_forward_norm": ["final_layer_norm"],
        "feed_forward.up": ["fc1"],
        "feed_forward.down": ["fc2"],
    },
    others={
        "encoder.positions": "encoder.embed_positions.weight",
        "encoder.norm.weight": "encoder.layer_norm.weight",
        "encoder.norm.bias": "encoder.layer_norm.bias",
        "decoder.embedding.weight": "decoder.embed_tokens.weight",
        "decoder.positions": "decoder.embed_positions.weight",
        "decoder.norm.weight": "decoder.layer_norm.weight",
        "decoder.norm.bias": "decoder.layer_norm.bias",
    },
    key="k_proj",
)


def openai_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under openai-whisper's name, without the keys' biases, which are zero.

    Raises KvcastError if one is not.
    """
    return _OPENAI.rename(tensors)


def transformers_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under the name in transformers' WhisperModel, as `openai_tensors` does."""
    return _TRANSFORMERS.rename(tensors)
