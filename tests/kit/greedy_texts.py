"""What kvcast's own operators write: the oracle of steps that keep their state on the device."""

import torch
from torch import nn
from torch.utils._pytree import tree_map

from kvcast.runtimes.aoti.greedy_step import GreedyState


@torch.no_grad()
def written_eagerly(decode: nn.Module, begun: GreedyState, new: int) -> list[int]:
    text = tree_map(torch.clone, begun)
    tokens = []
    for _ in range(new):
        offsets = torch.zeros(1, dtype=torch.int64)
        logits, *_ = decode(text.token_rs, text.lengths, offsets, text.caches, *text.given)
        text.token_rs.copy_(logits[:, -1].argmax(-1)[:, None])
        text.lengths.add_(1)
        tokens.append(int(text.token_rs))
    return tokens
