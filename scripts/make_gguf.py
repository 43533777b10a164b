"""Write a GGUF file with random weights of a real model's shape: `make_gguf.py SHAPE QUANT FILE`.

For measuring how models of that size open and run, where nothing can be downloaded. Matrices have
the type that the quantisation gives them, Q4_K_M a mixture as llama.cpp's quantiser makes it; the
tokenizer is that of SmolLM2, which `kvcast[demo]` brings, with unused tokens up to the model's
number. The texts are noise.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    TokenType,
)
from numpy.typing import NDArray

from kvcast.checkpoints.packaged import demo_chat

QUANTISATIONS = ("q4_0", "q8_0", "q4_k_m", "f16")
# Of a block: where its scales lie, and their bytes for numbers of size 1 / divisor.
HALVES: Mapping[str, tuple[int, tuple[float, ...]]] = {
    "Q4_0": (0, (4.6,)),
    "Q8_0": (0, (73,)),
    "Q4_K": (0, (4.6 * 32, 4.6 * 32 / 7.5)),
    "Q6_K": (208, (18 * 73,)),
}


class Tensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        name: with its ending.
        shape: as PyTorch has it, the last axis the one that is contiguous.
        kind: "usual", "some" (finer in every other layer of a mixture), "finer", a GGML type, or
            "ones" and "noise", in fp32.

    """

    name: str
    shape: tuple[int, ...]
    kind: str = "usual"


Tensors = Iterator[Tensor]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a model.

    Attributes:
        block: yields the tensors of a layer.
        vocabulary: number of tokens; 0 is the tokenizer's.
        output_norm: name of the last norm.
        others: further numbers of the architecture, by their names after it.
        sizes: what `block` asks for besides.

    """

    architecture: str
    block: Callable[["Shape", int], Tensors]
    layers: int
    width: int
    inner: int
    heads: int
    key_heads: int
    head_dim: int
    rotary_base: float
    positions: int = 8192
    vocabulary: int = 0
    tied: bool = False
    output_norm: str = "output_norm"
    others: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)


def norms(block: str, width: int, *names: str) -> Tensors:
    """Yield norms of a layer."""
    return (Tensor(f"{block}.{name}.weight", (width,), "ones") for name in names)


def attention(shape: Shape, block: str, *, queries: int = 1) -> Tensors:
    """Yield projections of attention; `queries` is 2 where gates follow each head's queries."""
    heads, keys = shape.heads * shape.head_dim, shape.key_heads * shape.head_dim
    yield Tensor(f"{block}.attn_q.weight", (queries * heads, shape.width))
    yield Tensor(f"{block}.attn_k.weight", (keys, shape.width))
    yield Tensor(f"{block}.attn_v.weight", (keys, shape.width), "some")
    yield Tensor(f"{block}.attn_output.weight", (shape.width, heads))


def feed_forward(shape: Shape, block: str) -> Tensors:
    """Yield a gated feed-forward."""
    yield Tensor(f"{block}.ffn_gate.weight", (shape.inner, shape.width))
    yield Tensor(f"{block}.ffn_up.weight", (shape.inner, shape.width))
    yield Tensor(f"{block}.ffn_down.weight", (shape.width, shape.inner), "some")


