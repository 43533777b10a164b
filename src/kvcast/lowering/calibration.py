"""What a decoder-only model computes for random tokens: how large its numbers get.

Which channels stand out, and by how much, is the weights' doing more than the text's, so no text
is needed and every model gets the same.
"""

import torch
from torch import Tensor

from kvcast.programs.decoder import DecoderPrograms
from kvcast.programs.unilm import UnilmPrograms

_TOKENS = 256


@torch.no_grad()
def run_random_tokens(programs: DecoderPrograms | UnilmPrograms) -> list[tuple[Tensor, Tensor]]:
    """Decode one row of them; return each layer's key and value [1, kv_heads, tokens, d]."""
    dimensions = programs.dimensions
    count = min(_TOKENS, dimensions.max_positions)
    tokens = torch.randint(
        dimensions.vocab_size, (1, count), generator=torch.Generator().manual_seed(0)
    )
    shape = (1, dimensions.kv_heads, count, dimensions.head_dim)
    caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in dimensions.windows]
    programs.decode(tokens, torch.zeros(1, dtype=torch.int32), torch.tensor([0]), caches)
    return caches
