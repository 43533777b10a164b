"""Runs a decoder-only model on random tokens, to see how large its activations get.

Which channels stand out, and by how much, depends on the weights more than on the text, so no text
is needed and every model gets the same tokens.
"""

import torch
from torch import Tensor

from kvcast.programs.decoder import DecoderPrograms
from kvcast.programs.unilm import UnilmPrograms

_TOKENS = 256


@torch.no_grad()
def run_random_tokens(programs: DecoderPrograms | UnilmPrograms) -> list[tuple[Tensor, Tensor]]:
    """Decode one row of random tokens; return each layer's keys and values [1, kv_heads, s, d]."""
    dimensions = programs.dimensions
    count = min(_TOKENS, dimensions.max_positions)
    tokens = torch.randint(
        dimensions.vocab_size, (1, count), generator=torch.Generator().manual_seed(0)
    )
    shape = (1, dimensions.kv_heads, count, dimensions.head_dim)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in dimensions.windows]
    programs.decode(tokens, torch.zeros(1, dtype=torch.int32), torch.tensor([0]), caches)
    return caches
