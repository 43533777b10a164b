"""States that every position rewrites: the gated delta rule, the selective scan, a recurrence.

A head's matrix decays, and a position's value is added to it for its key: of the delta rule so much
of it as the matrix lacks to give that value for that key. A gated recurrence mixes each channel
with its state alone.

Letters in shapes: r rows, s new positions, n new positions of all rows, h heads of values, g heads
of keys (h is a multiple of it), k and v sizes of a head.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import conv2d, softplus

from kvcast.models.ops.attention_math import blocks_of_rows

_EPSILON = 1e-6  # of the lengths of queries and keys


def delta_rule(
    x: Tensor,  # [r, s, 2 * g * k + h * v], queries, keys and values
    share: Tensor,  # [r, s, h], beta of the delta rule, before the sigmoid
    step: Tensor,  # [r, s, h] or [r, s, h * k], decay of the state or of each channel of keys
    decay: Tensor,  # [h], logarithms of factors on steps
    bias: Tensor,  # [h] or [h * k], added to steps
    state: Tensor,  # [r, h, k, v], updated in place. Zeros without earlier positions
    lengths: Tensor,  # int32 [r], positions in each row before this call
    key_heads: int,  # g
    *,
    most: float = 1.0,  # of shares, a factor on sigmoids
    least: float = 0.0,  # bound of decays' logarithms, which then follow a sigmoid; 0: a softplus
) -> Tensor:  # [r, s, h * v]
    """Update states by new positions in sequence, and read them at each."""
    query, key, value = _split(x, state, key_heads)
    query, key = _unit(query) * query.shape[-1] ** -0.5, _unit(key)
    steps, rates = (step + bias).unflatten(-1, (len(decay), -1)), torch.exp(decay)[:, None]
    logarithms = least * torch.sigmoid(rates * steps) if least else -rates * softplus(steps)
    given = torch.exp(logarithms), most * torch.sigmoid(share), state, lengths
    return _rewrite(query, key, value, *given, corrects=True).flatten(2)


def selective_scan(
    x: Tensor,
    step: Tensor,  # [r, s, h]
    decay: Tensor,  # [h]
    bias: Tensor,  # [h]
    skip: Tensor,  # [h], shares of values that are added to results
    state: Tensor,  # [r, h, k, v]
    lengths: Tensor,  # int32 [r]
    key_heads: int,  # g
) -> Tensor:  # [r, s, h * v]
    """Do so without a correction (Mamba-2): steps are also the shares of values that are added."""
    query, key, value = _split(x, state, key_heads)
    share = softplus(step + bias)
    kept = torch.exp(-torch.exp(decay) * share)[..., None]
    mixed = _rewrite(query, key, value, kept, share, state, lengths, corrects=False)
    return (mixed + skip[:, None] * value).flatten(2)


def _split(x: Tensor, state: Tensor, key_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys [r, s, h, k], and values [r, s, h, v]."""
    _, heads, key_dim, value_dim = state.shape
    keys = key_heads * key_dim
    query, key, value = x.split([keys, keys, heads * value_dim], dim=-1)
    query, key = (
        part.unflatten(-1, (key_heads, key_dim)).repeat_interleave(heads // key_heads, dim=2)
        for part in (query, key)
    )
    return query, key, value.unflatten(-1, (heads, value_dim))


def _unit(heads: Tensor) -> Tensor:
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + _EPSILON)


def _rewrite(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    kept: Tensor,
    share: Tensor,
    state: Tensor,
    lengths: Tensor,
    *,
    corrects: bool,
) -> Tensor:
    """Update states, `kept` [r, s, h, 1 or k] and `share` [r, s, h]; returns [r, s, h, v]."""
    matrix = torch.where((lengths > 0)[:, None, None, None], state, 0.0)
    mixed = torch.empty_like(value)
    for s in range(value.shape[1]):
        matrix = matrix * kept[:, s, ..., None]
        added = value[:, s]
        if corrects:
            added = added - torch.einsum("rhk,rhkv->rhv", key[:, s], matrix)
        added = added * share[:, s, :, None]
        matrix = matrix + key[:, s, :, :, None] * added[:, :, None]
        mixed[:, s] = torch.einsum("rhk,rhkv->rhv", query[:, s], matrix)
    state[...] = matrix
    return mixed


