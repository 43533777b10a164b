"""Tensors of delta nets in GGUF files (Qwen 3.5), as other formats have them.

A projection's rows are, of each head, a query's and then its gate's. Heads of values lie in turns,
the first of each key before the second ones, because ggml repeats keys so; here those of a key lie
side by side. Steps are stored as minus their exponential. Knows nothing of files.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import StoredTensor
from kvcast.checkpoints.tables import changed, picked, reordered, transposed
from kvcast.errors import KvcastError
from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.delta_nets import DeltaNet

_QUERY, _QUERY_GATE = ".attn_q.weight", ".attn_q_gate.weight"
_QKV, _CONVOLVED = ".attn_qkv.weight", ".ssm_qkv.weight"
_KERNEL, _GATE, _OUT = ".ssm_conv1d.weight", ".attn_gate.weight", ".ssm_out.weight"
_DECAY = ".ssm_a"
_OF_HEADS = (".ssm_beta.weight", ".ssm_alpha.weight", ".ssm_dt.bias", _DECAY)


def delta_net_tensors(
    stored: Mapping[str, StoredTensor], dimensions: DecoderDimensions
) -> dict[str, StoredTensor]:
    """Return tensors in the order of other formats, gates and what is convolved by own names."""
    own: dict[str, StoredTensor] = {}
    sizes = dimensions.delta
    for name, tensor in stored.items():
        if name.endswith(_QUERY) and tensor.shape[0] == 2 * dimensions.heads * dimensions.head_dim:
            rows = np.arange(tensor.shape[0]).reshape(-1, 2, dimensions.head_dim)
            query, gate = (picked(tensor, rows[:, part].ravel()) for part in range(2))
            own |= {name: query, name.replace(_QUERY, _QUERY_GATE): gate}
        else:
            # Attention has queries, keys and values by the same name, whose heads turn.
            own[name.replace(_QKV, _CONVOLVED)] = (
                tensor if sizes is None else _own(name, tensor, sizes)
            )
    return own


def _own(name: str, tensor: StoredTensor, sizes: DeltaNet) -> StoredTensor:
    if sizes.key_heads != sizes.value_heads:
        tensor = _beside_their_key(name, tensor, sizes)
    if name.endswith(_DECAY):
        return changed(tensor, partial(_logarithms, name))
    return transposed(tensor) if name.endswith(_KERNEL) else tensor


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


def _logarithms(name: str, decay: NDArray[Any]) -> NDArray[np.float32]:
    if not (decay <= 0).all():
        raise KvcastError(f"tensor {name} is damaged: a number in it is above 0")
    with np.errstate(divide="ignore"):
        logarithms: NDArray[np.float32] = np.log(-decay.astype(np.float32))
    return logarithms
