"""Smoothing: the same model with activations that int8 holds better.

A few numbers of a hidden state are hundreds of times larger than the others, in every token. A
product that quantises its input with one scale loses the others to them. What an RMS norm gives
is divided by a factor a channel, and the matrix behind it is multiplied by the same: nothing
changes but the ranges, and nothing is computed that was not before (SmoothQuant, Xiao et al. 2022,
arXiv:2211.10438, section 4).

How large activations get is measured on random tokens: which channels stand out is the weights'
doing. With SmolLM2-135M tokens of an English text gave the same perplexity within half a percent.

SmolLM2-135M on 2,048 tokens of English, prefilled in chunks of 512: perplexity 9.21 in fp32, 10.9
with all products in int8 under one scale for their input; 9.58 with the second product of the
feed-forward in blocks; 9.28 with this as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kvcast.lowering.calibration import run_random_tokens
from kvcast.models.decoder import Decoder
from kvcast.nn.feed_forward import GatedFeedForward
from kvcast.programs.decoder import DecoderPrograms

# How much of the difficulty goes from activations to weights: 0 none, 1 all.
_STRENGTH = 0.65
_LEAST = 1e-5


@torch.no_grad()
def smooth(programs: DecoderPrograms) -> None:
    """Change norms and the matrices behind them in place; what they compute together stays."""
    decoder = programs.decode.decoder
    with _largest_inputs(decoder) as largest:
        run_random_tokens(programs)
    for norm, matrix in _pairs(decoder):
        magnitude_x = matrix.weight.abs().amax(dim=0).clamp(min=_LEAST)
        input_x = largest[matrix].clamp(min=_LEAST)
        ratios_x = input_x**_STRENGTH / magnitude_x ** (1 - _STRENGTH)
        # What all channels have in common is no matter of smoothing.
        factors_x = ratios_x / ratios_x.log().mean().exp()
        norm.weight.div_(factors_x)
        matrix.weight.mul_(factors_x)


def _pairs(decoder: Decoder) -> Iterator[tuple[nn.RMSNorm, nn.Linear]]:
    """Norms with the matrix that alone reads them."""
    for layer in decoder.layers:
        yield layer.attention_norm, layer.attention.qkv  # type: ignore[misc, union-attr]
        if isinstance(layer.feed_forward, GatedFeedForward):
            yield layer.feed_forward_norm, layer.feed_forward.gate_up  # type: ignore[misc]


@contextmanager
def _largest_inputs(decoder: Decoder) -> Iterator[dict[nn.Linear, Tensor]]:
    """Collect the largest magnitude [width] that each matrix behind a norm is given."""
    largest: dict[nn.Linear, Tensor] = {}

    def watch(matrix: nn.Linear, arguments: tuple[Tensor]) -> None:
        found = arguments[0].abs().flatten(0, -2).amax(dim=0)
        largest[matrix] = torch.maximum(largest[matrix], found) if matrix in largest else found

    hooks = [matrix.register_forward_pre_hook(watch) for _, matrix in _pairs(decoder)]
    try:
        yield largest
    finally:
        for hook in hooks:
            hook.remove()
