"""Lets a decoder-only model write a text, to see the inputs of its matrices, with PyTorch.

Their mean squares follow a text a little more closely than their ranges do, for which random tokens
do (`random_tokens.py`).
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from kvcast.errors import KvcastError

_LENGTH = 256


class CalibrationModel(Protocol):
    """A model of self caches alone: `kvcast.models.executor.TorchModel`."""

    @property
    def dimensions(self) -> Any:
        """Sizes of a model whose layers are alike: `windows`, `kv_heads`, `head_dim`."""

    def __getitem__(self, name: str, /) -> Any:
        """Return a program; `decode` gives logits before anything else."""


@torch.no_grad()
def write_text(programs: CalibrationModel, tokens: int, seed: int) -> Tensor:
    """Let a model write texts, each from a random token on; return int64 [rows, s].

    Tokens are drawn from all that the model gives, as Liu et al. 2023 do (LLM-QAT,
    arXiv:2305.17888, section 3.1).

    Raises KvcastError if the model's logits are not all finite.
    """
    dimensions = programs.dimensions
    length = min(_LENGTH, dimensions.max_positions)
    rows = tokens // length
    generator = torch.Generator().manual_seed(seed)
    caches = _caches(programs, rows, length)
    tokens_rs = torch.randint(dimensions.vocab_size, (rows, length), generator=generator)
    for past in range(length - 1):
        logits_rpv, *_ = programs["decode"](
            tokens_rs[:, past : past + 1],
            torch.full((rows,), past, dtype=torch.int32),
            torch.tensor([0]),
            *caches,
        )
        if not logits_rpv.isfinite().all():
            raise KvcastError("the model's logits are not all finite: fetch its weights again")
        shares_rv = logits_rpv[:, 0].softmax(dim=-1)
        tokens_rs[:, past + 1] = torch.multinomial(shares_rv, 1, generator=generator)[:, 0]
    return tokens_rs


@torch.no_grad()
def decode_from_the_start(programs: CalibrationModel, tokens_rs: Tensor) -> None:
    """Decode whole rows, and ask for the logits of all positions: so all meet all matrices."""
    for tokens_1s in tokens_rs[:, None]:
        count = tokens_1s.shape[1]
        caches, lengths = _caches(programs, 1, count), torch.zeros(1, dtype=torch.int32)
        programs["decode"](tokens_1s, lengths, torch.arange(count), *caches)


def _caches(programs: CalibrationModel, rows: int, capacity: int) -> list[Tensor]:
    dimensions = programs.dimensions
    shape = (rows, dimensions.kv_heads, capacity, dimensions.head_dim)
    return [torch.zeros(shape) for _ in dimensions.windows for _ in range(2)]
