"""Mixture of experts as a custom operator, since the tokens per expert depend on the data.

Letters in shapes: n tokens, e experts, x width, i inner width.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}


@torch.library.custom_op("kvcast::mixture_of_experts", mutates_args=())
def mixture_of_experts(
    hidden: Tensor,  # [n, x]
    router_logits: Tensor,  # [n, e]
    gate_up: Tensor,  # [e, 2 * i, x], gate above up
    down: Tensor,  # [e, x, i]
    per_token: int,  # experts per token
    normalised: bool = True,  # whether weights are a softmax over chosen logits, not all
    alpha: float = 0.0,  # with a limit, factor on gates in their sigmoid
    limit: float = 0.0,  # above 0, of gates, and of up on both sides, to which 1 is added
    gate_up_bias: Tensor | None = None,  # [e, 2 * i]
    down_bias: Tensor | None = None,  # [e, x]
    activation: str = "silu",  # of gates, "silu", "gelu" or "gelu_tanh"
    scales: Tensor | None = None,  # [e], factors on experts' weights; None: 1
) -> Tensor:  # [n, x]
    """Send each token through its best experts and return the weighted sum of their outputs."""
    logits_nk, chosen_nk = router_logits.topk(per_token, dim=-1)
    weights_nk = logits_nk.softmax(dim=-1)
    if not normalised:
        weights_nk = router_logits.softmax(dim=-1).gather(-1, chosen_nk)
    if scales is not None:
        weights_nk = weights_nk * scales[chosen_nk]
    mixed = torch.zeros_like(hidden)
    for expert in chosen_nk.unique().tolist():
        tokens, place = (chosen_nk == expert).nonzero(as_tuple=True)
        product = hidden[tokens] @ gate_up[expert].T
        if gate_up_bias is not None:
            product = product + gate_up_bias[expert]
        answer = apply_gate(product, alpha, limit, activation) @ down[expert].T
        if down_bias is not None:
            answer = answer + down_bias[expert]
        mixed.index_add_(0, tokens, answer * weights_nk[tokens, place, None])
    return mixed


def apply_gate(gate_up: Tensor, alpha: float, limit: float, activation: str = "silu") -> Tensor:
    """[..., 2 * i] to [..., i]; GPT-OSS's with a limit."""
    gate, up = gate_up.chunk(2, dim=-1)
    if not limit:
        return _ACTIVATIONS[activation](gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (up + 1)


@mixture_of_experts.register_fake
def _(
    hidden: Tensor,
    router_logits: Tensor,  # noqa: ARG001
    gate_up: Tensor,  # noqa: ARG001
    down: Tensor,  # noqa: ARG001
    per_token: int,  # noqa: ARG001
    normalised: bool = True,  # noqa: ARG001
    alpha: float = 0.0,  # noqa: ARG001
    limit: float = 0.0,  # noqa: ARG001
    gate_up_bias: Tensor | None = None,  # noqa: ARG001
    down_bias: Tensor | None = None,  # noqa: ARG001
    activation: str = "silu",  # noqa: ARG001
    scales: Tensor | None = None,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(hidden)
