"""Tensors of decoder-only models' files that a table of names cannot describe.

Each function changes tensors by their names in a file. Knows no files and no configuration.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.tables import changed, joined_flat, picked, reordered
from kvcast.families.decoder_dimensions import DecoderDimensions

_QUERY, _GATE = "self_attn.q_proj.weight", "self_attn.gate.weight"


_DELTA_IN = "linear_attn.in_proj_{}.weight"


MAMBA_CONVOLUTION = "mamba.conv1d.weight"


_QUERY_NORM, _KEY_NORM = "self_attn.q_norm.weight", "self_attn.k_norm.weight"


_NORM_OF_A_HEAD = re.compile(r"(.+\.[qk])_layernorm\.norms\.(\d{1,4})\.weight")


def routers_scaled(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide the weights of norms before routers by the root of the width, as Gemma 4 does."""

    def scaled(weight: NDArray[Any]) -> NDArray[np.float32]:
        return weight.astype(np.float32) * np.float32(dimensions.width**-0.5)

    return {
        name: changed(tensor, scaled) if name.endswith(".router.scale") else tensor
        for name, tensor in own.items()
    }


def parts_apart(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Divide projections whose rows are, of each head, several parts one after the other.

    Those are a query and its gate, and of delta nets, in Qwen 3 Next, all that belongs to a head of
    keys.
    """
    size = dimensions.head_dim
    layouts: dict[str, tuple[int, Mapping[str, Sequence[int]]]] = {
        _QUERY: (dimensions.heads, {_QUERY: (size,), _GATE: (size,)})
    }
    if delta := dimensions.delta:
        each = delta.value_heads // delta.key_heads
        values, keys = each * delta.value_dim, delta.key_dim
        layouts |= {
            _DELTA_IN.format("qkvz"): (
                delta.key_heads,
                {_DELTA_IN.format("qkv"): (keys, keys, values), _DELTA_IN.format("z"): (values,)},
            ),
            _DELTA_IN.format("ba"): (
                delta.key_heads,
                {_DELTA_IN.format("b"): (each,), _DELTA_IN.format("a"): (each,)},
            ),
        }
    apart = dict(own)
    for name, tensor in own.items():
        for whole, (heads, parts) in layouts.items():
            if name.endswith(whole):
                del apart[name]
                layer = name.removesuffix(whole)
                apart |= {layer + part: x for part, x in _by_part(tensor, heads, parts).items()}
    return apart


def _by_part(
    tensor: StoredTensor, heads: int, parts: Mapping[str, Sequence[int]]
) -> dict[str, StoredTensor]:
    """Return rows by the names of parts; a part has the rows of all heads for each of its sizes."""
    each = sum(sum(sizes) for sizes in parts.values())
    if tensor.shape[0] != heads * each:
        return dict.fromkeys(parts, tensor)  # of a shape that no configuration asks for
    rows, first, divided = np.arange(heads * each).reshape(heads, each), 0, {}
    for name, sizes in parts.items():
        ends = first + np.cumsum(sizes)
        spans = np.split(rows[:, first : ends[-1]], (ends - first)[:-1], axis=1)
        divided[name] = picked(tensor, np.concatenate([span.reshape(-1) for span in spans]))
        first = int(ends[-1])
    return divided


def norms_of_heads_joined(
    own: Mapping[str, StoredTensor], _: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return norms of queries and keys, of which each head has one, as one tensor each."""
    joined, norms = {}, defaultdict[str, dict[int, StoredTensor]](dict)
    for name, tensor in own.items():
        if norm := _NORM_OF_A_HEAD.fullmatch(name):
            norms[f"{norm[1]}_norm.weight"][int(norm[2])] = tensor
        elif name.endswith((_QUERY_NORM, _KEY_NORM)):
            joined[name] = joined_flat([tensor])
        else:
            joined[name] = tensor
    in_order = {name: [heads[i] for i in sorted(heads)] for name, heads in norms.items()}
    return joined | {name: joined_flat(heads) for name, heads in in_order.items()}


def keys_first(
    own: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Reorder Mamba's channels, which are values, keys and queries after a gate, as delta nets'."""
    space = dimensions.state_space
    if space is None:
        return dict(own)
    values, keys, channels = space.values, space.keys, space.channels
    order = np.r_[values + keys : channels, values : values + keys, :values]
    whole = np.r_[values + order, :values, values + channels : sum(space.projected)]
    moves: Mapping[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
        "mamba.in_proj.weight": itemgetter(whole),
        "mamba.in_proj.bias": itemgetter(whole),
        "mamba.conv1d.bias": itemgetter(order),
        MAMBA_CONVOLUTION: partial(np.take, indices=order, axis=1),
    }
    moved = dict(own)
    for name, tensor in own.items():
        for end, move in moves.items():
            if name.endswith(end):
                change = changed if end == MAMBA_CONVOLUTION else reordered
                moved[name] = change(tensor, move)
    return moved
