"""Convolutions of each channel by itself.

Of those with their last inputs, which a cache holds, an input lies in the slot of its position, as
keys and values of a ring do, so a row can be cut back as long as the inputs before are there. That
convolution is a custom operator as those of attention are (`kvcast.models.ops.attention`). Knows no
model.

Letters in shapes: r rows, s new positions, n new positions of all rows, c slots, w channels, l
length of the convolution; b batch, t positions, f bands.
"""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from kvcast.models.ops.attending import blocks_of_rows


def convolve_and_keep(
    x: Tensor, kernel: Tensor, bias: Tensor | None, past: Tensor, lengths: Tensor
) -> Tensor:
    """Convolve new inputs and those before them, and write the new ones into a cache.

    Args:
        x: [r, s, w].
        kernel: [l, w], for the earliest input first.
        bias: [w]; None: none.
        past: [r, 1, c, w], of which the last l - 1 positions are read; c is at least l.
        lengths: int32 [r], positions in each row's cache before this call.

    Returns:
        [r, s, w].

    """
    length, new, slots = len(kernel), x.shape[1], past.shape[2]
    row_index = torch.arange(x.shape[0], device=x.device)[:, None]
    before_rl = lengths[:, None].long() + torch.arange(1 - length, 0, device=x.device)
    held = past[row_index, 0, before_rl % slots]
    held = torch.where((before_rl >= 0)[..., None], held, 0.0)
    inputs = torch.cat([held, x], dim=1)
    mixed = torch.zeros_like(x) if bias is None else bias.expand_as(x)
    for i, factors in enumerate(kernel):
        mixed = mixed + factors * inputs.narrow(1, i, new)
    new_s = torch.arange(new, device=x.device)
    # Where a later input has the same slot, both write that one: no order decides. They are taken
    # from `inputs`, so that a compiler reads the cache before it writes it and needs no copy.
    latest_s = length - 1 + new_s + (new - 1 - new_s) // slots * slots
    past[row_index, :, (lengths[:, None].long() + new_s) % slots] = inputs[:, latest_s, None]
    return mixed


short_convolution = torch.library.custom_op(
    "kvcast::short_convolution", convolve_and_keep, mutates_args=("past",)
)


@short_convolution.register_fake
def _(
    x: Tensor,
    kernel: Tensor,  # noqa: ARG001
    bias: Tensor | None,  # noqa: ARG001
    past: Tensor,  # noqa: ARG001
    lengths: Tensor,  # noqa: ARG001
) -> Tensor:
    return torch.empty_like(x)


def packed_short_convolution(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor | None,
    past: Tensor,
    rows: list[int],
    counts: list[int],
    lengths: Tensor,
) -> Tensor:
    """`short_convolution` for some rows of a batch, each with its own number of new positions.

    Args:
        x: [n, w], the new inputs of all rows, concatenated.
        kernel: as in `short_convolution`.
        bias: as in `short_convolution`.
        past: [r, 1, c, w].
        rows: the rows of the cache that take part, each once.
        counts: number of new positions of each; they sum to n.
        lengths: int32 [r], for all rows of the cache.

    Returns:
        [n, w].

    """
    mixed = torch.empty_like(x)
    for row_span, span, new in blocks_of_rows(rows, counts):
        block = x[span].unflatten(0, (-1, new))
        mixed[span] = convolve_and_keep(
            block, kernel, bias, past[row_span], lengths[row_span]
        ).flatten(0, 1)
    return mixed


def channel_convolution(x: Tensor, kernel: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Convolve neighbours along two axes, padded with zeros.

    Args:
        x: [b, t, f, w], or [b, t, f, 1] where all channels are made of one.
        kernel: [l, k, w], of odd sizes.
        bias: [w].
        stride: along both axes.

    Returns:
        [b, t / stride, f / stride, w], rounded up.

    """
    length, breadth, _ = kernel.shape
    convolved = conv2d(
        x.permute(0, 3, 1, 2),
        kernel.permute(2, 0, 1)[:, None],
        bias,
        stride,
        (length // 2, breadth // 2),
        groups=x.shape[-1],
    )
    return convolved.permute(0, 2, 3, 1)
