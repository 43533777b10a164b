"""A checkpoint as a GGUF file without a tokenizer, which is all that evaluating tokens needs.

Every matrix, the embedding included, is stored in one kind of blocks; vectors stay fp32. The
`llama` architecture rotates neighbours, so the rows of its queries and keys are put in that order.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.bench.files.hugging_face import model_type
from kvcast.checkpoints.base import DecoderCheckpoint
from kvcast.checkpoints.gguf import NAMES
from kvcast.checkpoints.tables import take_apart
from kvcast.spec.decoder import DecoderDimensions

_NEIGHBOURS = "llama"


def write_gguf(checkpoint: DecoderCheckpoint, kind: str, path: Path) -> None:
    """Write `checkpoint` to `path`; `kind` names ggml's blocks: "Q8_0" or "Q4_0"."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    dimensions, blocks = checkpoint.dimensions, GGMLQuantizationType[kind]
    writer = GGUFWriter(path, model_type(dimensions))
    _describe(writer, dimensions)
    keys = dimensions.kv_heads * dimensions.head_dim
    for name, tensor in take_apart(checkpoint.tensors, NAMES, keys):
        weight = np.array(tensor, np.float32)
        if writer.arch == _NEIGHBOURS:
            weight = _as_neighbours(name, weight, dimensions)
        if weight.ndim < 2:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantize(weight, blocks), raw_dtype=blocks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, dimensions: DecoderDimensions) -> None:
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(dimensions.vocab_size)
    writer.add_block_count(dimensions.layers)
    writer.add_context_length(dimensions.max_positions)
    writer.add_embedding_length(dimensions.width)
    writer.add_feed_forward_length(dimensions.inner)
    writer.add_head_count(dimensions.heads)
    writer.add_head_count_kv(dimensions.kv_heads)
    writer.add_key_length(dimensions.head_dim)
    writer.add_value_length(dimensions.head_dim)
    writer.add_rope_dimension_count(dimensions.head_dim)
    writer.add_rope_freq_base(dimensions.rotary.base)
    writer.add_layer_norm_rms_eps(dimensions.norm_eps)


def _as_neighbours(
    name: str, rows: NDArray[np.float32], dimensions: DecoderDimensions
) -> NDArray[np.float32]:
    """Reorder queries and keys from x0 x1 ... y0 y1 ... to x0 y0 x1 y1 ... in each head."""
    heads = {"attn_q": dimensions.heads, "attn_k": dimensions.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return rows
    pairs = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
