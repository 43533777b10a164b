"""Writes Whispers as whisper.cpp's ggml files, by openai-whisper's names of tensors.

The layout, little-endian 32-bit integers throughout, follows whisper.cpp's
models/convert-h5-to-ggml.py and, for q8_0, examples/quantize:

    magic, eleven sizes of which the last is the kind of file
    mel filters: bands, bins, floats
    vocabulary: count; each: length, bytes
    tensors to the end: rank, length of name, kind; sizes from the last axis on; name; values

Only vectors and both tables of positions stay fp32. Matrices and convolutions are fp16; q8_0 turns
the matrices into blocks of 32 values, each an fp16 scale and 32 int8.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvcast.checkpoints.base import Checkpoint
from kvcast.families.whisper import WhisperDimensions
from kvcast_bench.writing.huggingface import Tensors, transformers_tensors

_MAGIC = 0x67676D6C
# The kind of a file: mostly fp16 (1), or mostly q8_0 (7) with version 2 of the block formats.
FILE_KINDS = {"f16": 1, "q8_0": 2 * 1000 + 7}
_POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")
_CONV_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")
# From transformers' names to openai-whisper's; the first that fits comes first.
_OPENAI = (
    ("encoder.embed_positions.weight", "encoder.positional_embedding"),
    ("decoder.embed_positions.weight", "decoder.positional_embedding"),
    ("embed_tokens", "token_embedding"),
    ("encoder.layer_norm", "encoder.ln_post"),
    ("decoder.layer_norm", "decoder.ln"),
    ("layers.", "blocks."),
    ("encoder_attn_layer_norm", "cross_attn_ln"),
    ("encoder_attn.", "cross_attn."),
    ("self_attn_layer_norm", "attn_ln"),
    ("self_attn.", "attn."),
    ("q_proj", "query"),
    ("k_proj", "key"),
    ("v_proj", "value"),
    ("out_proj", "out"),
    ("final_layer_norm", "mlp_ln"),
    ("fc1", "mlp.0"),
    ("fc2", "mlp.2"),
)


def write_ggml(
    checkpoint: Checkpoint,
    kind: str,
    path: Path,
    *,
    filters: NDArray[np.float32],
    words: Sequence[bytes],
) -> None:
    """Write `checkpoint` to `path`; `kind` is "f16" or "q8_0".

    `filters` are the mel filters [bins, bands], and `words` the bytes of all tokens before the
    special ones, which whisper.cpp adds itself.
    """
    with path.open("wb") as file:
        sizes = openai_sizes(checkpoint.dimensions).values()
        file.write(struct.pack("<12I", _MAGIC, *sizes, FILE_KINDS[kind]))
        bands = np.ascontiguousarray(filters.T, "<f4")
        file.write(struct.pack("<2I", *bands.shape) + bands.tobytes())
        file.write(struct.pack("<I", len(words)))
        for word in words:
            file.write(struct.pack("<I", len(word)) + word)
        for name, tensor in openai_tensors(checkpoint.tensors):
            _write_tensor(file, name, tensor, kind)


def openai_tensors(tensors: Mapping[str, NDArray[Any]]) -> Tensors:
    """Yield every tensor under openai-whisper's name, as `transformers_tensors` does."""
    for name, tensor in transformers_tensors(tensors):
        theirs = name
        for part, other in _OPENAI:
            theirs = theirs.replace(part, other)
        yield theirs, tensor


def openai_sizes(dimensions: WhisperDimensions) -> dict[str, int]:
    """Return openai-whisper's `ModelDimensions`, in the order of whisper.cpp's files."""
    return {
        "n_vocab": dimensions.vocab_size,
        "n_audio_ctx": dimensions.source_positions,
        "n_audio_state": dimensions.d_model,
        "n_audio_head": dimensions.encoder_heads,
        "n_audio_layer": dimensions.encoder_layers,
        "n_text_ctx": dimensions.target_positions,
        "n_text_state": dimensions.d_model,
        "n_text_head": dimensions.decoder_heads,
        "n_text_layer": dimensions.decoder_layers,
        "n_mels": dimensions.n_mels,
    }


def _write_tensor(file: BinaryIO, name: str, tensor: NDArray[Any], kind: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import quantize

    code = GGMLQuantizationType.F16
    if tensor.ndim < 2 or name in _POSITIONS:
        code = GGMLQuantizationType.F32
    elif kind == "q8_0" and tensor.ndim == 2:
        code = GGMLQuantizationType.Q8_0
    if name in _CONV_BIASES:
        tensor = tensor[:, None]
    content = quantize(np.array(tensor, np.float32), code).tobytes()
    encoded = name.encode()
    file.write(struct.pack("<3I", tensor.ndim, len(encoded), code))
    file.write(struct.pack(f"<{tensor.ndim}I", *reversed(tensor.shape)) + encoded + content)
