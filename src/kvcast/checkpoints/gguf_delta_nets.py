"""Tensors of delta nets in GGUF files (Qwen 3.5, Qwen 3 Next), as other formats have them.

A projection's rows are, of each head, a query's and then its gate's. Heads of values lie in turns,
the first of each key before the second ones, because ggml repeats keys so; here those of a key lie
side by side, as in Qwen 3 Next's files, which have parts of projections by key. Steps are stored as
minus their exponential. Knows nothing of files.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.tables import by_part, changed, picked, reordered, transposed
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.delta_nets import DeltaNet

_QUERY, _QUERY_GATE = ".attn_q.weight", ".attn_q_gate.weight"
_QKV, _CONVOLVED = ".attn_qkv.weight", ".ssm_qkv.weight"
_KERNEL, _GATE, _OUT = ".ssm_conv1d.weight", ".attn_gate.weight", ".ssm_out.weight"
DECAY = ".ssm_a"
_OF_HEADS = (".ssm_beta.weight", ".ssm_alpha.weight", ".ssm_dt.bias", DECAY)


def delta_net_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return tensors in the order of other formats, gates and what is convolved by own names."""
    sizes = dimensions.delta
    if sizes is not None and sizes.key_heads != sizes.value_heads:
        stored = {name: _beside_their_key(name, tensor, sizes) for name, tensor in stored.items()}
    return _as_elsewhere(stored, dimensions)


def grouped_delta_net_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return the same of files whose heads of values lie beside those of their key."""
    sizes = dimensions.delta
    if sizes is None:
        return _as_elsewhere(stored, dimensions)
    each = sizes.value_heads // sizes.key_heads
    keys, values = sizes.key_dim, each * sizes.value_dim
    projections: Mapping[str, Mapping[str, Sequence[int]]] = {
        ".ssm_ba.weight": {".ssm_beta.weight": (each,), ".ssm_alpha.weight": (each,)},
        ".ssm_in.weight": {_QKV: (keys, keys, values), _GATE: (values,)},  # of older files
    }
    apart: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        whole = next((end for end in projections if name.endswith(end)), None)
        if whole is None:
            apart[name] = tensor
        else:
            layer, parts = name.removesuffix(whole), projections[whole]
            divided = by_part(tensor, sizes.key_heads, parts)
            apart |= {layer + part: rows for part, rows in divided.items()}
    return _as_elsewhere(apart, dimensions)


def _as_elsewhere(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    own: dict[str, StoredTensor] = {}
    for name, tensor in stored.items():
        if name.endswith(_QUERY) and tensor.shape[0] == 2 * dimensions.heads * dimensions.head_dim:
            rows = np.arange(tensor.shape[0]).reshape(-1, 2, dimensions.head_dim)
            query, gate = (picked(tensor, rows[:, part].ravel()) for part in range(2))
            own |= {name: query, name.replace(_QUERY, _QUERY_GATE): gate}
        elif name.endswith(DECAY):
            own[name] = changed(tensor, partial(logarithms, name))
        else:
            # Attention has queries, keys and values by the same name, whose heads turn.
            is_kernel = name.endswith(_KERNEL)
            own[name.replace(_QKV, _CONVOLVED)] = transposed(tensor) if is_kernel else tensor
    return own


def _beside_their_key(name: str, tensor: StoredTensor, sizes: DeltaNet) -> StoredTensor:
    """Put a tensor's heads of values, if it has such, beside those of the same key."""
    if name.endswith((_QKV, _KERNEL)):
        return reordered(tensor, partial(_grouped, sizes, 2 * sizes.keys, sizes.value_dim))
    if name.endswith(_GATE):
        return reordered(tensor, partial(_grouped, sizes, 0, sizes.value_dim))
    if name.endswith(_OF_HEADS):
        return reordered(tensor, partial(_grouped, sizes, 0, 1))
    if name.endswith(_OUT):  # its columns, over which codes lie in blocks
        return changed(tensor, lambda matrix: _grouped(sizes, 0, sizes.value_dim, matrix.T).T)
    return tensor


def _grouped(sizes: DeltaNet, first: int, size: int, rows: NDArray[Any]) -> NDArray[Any]:
    """Reorder the heads, of `size` rows each, that begin after the `first` rows."""
    turns = rows[first:].reshape(-1, sizes.key_heads, size, *rows.shape[1:])
    heads = turns.swapaxes(0, 1).reshape(rows[first:].shape)
    return np.concatenate([rows[:first], heads])


def logarithms(name: str, decay: NDArray[Any]) -> NDArray[np.float32]:
    """Return the logarithms of minus a tensor of this name; KvcastError for numbers above 0."""
    if not (decay <= 0).all():
        raise KvcastError(f"tensor {name} is damaged: a number in it is above 0")
    with np.errstate(divide="ignore"):
        logarithms: NDArray[np.float32] = np.log(-decay.astype(np.float32))
    return logarithms
