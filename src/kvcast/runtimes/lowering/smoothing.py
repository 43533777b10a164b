"""SmoothQuant: makes a model's activations easier to quantise without changing its results.

A few channels of a hidden state are hundreds of times larger than the others, in every token. With
one scale for its whole input, an int8 product loses the others. So the output of each RMS norm is
divided by a factor per channel, and the matrix behind it is multiplied by the same factor. Only the
ranges change, and no computation is added (Xiao et al. 2022, arXiv:2211.10438, section 4).
Quantises nothing itself, and knows no runtime.

The ranges of activations are measured on random tokens (`random_tokens.py`). With SmolLM2-135M,
tokens of an English text gave the same perplexity within half a percent.

SmolLM2-135M on 2,048 tokens of English, prefilled in chunks of 512: perplexity 9.21 in fp32; 10.9
with all products in int8 and one scale for their input; 9.58 with the feed-forward's second
product in blocks; 9.28 with smoothing as well.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.lowering.random_tokens import run_random_tokens
from kvcast.runtimes.reference import Reference
from kvcast.spec.program import Program

# How much of the quantisation difficulty moves from activations to weights: 0 none, 1 all.
_STRENGTH = 0.65
_LEAST = 1e-5

Float32 = NDArray[np.float32]


def smooth(
    decode: Program, weights: Mapping[str, Float32], reference: Reference
) -> Iterator[tuple[str, Float32]]:
    """Yield norms and the matrices behind them, rescaled, by name; together they compute the same.

    Args:
        decode: of a decoder-only model.
        weights: its constants by name.
        reference: the same model.

    """
    pairs = dict(_pairs(decode))
    widths = {norm: len(weights[gain]) for norm, (gain, _) in pairs.items()}
    inputs = run_random_tokens(decode, reference, widths).results
    for norm, (gain, matrix) in pairs.items():
        magnitude_x = np.abs(weights[matrix]).max(axis=0).clip(_LEAST)
        input_x = np.abs(inputs[norm]).max(axis=(0, 1)).clip(_LEAST)
        ratios_x = input_x**_STRENGTH / magnitude_x ** (1 - _STRENGTH)
        # A factor common to all channels would smooth nothing.
        factors_x = ratios_x / np.exp(np.log(ratios_x).mean())
        yield gain, weights[gain] / factors_x
        yield matrix, weights[matrix] * factors_x


def _pairs(decode: Program) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield norms that one matrix alone reads, but for the head, each with its gain and it."""
    head = decode.last_product("logits")
    for step in decode.steps:
        readers = [other for other in decode.steps if step.name in other.reads]
        if step.operation == "rms_norm" and len(readers) == 1:
            (reader,) = readers
            if reader.operation == "linear" and reader is not head:
                yield step.name, (step.arguments[1].name, reader.arguments[1].name)
