"""Write a GGUF file with random weights of a real model's shape: `make_gguf.py SHAPE QUANT FILE`.

For measuring how models of that size open and run, where nothing can be downloaded. Matrices have
the type that the quantisation gives them, Q4_K_M a mixture as llama.cpp's quantiser makes it; the
tokenizer is that of SmolLM2, which `kvcast[demo]` brings. The texts are noise.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from kvcast.checkpoints.packaged import demo_chat


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama or Mistral."""

    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    rotary_base: float
    positions: int = 8192


SHAPES: Mapping[str, Shape] = {
    "llama-1b": Shape(
        layers=16, width=2048, inner=8192, heads=32, key_heads=8, head_dim=64, rotary_base=5e5
    ),
    "llama-3b": Shape(
        layers=28, width=3072, inner=8192, heads=24, key_heads=8, head_dim=128, rotary_base=5e5
    ),
    "mistral-7b": Shape(
        layers=32, width=4096, inner=14336, heads=32, key_heads=8, head_dim=128, rotary_base=1e4
    ),
}
QUANTISATIONS = ("Q4_0", "Q8_0", "Q4_K_M", "F16")
# Of a block: where its halves lie, and how much smaller than a number's usual size each is.
HALVES: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "Q4_0": (0, (4.6,)),
    "Q8_0": (0, (73,)),
    "Q4_K": (0, (4.6 * 32, 4.6 * 32 / 7.5)),
    "Q6_K": (208, (18 * 73,)),
}


def random_rows(random: np.random.Generator, rows: int, width: int, kind: str) -> NDArray[np.uint8]:
    """Return the bytes [rows, bytes] of random numbers that keep activations' size."""
    size = width**-0.5
    if kind == "F16":
        numbers = random.standard_normal((rows, width), np.float32) * np.float32(size)
        return numbers.astype(np.float16).view(np.uint8)
    numbers_each, bytes_each = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (rows, width // numbers_each, bytes_each), np.uint8)
    first, divisors = HALVES[kind]
    halves = np.array([size / divisor for divisor in divisors], np.float16).view(np.uint8)
    blocks[..., first : first + len(halves)] = halves
    return blocks.reshape(rows, -1)


def matrices(
    shape: Shape, vocabulary: int, quantisation: str
) -> Iterator[tuple[str, int, int, str]]:
    """Return each matrix's name, rows, width and type."""
    mixed = quantisation == "Q4_K_M"
    usual = "Q4_K" if mixed else quantisation
    finer = "Q6_K" if mixed else "F16" if quantisation == "F16" else "Q8_0"
    yield "token_embd", vocabulary, shape.width, finer
    yield "output", vocabulary, shape.width, finer
    heads, key_heads = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    for layer in range(shape.layers):
        some = "Q6_K" if mixed and layer % 2 == 0 else usual
        rest = f"blk.{layer}."
        yield rest + "attn_q", heads, shape.width, usual
        yield rest + "attn_k", key_heads, shape.width, usual
        yield rest + "attn_v", key_heads, shape.width, some
        yield rest + "attn_output", shape.width, heads, usual
        yield rest + "ffn_gate", shape.inner, shape.width, usual
        yield rest + "ffn_up", shape.inner, shape.width, usual
        yield rest + "ffn_down", shape.width, shape.inner, some


def add_tokenizer(writer: GGUFWriter) -> int:
    """Copy SmolLM2's tokenizer; returns the number of its tokens."""
    fields = GGUFReader(demo_chat()).fields
    for name, field in fields.items():
        if not name.startswith("tokenizer."):
            continue
        value, kind = field.contents(), field.types[0]
        if kind == GGUFValueType.ARRAY:
            writer.add_array(name, value)
        elif kind == GGUFValueType.STRING:
            writer.add_string(name, value)
        elif kind == GGUFValueType.BOOL:
            writer.add_bool(name, value)
        else:
            writer.add_uint32(name, int(value))
    return len(fields["tokenizer.ggml.tokens"].data)


def write(shape: Shape, quantisation: str, file: Path) -> None:
    """Write the file, a tensor after the other."""
    writer = GGUFWriter(file, "llama", use_temp_file=False)
    vocabulary = add_tokenizer(writer)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.positions)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.key_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rotary_base)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_vocab_size(vocabulary)
    every = list(matrices(shape, vocabulary, quantisation))
    norms = ["output_norm"] + [
        f"blk.{layer}.{name}_norm" for layer in range(shape.layers) for name in ("attn", "ffn")
    ]
    for name in norms:
        writer.add_tensor_info(
            f"{name}.weight", (shape.width,), np.dtype(np.float32), shape.width * 4
        )
    for name, rows, width, kind in every:
        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        bytes_each = width // numbers * size
        writer.add_tensor_info(
            f"{name}.weight",
            (rows, bytes_each),
            np.dtype(np.uint8),
            rows * bytes_each,
            raw_dtype=GGMLQuantizationType[kind],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(0)
    for _ in norms:
        writer.write_tensor_data(np.ones(shape.width, np.float32))
    for _, rows, width, kind in every:
        writer.write_tensor_data(random_rows(random, rows, width, kind))
    writer.close()


def main() -> None:
    """Read the command line."""
    if len(sys.argv) != 4 or sys.argv[1] not in SHAPES or sys.argv[2] not in QUANTISATIONS:
        sys.exit(f"usage: make_gguf.py {'|'.join(SHAPES)} {'|'.join(QUANTISATIONS)} FILE")
    write(SHAPES[sys.argv[1]], sys.argv[2], Path(sys.argv[3]))


if __name__ == "__main__":
    main()