def gated_recurrence(
    x: Tensor,  # [r, s, w]
    gate: Tensor,  # [r, s, w], the share of the state that stays, before the sigmoid
    state: Tensor,  # [r, 1, 1, w], updated in place. Zeros without earlier positions
    lengths: Tensor,  # int32 [r], positions in each row before this call
) -> Tensor:  # [r, s, w]
    """Return the states c[s] = f c[s - 1] + (1 - f) x[s], f = sigmoid(gate[s]).

    The simpler simple recurrent unit (SSRU, Kim et al., "From Research to Production and Back",
    WNGT 2019, section 3.1), before its ReLU.
    """
    kept = torch.sigmoid(gate)
    cell = torch.where((lengths > 0)[:, None], state[:, 0, 0], 0.0)
    cells = []
    for s in range(x.shape[1]):
        cell = kept[:, s] * cell + (1 - kept[:, s]) * x[:, s]
        cells.append(cell)
    state[...] = cell[:, None, None]
    return torch.stack(cells, dim=1)


def packed_states(
    operation: Callable[..., Tensor],  # `delta_rule` or `selective_scan`
    parts: Sequence[Tensor],  # its per-position arguments, [n, ...] for all rows, concatenated
    constants: Sequence[Tensor],  # its other arguments before the state
    state: Tensor,  # [r, h, k, v]
    rows: list[int],  # the rows of the state that take part, each once
    counts: list[int],  # number of new positions of each; they sum to n
    lengths: Tensor,  # int32 [r], for all rows of the state
    key_heads: int,  # g
) -> Tensor:  # [n, h * v]
    """Run an operation on some rows of a batch, each with its own number of new positions."""
    mixed = parts[0].new_empty(len(parts[0]), state.shape[1] * state.shape[3])
    for row_span, span, new in blocks_of_rows(rows, counts):
        own = [part[span].unflatten(0, (-1, new)) for part in parts]
        block = operation(*own, *constants, state[row_span], lengths[row_span], key_heads)
        mixed[span] = block.flatten(0, 1)
    return mixed


def convolve_and_keep(
    x: Tensor, kernel: Tensor, bias: Tensor | None, past: Tensor, lengths: Tensor
) -> Tensor:
    """Convolve new inputs [r, s, w] after cached ones, by [l, w], and write them to the cache.

    `past` [r, 1, c, w], of which the last l - 1 positions before `lengths` are read; c >= l.
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
    x: Tensor,  # [n, w], the new inputs of all rows, concatenated
    kernel: Tensor,
    bias: Tensor | None,
    past: Tensor,  # [r, 1, c, w]
    rows: list[int],  # the rows of the cache that take part, each once
    counts: list[int],  # number of new positions of each; they sum to n
    lengths: Tensor,  # int32 [r], for all rows of the cache
) -> Tensor:  # [n, w]
    """`short_convolution` for some rows of a batch, each with its own number of new positions."""
    mixed = torch.empty_like(x)
    for row_span, span, new in blocks_of_rows(rows, counts):
        block = x[span].unflatten(0, (-1, new))
        mixed[span] = convolve_and_keep(
            block, kernel, bias, past[row_span], lengths[row_span]
        ).flatten(0, 1)
    return mixed


def channel_convolution(x: Tensor, kernel: Tensor, bias: Tensor, stride: int) -> Tensor:
    """Convolve channels [b, t, f, w or 1] by a kernel [l, k, w] of odd sizes, padded with zeros.

    Returns [b, t / stride, f / stride, w], rounded up.
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