def llama(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of Llama or Mistral."""
    block = f"blk.{layer}"
    yield from norms(block, shape.width, "attn_norm", "ffn_norm")
    yield from attention(shape, block)
    yield from feed_forward(shape, block)


def phi3(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of Phi-3 and 4, whose projections are joined."""
    block, mixed = f"blk.{layer}", shape.heads * shape.head_dim
    joined = mixed + 2 * shape.key_heads * shape.head_dim
    yield from norms(block, shape.width, "attn_norm", "ffn_norm")
    yield Tensor(f"{block}.attn_qkv.weight", (joined, shape.width))
    yield Tensor(f"{block}.attn_output.weight", (shape.width, mixed))
    yield Tensor(f"{block}.ffn_up.weight", (2 * shape.inner, shape.width))
    yield Tensor(f"{block}.ffn_down.weight", (shape.width, shape.inner), "some")


def lfm2(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of LFM2: a short convolution, or attention."""
    block, width = f"blk.{layer}", shape.width
    yield from norms(block, width, "attn_norm", "ffn_norm")
    if layer in shape.sizes["attending"]:
        yield from attention(shape, block)
        yield from norms(block, shape.head_dim, "attn_q_norm", "attn_k_norm")
    else:
        yield Tensor(f"{block}.shortconv.conv.weight", (width, 3), "noise")
        yield Tensor(f"{block}.shortconv.in_proj.weight", (3 * width, width))
        yield Tensor(f"{block}.shortconv.out_proj.weight", (width, width))
    yield from feed_forward(shape, block)


def qwen35(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of Qwen 3.5: a delta net, or in each fourth layer attention."""
    block, width = f"blk.{layer}", shape.width
    yield from norms(block, width, "attn_norm", "post_attention_norm")
    if layer % 4 == 3:
        yield from attention(shape, block, queries=2)
        yield from norms(block, shape.head_dim, "attn_q_norm", "attn_k_norm")
    else:
        keys, values = shape.sizes["keys"], shape.sizes["values"]
        channels = 128 * (2 * keys + values)
        yield Tensor(f"{block}.attn_qkv.weight", (channels, width))
        yield Tensor(f"{block}.attn_gate.weight", (128 * values, width))
        yield Tensor(f"{block}.ssm_conv1d.weight", (channels, 4), "noise")
        yield Tensor(f"{block}.ssm_dt.bias", (values,), "noise")
        yield Tensor(f"{block}.ssm_a", (values,), "decay")
        yield Tensor(f"{block}.ssm_beta.weight", (values, width), "Q8_0")
        yield Tensor(f"{block}.ssm_alpha.weight", (values, width), "Q8_0")
        yield Tensor(f"{block}.ssm_norm.weight", (128,), "ones")
        yield Tensor(f"{block}.ssm_out.weight", (width, 128 * values))
    yield from feed_forward(shape, block)


def gpt_oss(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of gpt-oss, whose experts are in MXFP4."""
    block, width, experts = f"blk.{layer}", shape.width, shape.sizes["experts"]
    yield from norms(block, width, "attn_norm", "post_attention_norm")
    for tensor in attention(shape, block):
        yield tensor._replace(kind="Q8_0")
        yield Tensor(tensor.name.replace("weight", "bias"), tensor.shape[:1], "noise")
    yield Tensor(f"{block}.attn_sinks.weight", (shape.heads,), "noise")
    yield Tensor(f"{block}.ffn_gate_inp.weight", (experts, width), "noise")
    yield Tensor(f"{block}.ffn_gate_inp.bias", (experts,), "noise")
    for name in ("gate", "up", "down"):
        sizes = (width, shape.inner) if name == "down" else (shape.inner, width)
        yield Tensor(f"{block}.ffn_{name}_exps.weight", (experts, *sizes), "MXFP4")
        yield Tensor(f"{block}.ffn_{name}_exps.bias", (experts, sizes[0]), "noise")


LFM2_ATTENDING = (2, 5, 8, 10, 12, 14)


def qwen35_shape(layers: int, width: int, inner: int, heads: tuple[int, int], values: int) -> Shape:
    """Return a dense Qwen 3.5; `heads` are those of queries and of keys."""
    return Shape(
        architecture="qwen35",
        block=qwen35,
        layers=layers,
        width=width,
        inner=inner,
        heads=heads[0],
        key_heads=heads[1],
        head_dim=256,
        rotary_base=1e7,
        vocabulary=248_320,
        tied=True,
        others={
            "rope.dimension_count": 64,
            "rope.dimension_sections": [11, 11, 10, 0],
            "full_attention_interval": 4,
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": values,
            "ssm.inner_size": 128 * values,
        },
        sizes={"keys": 16, "values": values},
    )


def llama_shape(**sizes: Any) -> Shape:
    """Return a Llama or Mistral."""
    return Shape(architecture="llama", block=llama, **sizes)


SHAPES: Mapping[str, Shape] = {
    "llama-1b": llama_shape(
        layers=16, width=2048, inner=8192, heads=32, key_heads=8, head_dim=64, rotary_base=5e5
    ),
    "llama-3b": llama_shape(
        layers=28, width=3072, inner=8192, heads=24, key_heads=8, head_dim=128, rotary_base=5e5
    ),
    "mistral-7b": llama_shape(
        layers=32, width=4096, inner=14336, heads=32, key_heads=8, head_dim=128, rotary_base=1e4
    ),
    "phi4-mini": Shape(
        architecture="phi3",
        block=phi3,
        layers=32,
        width=3072,
        inner=8192,
        heads=24,
        key_heads=8,
        head_dim=128,
        rotary_base=1e4,
        vocabulary=200_064,
        tied=True,
        others={"rope.dimension_count": 96},
    ),
    "lfm2-1.2b": Shape(
        architecture="lfm2",
        block=lfm2,
        layers=16,
        width=2048,
        inner=8192,
        heads=32,
        key_heads=8,
        head_dim=64,
        rotary_base=1e6,
        vocabulary=65_536,
        tied=True,
        output_norm="token_embd_norm",
        others={
            "shortconv.l_cache": 3,
            "attention.head_count_kv": [8 * (layer in LFM2_ATTENDING) for layer in range(16)],
        },
        sizes={"attending": LFM2_ATTENDING},
    ),
    "qwen3.5-0.8b": qwen35_shape(24, 1024, 3584, (8, 2), 16),
    "qwen3.5-4b": qwen35_shape(32, 2560, 9216, (16, 4), 32),
    "gpt-oss-2-layers": Shape(
        architecture="gpt-oss",
        block=gpt_oss,
        layers=2,
        width=2880,
        inner=2880,
        heads=64,
        key_heads=8,
        head_dim=64,
        rotary_base=1.5e5,
        vocabulary=201_088,
        others={
            "attention.sliding_window": 128,
            "expert_count": 32,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2880,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
        sizes={"experts": 32},
    ),
}


def tensors(shape: Shape, vocabulary: int) -> Tensors:
    """Yield all tensors of a model."""
    yield Tensor("token_embd.weight", (vocabulary, shape.width), "finer")
    if not shape.tied:
        yield Tensor("output.weight", (vocabulary, shape.width), "finer")
    yield Tensor(f"{shape.output_norm}.weight", (shape.width,), "ones")
    for layer in range(shape.layers):
        yield from shape.block(shape, layer)


def typed(every: Iterator[Tensor], quantisation: str) -> Tensors:
    """Yield the tensors with the types that the quantisation gives them."""
    mixed = quantisation == "Q4_K_M"
    usual = "Q4_K" if mixed else quantisation
    finer = "Q6_K" if mixed else "F16" if quantisation == "F16" else "Q8_0"
    for tensor in every:
        first, layer, *_ = tensor.name.split(".")
        even = mixed and first == "blk" and int(layer) % 2 == 0
        types = {"usual": usual, "finer": finer, "some": "Q6_K" if even else usual}
        yield tensor._replace(kind=types.get(tensor.kind, tensor.kind))


def numbers(random: np.random.Generator, tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's numbers, or the bytes of its blocks; activations keep their size."""
    shape, kind = tensor.shape, tensor.kind
    size = shape[-1] ** -0.5
    if kind == "ones":
        return np.ones(shape, np.float32)
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
