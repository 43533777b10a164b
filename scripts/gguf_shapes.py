"""Tensors and numbers of real models, as llama.cpp's converter lays them out in GGUF files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple


class Tensor(NamedTuple):
    """A tensor of a file.

    Attributes:
        name: with its ending.
        shape: as PyTorch has it, the last axis the one that is contiguous.
        kind: "usual", "some" (finer in every other layer of a mixture), "finer", a GGML type, or
            "ones", "noise" and "turning", in fp32.

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
        outside: yields the tensors of no layer besides embeddings, norm and head; asks for the
            vocabulary.
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
    outside: Callable[["Shape", int], Tensors] = lambda *_: iter(())
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


def latent_attention(shape: Shape, block: str) -> Tensors:
    """Yield projections of attention to latents, and of queries' if they have any."""
    width, heads, sizes = shape.width, shape.heads, shape.sizes
    plain, rotated, value = sizes["plain"], sizes["rotated"], sizes["value"]
    rank, query_rank = sizes["rank"], sizes["query_rank"]
    queries = heads * (plain + rotated)
    if query_rank:
        yield Tensor(f"{block}.attn_q_a.weight", (query_rank, width))
        yield Tensor(f"{block}.attn_q_a_norm.weight", (query_rank,), "ones")
        yield Tensor(f"{block}.attn_q_b.weight", (queries, query_rank))
    else:
        yield Tensor(f"{block}.attn_q.weight", (queries, width))
    yield Tensor(f"{block}.attn_kv_a_mqa.weight", (rank + rotated, width))
    yield Tensor(f"{block}.attn_kv_a_norm.weight", (rank,), "ones")
    if sizes["whole"]:
        yield Tensor(f"{block}.attn_kv_b.weight", (heads * (plain + value), rank), "some")
    else:
        yield Tensor(f"{block}.attn_k_b.weight", (heads, rank, plain))
        yield Tensor(f"{block}.attn_v_b.weight", (heads, value, rank))
    yield Tensor(f"{block}.attn_output.weight", (width, heads * value))


