"""SmoothQuant: makes a model's activations easier to quantise without changing its results.

A few channels of a hidden state are hundreds of times larger than the others, in every token. With
one scale for its whole input, an int8 product loses the others. So the output of each RMS norm is
divided by a factor per channel, and the matrix behind it is multiplied by the same factor. Only the
ranges change, and no computation is added (Xiao et al. 2022, arXiv:2211.10438, section 4).
Quantises nothing itself, and knows no runtime.

The ranges of activations are measured on random tokens, since which channels stand out depends on
the weights. With SmolLM2-135M, tokens of an English text gave the same perplexity within half a
percent.

SmolLM2-135M on 2,048 tokens of English, prefilled in chunks of 512: perplexity 9.21 in fp32; 10.9
with all products in int8 and one scale for their input; 9.58 with the feed-forward's second
product in blocks; 9.28 with smoothing as well.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.runtimes.lowering.calibration import run_random_tokens

# How much of the quantisation difficulty moves from activations to weights: 0 none, 1 all.
_STRENGTH = 0.65
_LEAST = 1e-5


@torch.no_grad()
def smooth(programs: TorchModel) -> None:
    """Rescale norms and the matrices behind them in place; together they compute the same."""
    pairs = list(_pairs(programs["decode"]))
    with _largest_inputs(matrix for _, matrix in pairs) as largest:
        run_random_tokens(programs)
    for gain_x, matrix in pairs:
        magnitude_x = matrix.weight.abs().amax(dim=0).clamp(min=_LEAST)
        input_x = largest[matrix].clamp(min=_LEAST)
        ratios_x = input_x**_STRENGTH / magnitude_x ** (1 - _STRENGTH)
        # A factor common to all channels would smooth nothing.
        factors_x = ratios_x / ratios_x.log().mean().exp()
        gain_x.div_(factors_x)
        matrix.weight.mul_(factors_x)


def _pairs(decode: TorchProgram) -> Iterator[tuple[Tensor, nn.Linear]]:
    """Yield the gains of norms, each with the only matrix that reads the norm, but for the head."""
    steps = decode.program.steps
    head = decode.program.last_product("logits")
    for step in steps:
        readers = [other for other in steps if step.name in other.reads]
        if step.operation == "rms_norm" and len(readers) == 1:
            (reader,) = readers
            if reader.operation == "linear" and reader is not head:
                gain_x = decode.get_parameter(step.arguments[1].name)
                yield gain_x, decode.matrix(reader.arguments[1].name)  # type: ignore[misc]


@contextmanager
def _largest_inputs(matrices: Iterable[nn.Linear]) -> Iterator[dict[nn.Linear, Tensor]]:
    """Record the largest magnitude [width] of the inputs of each matrix."""
    largest: dict[nn.Linear, Tensor] = {}

    def watch(matrix: nn.Linear, arguments: tuple[Tensor]) -> None:
        peaks = arguments[0].abs().flatten(0, -2).amax(dim=0)
        largest[matrix] = torch.maximum(largest[matrix], peaks) if matrix in largest else peaks

    hooks = [matrix.register_forward_pre_hook(watch) for matrix in matrices]
    try:
        yield largest
    finally:
        for hook in hooks:
            hook.remove()
