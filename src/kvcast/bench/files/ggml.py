"""Whisper as a ggml file, the form in which whisper.cpp takes it.

The layout, little-endian 32-bit numbers throughout, follows whisper.cpp's
models/convert-h5-to-ggml.py and, for q8_0, examples/quantize and ggml's block_q8_0:

    magic, eleven sizes of which the last is the kind of file
    mel filters: bands, bins, floats
    vocabulary: count; each: length, bytes
    tensors to the end: rank, length of name, kind; sizes from the last axis on; name; numbers

Vectors, both tables of positions and nothing else stay fp32. Matrices and convolutions are fp16;
q8_0 turns the matrices into blocks of 32 numbers, each an fp16 scale and 32 int8. Knows nothing of
checkpoints' files.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from kvcast.audio.mel import mel_filters
from kvcast.bench.files.whisper_names import openai_tensors
from kvcast.checkpoints.base import WhisperCheckpoint
from kvcast.spec.whisper import WhisperDimensions
from kvcast.text.whisper import WhisperTokenizer

MAGIC = 0x67676D6C
F32, F16, Q8_0 = 0, 1, 8
"""ggml's numbers for the kinds of tensors."""

# The kind of a file: mostly fp16, or 7 for mostly q8_0 beside the version 2 of the block formats.
FILE_KINDS = {"f16": 1, "q8_0": 2 * 1000 + 7}
BLOCK = 32
_POSITIONS = ("encoder.positional_embedding", "decoder.positional_embedding")
_CONV_BIASES = ("encoder.conv1.bias", "encoder.conv2.bias")


def write_ggml(checkpoint: WhisperCheckpoint, kind: str, path: Path) -> None:
    """Write `checkpoint` to `path`; `kind` is "f16" or "q8_0"."""
    dimensions = checkpoint.dimensions
    with path.open("wb") as file:
        file.write(struct.pack("<12I", MAGIC, *_sizes(dimensions), FILE_KINDS[kind]))
        filters = np.ascontiguousarray(mel_filters(dimensions.n_mels).T, "<f4")
        file.write(struct.pack("<2I", *filters.shape) + filters.tobytes())
        words = list(vocabulary(checkpoint))
        file.write(struct.pack("<I", len(words)))
        for word in words:
            file.write(struct.pack("<I", len(word)) + word)
        for name, tensor in openai_tensors(checkpoint.tensors):
            _write_tensor(file, name, tensor, kind)


def vocabulary(checkpoint: WhisperCheckpoint) -> Iterator[bytes]:
    """Yield the bytes of every token before the special ones, which whisper.cpp adds itself."""
    tokenizer = WhisperTokenizer(checkpoint.tokenizer_json, checkpoint.dimensions.vocab_size)
    return map(tokenizer.token_bytes, range(tokenizer.eot))


def to_q8_0(weight: NDArray[Any]) -> bytes:
    """Quantise [..., n], n a multiple of 32, as ggml's quantize_row_q8_0_ref does.

    The scale is computed in fp32 and stored in fp16; halves round away from zero.
    """
    blocks = np.asarray(weight, np.float32).reshape(-1, BLOCK)
    scales = np.abs(blocks).max(axis=1) / np.float32(127)
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    scaled = blocks * inverse[:, None]
    packed = np.empty(len(blocks), np.dtype([("scale", "<f2"), ("codes", "i1", BLOCK)]))
    packed["scale"] = scales
    packed["codes"] = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return packed.tobytes()


def _sizes(dimensions: WhisperDimensions) -> tuple[int, ...]:
    return (
        dimensions.vocab_size,
        dimensions.source_positions,
        dimensions.d_model,
        dimensions.encoder_heads,
        dimensions.encoder_layers,
        dimensions.target_positions,
        dimensions.d_model,
        dimensions.decoder_heads,
        dimensions.decoder_layers,
        dimensions.n_mels,
    )


def _write_tensor(file: BinaryIO, name: str, tensor: NDArray[Any], kind: str) -> None:
    stays_fp32 = tensor.ndim < 2 or name in _POSITIONS
    if name in _CONV_BIASES:
        tensor = tensor[:, None]
    if stays_fp32:
        code, numbers = F32, np.ascontiguousarray(tensor, "<f4").tobytes()
    elif kind == "q8_0" and tensor.ndim == 2:
        code, numbers = Q8_0, to_q8_0(tensor)
    else:
        code, numbers = F16, np.ascontiguousarray(tensor, "<f2").tobytes()
    encoded = name.encode()
    file.write(struct.pack("<3I", tensor.ndim, len(encoded), code))
    file.write(struct.pack(f"<{tensor.ndim}I", *reversed(tensor.shape)) + encoded + numbers)
