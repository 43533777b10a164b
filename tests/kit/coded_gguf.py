"""Random blocks of every type that ggml has, and small GGUF models of them."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from kit import tiny_gguf
from kvcast.spec.stored_matrices import Encoding

WIDTH, INNER, HEADS, KEY_HEADS, HEAD_DIM, LAYERS = 256, 512, 4, 2, 64, 2
# Where halves lie unless they come first; random bytes would make them infinite.
HALVES = {Encoding.Q2_K: 80, Encoding.Q3_K: 108, Encoding.Q6_K: 208}
HALVES |= {Encoding.TQ1_0: 52, Encoding.TQ2_0: 64}
WITH_LEAST = {Encoding.Q4_1, Encoding.Q5_1, Encoding.Q4_K, Encoding.Q5_K, Encoding.Q2_K}
SMALL_POWERS = {Encoding.MXFP4, Encoding.NVFP4}
"""Types whose scales are floats of 8 bits."""
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")


def put_halves(encoding: Encoding, blocks: NDArray[np.uint8], halves: NDArray[np.float16]) -> None:
    """Replace the scales of blocks [count, bytes], and their least values, by halves [count, 2]."""
    if encoding in SMALL_POWERS:
        return
    if encoding == Encoding.IQ1_M:  # in the high nibbles of four words
        nibbles = halves[:, :1].view(np.uint16) >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        words = blocks[:, 48:].view(np.uint16)
        words[:] = words & 0xFFF | nibbles << 12
        return
    first, count = HALVES.get(encoding, 0), 2 if encoding in WITH_LEAST else 1
    blocks[:, first : first + 2 * count] = halves[:, :count].copy().view(np.uint8)


def raw(rows: int, width: int, kind: str, seed: int) -> NDArray[np.uint8]:
    """Return random blocks [rows, bytes] whose numbers keep the size of what they multiply."""
    encoding, random = Encoding[kind], np.random.default_rng(seed)
    numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = random.integers(0, 256, (rows * width // numbers, size), np.uint8)
    if encoding == Encoding.NVFP4:
        blocks[:, :4] = random.integers(4, 20, (len(blocks), 4))
        return blocks.reshape(rows, -1)
    # With least values numbers are about 0 if these are minus half of the greatest codes.
    least = {"Q4_1": -7.5, "Q4_K": 7.5, "Q5_K": 15.5}.get(kind, 0)
    ones = np.tile(np.array([1, least], np.float16), (len(blocks), 1))
    put_halves(encoding, blocks, ones)
    spread = float(dequantize(blocks, GGMLQuantizationType[kind]).std())
    put_halves(encoding, blocks, ones * np.float16(width**-0.5 / spread))
    return blocks.reshape(rows, -1)


def write(
    path: Path,
    kinds: Mapping[str, str],
    *,
    tied: bool = True,
    bias: bool = False,
    factors: bool = False,
    as_floats: bool = False,
) -> Path:
    """Write a small Llama; `kinds` maps parts of tensors' names to types, the first that fits.

    `factors`: with a factor beside each matrix of NVFP4, as conversions have.
    `as_floats`: dequantized, as F32 tensors.
    """
    writer = gguf.GGUFWriter(path, "llama")
    values = tiny_gguf.sizes(
        "llama", block_count=LAYERS, embedding_length=WIDTH, feed_forward_length=INNER,
        attention__head_count=HEADS, attention__head_count_kv=KEY_HEADS,
        attention__key_length=HEAD_DIM, attention__value_length=HEAD_DIM,
    )  # fmt: skip
    for name, value in (values | tiny_gguf.vocabulary()).items():
        tiny_gguf.add_value(writer, name, value)
    shapes = {"token_embd": (tiny_gguf.VOCAB, WIDTH)}
    if not tied:
        shapes["output"] = (tiny_gguf.VOCAB, WIDTH)
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_q": (HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_k": (KEY_HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_v": (KEY_HEADS * HEAD_DIM, WIDTH),
            f"blk.{i}.attn_output": (WIDTH, HEADS * HEAD_DIM),
            f"blk.{i}.ffn_gate": (INNER, WIDTH),
            f"blk.{i}.ffn_up": (INNER, WIDTH),
            f"blk.{i}.ffn_down": (WIDTH, INNER),
        }
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(WIDTH, np.float32))
        for part, heads in {"q": HEADS, "k": KEY_HEADS, "v": KEY_HEADS}.items() if bias else ():
            added = np.random.default_rng(heads).normal(size=heads * HEAD_DIM).astype(np.float32)
            writer.add_tensor(f"blk.{i}.attn_{part}.bias", added)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for seed, (name, shape) in enumerate(shapes.items()):
        kind = next(kind for part, kind in kinds.items() if part in name)
        number, blocks = GGMLQuantizationType[kind], raw(*shape, kind, seed)
        has_factor = factors and kind == "NVFP4"
        factor = np.array([1 - seed / 32], np.float32) if has_factor else np.ones(1, np.float32)
        if as_floats:
            writer.add_tensor(f"{name}.weight", dequantize(blocks, number) * factor)
            continue
        writer.add_tensor(f"{name}.weight", blocks, raw_dtype=number)
        if has_factor:
            writer.add_tensor(f"{name}.scale", factor)
            writer.add_tensor(f"{name}.input_scale", factor)
    tiny_gguf.finish(writer)
    return path
