"""Writes GGUF files of models like Llama, in ggml's blocks: for llama.cpp, from the same weights.

It inverts the reader by its tables. The files have no tokenizer, unless the values that another
GGUF file has of one are given: evaluating tokens needs none.
Matrices, the embedding included, are stored in one kind of blocks; vectors in fp32.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kvcast.checkpoints.base import Checkpoint
from kvcast.checkpoints.gguf.config import ARCHITECTURES
from kvcast.checkpoints.gguf.reader import is_rotated
from kvcast.checkpoints.gguf.tensors import NAMES
from kvcast.checkpoints.tensor_names import pairs_from_halves, take_apart
from kvcast_bench.writing.huggingface import model_type


def write_gguf(
    checkpoint: Checkpoint,
    kind: str,
    path: Path,
    text: Mapping[str, Any] | None = None,
) -> None:
    """Write `checkpoint`, which must be `is_like_llama` without windows, to `path`.

    `kind` is the GGML type of matrices: "F32", or blocks such as "Q8_0" and "Q4_0". `text` are
    values of a tokenizer, as `gguf_file.GgufFile` has them.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    dimensions, blocks = checkpoint.dimensions, GGMLQuantizationType[kind]
    writer = GGUFWriter(path, model_type(dimensions))
    _add_values(writer, text or {"tokenizer.ggml.model": "no_vocab"})
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
    keys = dimensions.kv_heads * dimensions.head_dim
    for name, tensor in take_apart(checkpoint.tensors, NAMES, keys):
        weight = np.array(tensor, np.float32)
        if ARCHITECTURES[writer.arch].permuted and is_rotated(name):
            weight = pairs_from_halves(weight, dimensions.head_dim)
        if weight.ndim < 2:
            writer.add_tensor(name, weight)
        else:
            writer.add_tensor(name, quantize(weight, blocks), raw_dtype=blocks)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_values(writer: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, list(np.asarray(value, object)))
