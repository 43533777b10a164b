"""Write a GGUF file with random weights of a real model's shape: `make_gguf.py SHAPE QUANT FILE`.

For measuring how models of that size open and run, where nothing can be downloaded. Matrices have
the type that the quantisation gives them, Q4_K_M a mixture as llama.cpp's quantiser makes it; the
tokenizer is that of SmolLM2, which `kvcast[demo]` brings, with unused tokens up to the model's
number. The texts are noise.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    TokenType,
)
from gguf_shapes import SHAPES, Shape, Tensor, Tensors, tensors
from numpy.typing import NDArray

from kvcast.checkpoints.packaged import demo_chat

QUANTISATIONS = ("q4_0", "q8_0", "q4_k_m", "f16")
# Of a block: where its scales lie, and their bytes for numbers of size 1 / divisor.
HALVES: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "Q4_0": (0, (4.6,)),
    "Q5_0": (0, (9.2,)),
    "Q8_0": (0, (73,)),
    "Q4_K": (0, (4.6 * 32, 4.6 * 32 / 7.5)),
    "Q6_K": (208, (18 * 73,)),
}


def typed(every: Iterator[Tensor], quantisation: str) -> Tensors:
    """Yield the tensors with the types that the quantisation gives them."""
    mixed, smaller = quantisation == "Q4_K_M", {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
    usual = "Q4_K" if mixed else quantisation
    finer = "Q6_K" if mixed else "F16" if quantisation == "F16" else "Q8_0"
    for tensor in every:
        first, layer, *_ = tensor.name.split(".")
        even = mixed and first == "blk" and int(layer) % 2 == 0
        types = {"usual": usual, "finer": finer, "some": "Q6_K" if even else usual}
        kind = types.get(tensor.kind, tensor.kind)
        fits = tensor.shape[-1] % 256 == 0
        yield tensor._replace(kind=kind if fits else smaller.get(kind, kind))


def numbers(random: np.random.Generator, tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers, or the bytes of its blocks; activations keep their size."""
    shape, kind = tensor.shape, tensor.kind
    size = shape[-1] ** -0.5
    if kind == "ones":
        return np.ones(shape, np.float32)
    if kind == "turning":  # a quarter of the pairs
        return np.where(np.arange(shape[0]) < shape[0] // 4, 1, 1e30).astype(np.float32)
    if kind in ("noise", "F16"):
        noise = random.standard_normal(shape, np.float32) * np.float32(size)
        return noise.astype(np.float16).view(np.uint8) if kind == "F16" else noise
    if kind == "decay":
        return -random.uniform(0.1, 2, shape).astype(np.float32)
    numbers_each, bytes_each = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    each = (*shape[:-1], shape[-1] // numbers_each, bytes_each)
    blocks = random.integers(0, 256, each, np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = 127 + round(np.log2(size / 3))
    else:
        first, divisors = HALVES[kind]
        halves = np.array([size / divisor for divisor in divisors], np.float16).view(np.uint8)
        blocks[..., first : first + len(halves)] = halves
    return blocks.reshape(*shape[:-1], -1)


def add(writer: GGUFWriter, name: str, value: Any) -> None:
    """Add an entry of the type that its value has."""
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, Sequence):
        writer.add_array(name, value)
    else:
        writer.add_uint32(name, int(value))


def add_tokenizer(writer: GGUFWriter, count: int) -> int:
    """Copy SmolLM2's tokenizer, with unused tokens up to `count`; returns the number of tokens."""
    fields = GGUFReader(demo_chat()).fields
    own = len(fields["tokenizer.ggml.tokens"].data)
    more = max(count - own, 0)
    unused: Mapping[str, list[Any]] = {
        "tokenizer.ggml.tokens": [f"<unused_{i}>" for i in range(more)],
        "tokenizer.ggml.token_type": [int(TokenType.UNUSED)] * more,
        "tokenizer.ggml.scores": [0.0] * more,
    }
    for name, entry in fields.items():
        if name.startswith("tokenizer."):
            value = entry.contents()
            is_array = entry.types[0] == GGUFValueType.ARRAY
            add(writer, name, [*value, *unused.get(name, [])] if is_array else value)
    return own + more


def write(shape: Shape, quantisation: str, file: Path) -> None:
    """Write the file, a tensor after the other."""
    writer = GGUFWriter(file, shape.architecture, use_temp_file=False)
    vocabulary = add_tokenizer(writer, shape.vocabulary)
    numbers_of: dict[str, Any] = {
        "block_count": shape.layers,
        "context_length": shape.positions,
        "embedding_length": shape.width,
        "feed_forward_length": shape.inner,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.key_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": shape.rotary_base,
        "rope.dimension_count": shape.head_dim,
        "vocab_size": vocabulary,
        **shape.others,
    }
    for name, value in numbers_of.items():
        add(writer, f"{shape.architecture}.{name}", value)
    every = list(typed(tensors(shape, vocabulary), quantisation))
    for tensor in every:
        kind = GGMLQuantizationType.__members__.get(tensor.kind, GGMLQuantizationType.F32)
        each, size = GGML_QUANT_SIZES[kind]
        is_float = kind == GGMLQuantizationType.F32
        *outer, last = tensor.shape
        stored = (*outer, last if is_float else last // each * size)
        writer.add_tensor_info(
            tensor.name,
            stored,
            np.dtype(np.float32 if is_float else np.uint8),
            int(np.prod(stored)) * (4 if is_float else 1),
            raw_dtype=None if is_float else kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for tensor in every:
        writer.write_tensor_data(numbers(random, tensor))
    writer.close()


def main() -> None:
    """Read the command line."""
    match sys.argv[1:]:
        case [name, quantisation, file] if name in SHAPES and quantisation in QUANTISATIONS:
            write(SHAPES[name], quantisation.upper(), Path(file))
        case _:
            sys.exit(f"usage: make_gguf.py {'|'.join(SHAPES)} {'|'.join(QUANTISATIONS)} FILE")


if __name__ == "__main__":
    main()
