"""The plain feed-forward block."""

from torch import Tensor, nn
from torch.nn.functional import gelu


class FeedForward(nn.Module):
    """Widen, exact GELU, narrow."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] to the same shape."""
        return self.down(gelu(self.up(hidden)))
