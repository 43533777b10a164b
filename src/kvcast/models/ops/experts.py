"""Mixture of experts as a custom operator, since the tokens per expert depend on the data.

Knows no model. Letters in shapes: n tokens, e experts, x width, i inner width.
"""

import torch
from torch import Tensor
from torch.nn.functional import silu


@torch.library.custom_op("kvcast::mixture_of_experts", mutates_args=())
def mixture_of_experts(
    hidden: Tensor,
    router_logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    per_token: int,
    normalised: bool = True,
) -> Tensor:
    """Send each token through its best experts and return the weighted sum of their outputs.

    Args:
        hidden: [n, x].
        router_logits: [n, e].
        gate_up: [e, 2 * i, x], gate above up.
        down: [e, x, i].
        per_token: experts per token.
        normalised: whether their weights are a softmax over their logits; otherwise over all.

    Returns:
        [n, x].

    """
    logits_nk, chosen_nk = router_logits.topk(per_token, dim=-1)
    weights_nk = logits_nk.softmax(dim=-1)
    if not normalised:
        weights_nk = router_logits.softmax(dim=-1).gather(-1, chosen_nk)
    mixed = torch.zeros_like(hidden)
    for expert in chosen_nk.unique().tolist():
        tokens, place = (chosen_nk == expert).nonzero(as_tuple=True)
        gate, up = (hidden[tokens] @ gate_up[expert].T).chunk(2, dim=-1)
        answer = (silu(gate) * up) @ down[expert].T
        mixed.index_add_(0, tokens, answer * weights_nk[tokens, place, None])
    return mixed


@mixture_of_experts.register_fake
def _(
    hidden: Tensor,
    router_logits: Tensor,  # noqa: ARG001
    gate_up: Tensor,  # noqa: ARG001
    down: Tensor,  # noqa: ARG001
    per_token: int,  # noqa: ARG001
    normalised: bool = True,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(hidden)