def deepseek2(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of MiniCPM 3, Youtu-LLM, DeepSeek V2 or Mistral 4; the first ones are dense."""
    block, width = f"blk.{layer}", shape.width
    yield from norms(block, width, "attn_norm", "ffn_norm")
    yield from latent_attention(shape, block)
    if layer < shape.others.get("leading_dense_block_count", shape.layers):
        yield from feed_forward(shape, block)
        return
    experts, inner = shape.others["expert_count"], shape.others["expert_feed_forward_length"]
    yield Tensor(f"{block}.ffn_gate_inp.weight", (experts, width), "noise")
    for name in ("gate", "up", "down"):
        sizes = (width, inner) if name == "down" else (inner, width)
        kind = "some" if name == "down" else "usual"
        yield Tensor(f"{block}.ffn_{name}_exps.weight", (experts, *sizes), kind)
    shared = replace(shape, inner=inner * shape.others["expert_shared_count"])
    for tensor in feed_forward(shared, block):
        yield tensor._replace(name=tensor.name.replace(".weight", "_shexp.weight"))


def gemma4(shape: Shape, layer: int) -> Tensors:
    """Yield a layer of Gemma 4; each fifth sees everything and has larger heads.

    The last layers read the keys and values of earlier ones, and their feed-forward is wider.
    """
    block, width, each = f"blk.{layer}", shape.width, shape.sizes["each"]
    whole, shared = layer % 5 == 4, layer >= shape.layers - shape.sizes["shared"]
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_norm")
    yield from norms(block, width, *names)
    head = shape.head_dim if whole else shape.sizes["window_head_dim"]
    own = replace(shape, head_dim=head, inner=shape.inner * (2 if shared else 1))
    unread = ("attn_k.", "attn_v.") if shared else ()
    for tensor in attention(own, block):
        if not tensor.name.startswith(tuple(f"{block}.{name}" for name in unread)):
            yield tensor
    yield from norms(block, head, "attn_q_norm", *([] if shared else ["attn_k_norm"]))
    yield from feed_forward(own, block)
    yield Tensor(f"{block}.inp_gate.weight", (each, width))
    yield Tensor(f"{block}.proj.weight", (width, each))
    yield Tensor(f"{block}.layer_output_scale.weight", (1,), "ones")


def gemma4_outside(shape: Shape, vocabulary: int) -> Tensors:
    """Yield Gemma 4's embeddings of layers and its table of angles."""
    each = shape.sizes["each"]
    yield Tensor("per_layer_token_embd.weight", (vocabulary, shape.layers * each), "finer")
    yield Tensor("per_layer_model_proj.weight", (shape.layers * each, shape.width), "F16")
    yield Tensor("per_layer_proj_norm.weight", (each,), "ones")
    yield Tensor("rope_freqs.weight", (shape.head_dim // 2,), "turning")


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


def latent_shape(
    architecture: str,
    *,
    query_rank: int,
    rank: int,
    plain: int,
    rotated: int,
    value: int,
    others: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> Shape:
    """Return a model that attends to latents; newer files have sizes as of one head for all."""
    whole = architecture == "minicpm3"
    ranks = {"attention.kv_lora_rank": rank} | (
        {"attention.q_lora_rank": query_rank} if query_rank else {}
    )
    of_heads = {
        "attention.value_length": rank,
        "attention.key_length_mla": plain + rotated,
        "attention.value_length_mla": value,
    }
    return Shape(
        architecture=architecture,
        block=deepseek2,
        key_heads=sizes["heads"] if whole else 1,
        head_dim=plain + rotated if whole else rank + rotated,
        others={
            **ranks,
            "rope.dimension_count": rotated,
            **({"attention.value_length": value} if whole else of_heads),
            **(others or {}),
        },
        sizes={
            **{"query_rank": query_rank, "rank": rank, "plain": plain, "rotated": rotated},
            **{"value": value, "whole": whole},
        },
        **sizes,
    )


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
    "gemma-4-e2b": Shape(
        architecture="gemma4",
        block=gemma4,
        layers=35,
        width=1536,
        inner=6144,
        heads=8,
        key_heads=1,
        head_dim=512,
        rotary_base=1e6,
        vocabulary=262_144,
        tied=True,
        outside=gemma4_outside,
        others={
            "feed_forward_length": [6144] * 15 + [12288] * 20,
            "attention.sliding_window": 512,
            "attention.sliding_window_pattern": [layer % 5 != 4 for layer in range(35)],
            "attention.shared_kv_layers": 20,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
            "rope.dimension_count_swa": 256,
            "rope.freq_base_swa": 1e4,
            "embedding_length_per_layer_input": 256,
            "final_logit_softcapping": 30.0,
        },
        sizes={"each": 256, "shared": 20, "window_head_dim": 256},
    ),
    "youtu-2b": latent_shape(
        "deepseek2",
        layers=32,
        width=2048,
        inner=6144,
        heads=16,
        query_rank=1536,
        rank=512,
        plain=128,
        rotated=64,
        value=128,
        rotary_base=1.6e6,
        vocabulary=128_256,
        tied=True,
        others={
            "leading_dense_block_count": 32,
            "expert_feed_forward_length": 6144,
            "expert_shared_count": 0,
        },
    ),
    "minicpm3-4b": latent_shape(
        "minicpm3",
        layers=62,
        width=2560,
        inner=6400,
        heads=40,
        query_rank=768,
        rank=256,
        plain=64,
        rotated=32,
        value=64,
        rotary_base=1e4,
        vocabulary=73_448,
        tied=True,
    ),
    "deepseek-v2-lite": latent_shape(
        "deepseek2",
        layers=27,
        width=2048,
        inner=10_944,
        heads=16,
        query_rank=0,
        rank=512,
        plain=128,
        rotated=64,
        value=128,
        rotary_base=1e4,
        positions=163_840,
        vocabulary=102_400,
        others={
            "leading_dense_block_count": 1,
            "expert_count": 64,
            "expert_used_count": 6,
            "expert_feed_forward_length": 1408,
            "expert_shared_count": 2,
            "expert_weights_scale": 1.0,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "expert_gating_func": 1,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 40.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 0.0707,
        },
    ),
    "mistral-small-4-2-layers": latent_shape(
        "mistral4",
        layers=2,
        width=4096,
        inner=12_288,
        heads=32,
        query_rank=1024,
        rank=256,
        plain=64,
        rotated=64,
        value=128,
        rotary_base=1e4,
        vocabulary=131_072,
        others={
            "leading_dense_block_count": 0,
            "expert_count": 128,
            "expert_used_count": 4,
            "expert_feed_forward_length": 2048,
            "expert_shared_count": 1,
            "expert_weights_scale": 1.0,
            "expert_weights_norm": True,
            "expert_group_count": 1,
            "expert_group_used_count": 1,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 128.0,
            "rope.scaling.original_context_length": 8192,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 0.1,
        },
    ),
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
    yield from shape.outside(shape, vocabulary)
    for layer in range(shape.layers):
        yield from shape.block(shape, layer)
