"""Feed-forward blocks: plain, gated, and mixtures of experts. Knows no model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, silu

from kvcast.models.ops.experts import mixture_of_experts


def _gelu_tanh(hidden: Tensor) -> Tensor:
    return gelu(hidden, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": silu,
}


class FeedForward(nn.Module):
    """Up-projection, activation, down-projection; by default with an exact GELU and biases."""

    def __init__(
        self, width: int, inner: int, activation: str = "gelu", *, bias: bool = True
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.up = nn.Linear(width, inner, bias=bias)
        self.down = nn.Linear(inner, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        return self.down(self.activation(self.up(hidden)))


class GatedFeedForward(nn.Module):
    """A gated linear unit and a down-projection (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(self.activation(gate) * up)


class Router(nn.Linear):
    """Scores the experts. A class of its own, so that it is not quantised: it is small."""


class ExpertsFeedForward(nn.Module):
    """Several gated blocks (SiLU); each token goes through the few that the router scores highest.

    Their weights are a softmax over the chosen experts' logits (Mixtral, arXiv:2401.04088,
    section 2.1).
    """

    def __init__(self, width: int, inner: int, experts: int, per_token: int) -> None:
        super().__init__()
        self.per_token = per_token
        self.router = Router(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(experts, 2 * inner, width))
        self.down = nn.Parameter(torch.empty(experts, width, inner))

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        flat_nx = hidden.flatten(0, -2)
        mixed = mixture_of_experts(
            flat_nx, self.router(flat_nx), self.gate_up, self.down, self.per_token
        )
        return mixed.view(hidden.shape)
