"""A decoder's tensors under the names of Hugging Face's folders and of GGUF files.

Both keep query, key and value apart, and gate and up, which are one tensor each here. Serves dense
models of the Llama kind: Llama, Mistral, Qwen 2 and Qwen 3. Knows nothing of how files store them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.spec.decoder import DecoderDimensions

Tensors = Iterator[tuple[str, NDArray[Any]]]

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)\.(weight|bias)")
_QKV = "attention.qkv"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """Names for modules of a layer and for all else."""

    layer: str
    modules: Mapping[str, Sequence[str]]
    others: Mapping[str, str]

    def rename(self, checkpoint: DecoderCheckpoint) -> Tensors:
        """Yield every tensor under its name, one by one."""
        for name in checkpoint.tensors:
            tensor = checkpoint.tensors[name]
            found = _LAYER.fullmatch(name)
            if found is None:
                yield self.others[name], tensor
                continue
            index, module, leaf = found.groups()
            theirs = self.modules[module]
            parts = _apart(tensor, module, checkpoint.dimensions, len(theirs))
            for target, part in zip(theirs, parts, strict=True):
                yield f"{self.layer.format(index)}.{target}.{leaf}", part


def _apart(
    tensor: NDArray[Any], module: str, dimensions: DecoderDimensions, count: int
) -> list[NDArray[Any]]:
    if module != _QKV:
        return np.split(tensor, count)
    queries = dimensions.heads * dimensions.head_dim
    return np.split(tensor, [queries, queries + dimensions.kv_heads * dimensions.head_dim])


HUGGING_FACE = Scheme(
    layer="model.layers.{}",
    modules={
        "attention_norm": ["input_layernorm"],
        _QKV: ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.out": ["self_attn.o_proj"],
        "attention.query_norm": ["self_attn.q_norm"],
        "attention.key_norm": ["self_attn.k_norm"],
        "feed_forward_norm": ["post_attention_layernorm"],
        "feed_forward.gate_up": ["mlp.gate_proj", "mlp.up_proj"],
        "feed_forward.down": ["mlp.down_proj"],
    },
    others={
        "decoder.embedding.weight": "model.embed_tokens.weight",
        "decoder.norm.weight": "model.norm.weight",
        "decoder.head.weight": "lm_head.weight",
    },
)
GGUF = Scheme(
    layer="blk.{}",
    modules={
        "attention_norm": ["attn_norm"],
        _QKV: ["attn_q", "attn_k", "attn_v"],
        "attention.out": ["attn_output"],
        "attention.query_norm": ["attn_q_norm"],
        "attention.key_norm": ["attn_k_norm"],
        "feed_forward_norm": ["ffn_norm"],
        "feed_forward.gate_up": ["ffn_gate", "ffn_up"],
        "feed_forward.down": ["ffn_down"],
    },
    others={
        "decoder.embedding.weight": "token_embd.weight",
        "decoder.norm.weight": "output_norm.weight",
        "decoder.head.weight": "output.weight",
    },
)


def model_type(dimensions: DecoderDimensions) -> str:
    """Return what Hugging Face calls a model of these dimensions, if it `is_common`."""
    if dimensions.query_key_norm:
        return "qwen3"
    if dimensions.qkv_bias and not dimensions.out_bias:
        return "qwen2"
    return "llama" if dimensions.windows[0] is None else "mistral"


def is_common(dimensions: DecoderDimensions) -> bool:
    """Tell whether the model is one that these names describe, without scaled rotation."""
    peculiar = (
        dimensions.experts,
        dimensions.post_norms,
        dimensions.attention_softcap,
        dimensions.logit_softcap,
        dimensions.window_rotary,
        len(set(dimensions.windows)) > 1,
        dimensions.rotary.scaling != "none",
        dimensions.embedding_scale != 1,
        dimensions.activation != "silu",
        not np.isclose(dimensions.attention_scale, dimensions.head_dim**-0.5),
        model_type(dimensions) != "mistral" and dimensions.windows[0] is not None,
    )
    return not any(peculiar)
