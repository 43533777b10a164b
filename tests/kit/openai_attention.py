"""What openai-whisper's cross-attention makes of a random model's weights."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from whisper.model import disable_sdpa

from kit.openai_oracle import openai_model
from kvcast.models.programs.whisper import WhisperPrograms
from kvcast.runtimes.base import Float32, Int64


def openai_attention(
    programs: WhisperPrograms, features_mt: Float32, tokens_s: Int64
) -> tuple[Float32, Float32]:
    """Scores [heads, s, t] of the alignment heads, and logits [s, vocab].

    openai-whisper has no biases of keys. They add the same to all scores of a query, so the model's
    results are the same without, and scores are to be compared as `centred`.
    """
    dimensions = programs.dimensions
    model = openai_model(dimensions, _without_key_biases(programs))
    products: dict[int, Float32] = {}

    def keep(layer: int) -> Any:
        # As `find_alignment` in openai-whisper's timing.py.
        return lambda _module, _given, results: products.update({layer: results[-1][0].numpy()})

    for i, block in enumerate(model.decoder.blocks):
        block.cross_attn.register_forward_hook(keep(i))
    with torch.no_grad(), disable_sdpa():
        logits = model(torch.from_numpy(features_mt)[None], torch.from_numpy(tokens_s)[None])
    scores = np.stack([products[layer][head] for layer, head in dimensions.alignment_heads])
    return scores, logits[0].numpy()


def centred(scores_hst: Float32) -> Float32:
    """Scores without what all of a query have in common, which no softmax sees."""
    return scores_hst - scores_hst.mean(axis=-1, keepdims=True)


def _without_key_biases(programs: WhisperPrograms) -> dict[str, NDArray[Any]]:
    modules = {"encoder": programs.encode.encoder, "decoder": programs.decode.decoder}
    tensors = {
        f"{side}.{name}": tensor.numpy().copy()
        for side, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    width = programs.dimensions.d_model
    for name, tensor in tensors.items():
        if name.endswith("attention.qkv.bias"):
            tensor[width : 2 * width] = 0
        if name.endswith("key_value.bias"):
            tensor[:width] = 0
    return tensors
