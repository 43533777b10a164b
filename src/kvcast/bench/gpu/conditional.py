"""Whisper's decode with `kvcast.conditional`'s cross-attention: one program, torch.cond on a flag.

The same weights as the two programs, so the same tokens.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from kvcast.nn.attention import CrossAttention


class Conditional(nn.Module):
    """Like `kvcast.programs.whisper.Decode`, from an encoder's output in place of cross caches.

    The first call projects it and later ones read what it left, so a text after another needs the
    same source.
    """

    def __init__(self, decode: nn.Module, source_btx: Tensor) -> None:
        super().__init__()
        shared = {id(weight): weight for weight in decode.parameters()}
        self.decode = copy.deepcopy(decode, shared)
        layers: Any = self.decode.decoder.layers  # type: ignore[union-attr]
        for layer in layers:
            layer.cross_attention = _Cached(layer.cross_attention, source_btx)

    def forward(
        self, tokens_rs: Tensor, lengths: Tensor, offsets: Tensor, caches: Any, source_btx: Tensor
    ) -> Any:
        """Logits and caches; see there."""
        return self.decode(tokens_rs, lengths, offsets, caches, [(source_btx,)] * len(caches))


class _Cached(nn.Module):
    def __init__(self, cross: CrossAttention, source_btx: Tensor) -> None:
        super().__init__()
        from kvcast.conditional.cross_attention import CachedCrossAttention

        rows, positions, _ = source_btx.shape
        self.cached = CachedCrossAttention(
            _as_transformers_has_it(cross), rows=rows, source_positions=positions
        )

    def forward(self, hidden_rsx: Tensor, source_btx: Tensor) -> Tensor:
        mixed: Tensor = self.cached(hidden_rsx, source_btx)[0]
        return mixed


def _as_transformers_has_it(cross: CrossAttention) -> nn.Module:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperAttention

    heads = cross.heads
    with torch.device("meta"):
        attention: nn.Module = WhisperAttention(
            embed_dim=heads.width, num_heads=heads.count, config=WhisperConfig()
        )
    key, value = (
        _linear(*part)
        for part in zip(cross.key_value.weight.chunk(2), cross.key_value.bias.chunk(2), strict=True)
    )
    attention.q_proj, attention.k_proj = cross.query, key
    attention.v_proj, attention.out_proj = value, cross.out
    return attention.eval()


def _linear(weight_oi: Tensor, bias_o: Tensor) -> nn.Linear:
    with torch.device("meta"):
        made = nn.Linear(weight_oi.shape[1], weight_oi.shape[0])
    # Copies, since what a branch of torch.cond is given must not overlap.
    made.load_state_dict({"weight": weight_oi.clone(), "bias": bias_o.clone()}, assign=True)
    return made.requires_grad_(requires_grad=False)
