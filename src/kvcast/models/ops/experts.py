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
    normalised: bool = True,  # whether weights are scores over the sum of the chosen ones
    alpha: float = 0.0,  # with a limit, factor on gates in their sigmoid
    limit: float = 0.0,  # above 0, of gates, and of up on both sides, to which 1 is added
    gate_up_bias: Tensor | None = None,  # [e, 2 * i]
    down_bias: Tensor | None = None,  # [e, x]
    activation: str = "silu",  # of gates, "silu", "gelu" or "gelu_tanh"
    scales: Tensor | None = None,  # [e], factors on experts' weights; None: 1
    score: str = "softmax",  # of logits, or "sigmoid" of each
    choice_bias: Tensor | None = None,  # [e], added to scores for the choice alone
    groups: list[int] | None = None,  # as `route`'s
    epsilon: float = 0.0,  # added to the sum of sigmoids
    scale: float = 1.0,  # factor on all weights
) -> Tensor:  # [n, x]
    """Send each token through its best experts and return the weighted sum of their outputs."""
    weights_nk, chosen_nk = route(
        router_logits, per_token, normalised, scales, score, choice_bias, groups, epsilon, scale
    )
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


def route(
    logits_ne: Tensor,
    per_token: int,
    normalised: bool = True,
    scales: Tensor | None = None,
    score: str = "softmax",
    choice_bias: Tensor | None = None,
    groups: list[int] | None = None,
    epsilon: float = 0.0,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return weights [n, k] and the experts [n, k] that they are of; of equal ones the first.

    `groups` of equally many experts that are next to each other: how many there are, how many a
    token chooses from, and how many of its highest scores make, in sum, a group's score.
    """
    is_softmax = score == "softmax"
    scores_ne = logits_ne.softmax(dim=-1) if is_softmax else logits_ne.sigmoid()
    # Logits are in the order of scores, where nothing is added to these.
    ranks_ne = logits_ne if choice_bias is None and groups is None else scores_ne
    if choice_bias is not None:
        ranks_ne = ranks_ne + choice_bias
    if groups is not None:
        ranks_ne = _of_best_groups(ranks_ne, *groups)
    chosen_nk = highest(ranks_ne, per_token)
    weights_nk = scores_ne.gather(-1, chosen_nk)
    if normalised and is_softmax:
        weights_nk = logits_ne.gather(-1, chosen_nk).softmax(dim=-1)
    elif normalised:
        weights_nk = weights_nk / (weights_nk.sum(-1, keepdim=True) + epsilon)
    if scales is not None:
        weights_nk = weights_nk * scales[chosen_nk]
    return weights_nk * scale, chosen_nk


def _of_best_groups(ranks_ne: Tensor, groups: int, per_token: int, best: int) -> Tensor:
    ranks_ngm = ranks_ne.unflatten(-1, (groups, -1))
    scores_ng = ranks_ngm.topk(best, dim=-1).values.sum(-1)
    chosen_ng = torch.zeros_like(scores_ng).scatter(-1, highest(scores_ng, per_token), 1.0)
    return torch.where(chosen_ng[..., None] > 0, ranks_ngm, -torch.inf).flatten(-2)


def highest(scores: Tensor, count: int) -> Tensor:
    """Return the indices of the highest scores, the highest first; of equal ones the first."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]


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
    score: str = "softmax",  # noqa: ARG001
    choice_bias: Tensor | None = None,  # noqa: ARG001
    groups: list[int] | None = None,  # noqa: ARG001
    epsilon: float = 0.0,  # noqa: ARG001
    scale: float = 1.0,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(hidden)
