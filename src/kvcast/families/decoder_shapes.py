"""Canonical names and shapes of a decoder-only model's tensors.

Tensors are [out, in], as in torch's Linear. Query, key and value are one tensor in this order, and
so are gate and up. RMS norms multiply by their weight (Gemma's files store it minus one). Rotary
pairs are in halves of a head.
"""

from kvcast.families.decoder_dimensions import DecoderDimensions
from kvcast.families.feed_forwards import (
    has_experts_beside,
    is_mixture,
    layer_embedding_shapes,
    layer_shapes,
    mixture_shapes,
)
from kvcast.families.mixers import ATTENTION, convolution_shapes


def tensor_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    shapes = {
        "embedding.weight": (dimensions.vocab_size, dimensions.width),
        **_norm_shapes(dimensions, "norm", dimensions.width),
    }
    if dimensions.learned_positions:
        shapes["positions"] = (dimensions.max_positions, dimensions.width)
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.width)
    if dimensions.head_bias:
        shapes["head.bias"] = (dimensions.vocab_size,)
    shapes = {f"decoder.{name}": shape for name, shape in shapes.items()}
    if width := dimensions.layer_embedding:
        shapes |= layer_embedding_shapes(
            width,
            layers=dimensions.layers,
            vocab_size=dimensions.vocab_size,
            hidden=dimensions.width,
        )
    for i in range(dimensions.layers):
        layer = _layer_shapes(dimensions, i)
        shapes |= {f"decoder.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _layer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for block, matrices in (
        ("attention", _mixer_shapes(dimensions, i)),
        ("feed_forward", _feed_forward_shapes(dimensions, i)),
    ):
        if dimensions.pre_norms and not (dimensions.shared_norm and block == "feed_forward"):
            shapes |= _norm_shapes(dimensions, f"{block}_norm", dimensions.width)
        shapes |= matrices
        if dimensions.post_norms:
            shapes |= _norm_shapes(dimensions, f"{block}_post_norm", dimensions.width)
    if has_experts_beside(dimensions, i):
        norms = ("feed_forward_own_norm", "experts_norm", "experts_post_norm")
        shapes |= {f"{name}.weight": (dimensions.width,) for name in norms}
        experts = mixture_shapes(dimensions)
        shapes |= {f"experts.{name}": shape for name, shape in experts.items()}
    if width := dimensions.layer_embedding:
        shapes |= layer_shapes(width, hidden=dimensions.width)
    if dimensions.layer_scales:
        shapes["scale"] = (1,)
    return shapes


def _norm_shapes(
    dimensions: DecoderDimensions, name: str, width: int
) -> dict[str, tuple[int, ...]]:
    leaves = ("weight", "bias") if dimensions.norm_bias else ("weight",)
    return {f"{name}.{leaf}": (width,) for leaf in leaves}


def _mixer_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a mixer: attention or its replacement."""
    if dimensions.mixer(i) == ATTENTION:
        return _attention_shapes(dimensions, i)
    if state := dimensions.state(i):
        return state.shapes(dimensions.width)
    return convolution_shapes(dimensions)


def _attention_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    width, head_dim = dimensions.width, dimensions.head_dim_of(i)
    reads = dimensions.keys_and_values(i)
    mixed = dimensions.heads * head_dim
    projected = sum(dimensions.projected(i))
    shapes: dict[str, tuple[int, ...]] = {
        "attention.qkv.weight": (projected, width),
        "attention.out.weight": (width, mixed),
    }
    if dimensions.qkv_bias:
        shapes["attention.qkv.bias"] = (projected,)
    if dimensions.out_bias:
        shapes["attention.out.bias"] = (width,)
    if dimensions.attention_gate:
        shapes["attention.gate.weight"] = (mixed, width)
    if dimensions.query_key_norm:
        own = dimensions.own_query_key_norms
        each = own or dimensions.whole_query_key_norm
        normed_heads = {"query": dimensions.heads}
        if reads.source is None:
            normed_heads["key"] = reads.heads
        for name, heads in normed_heads.items():
            norm, normed = f"attention.{name}_norm", head_dim * (heads if each else 1)
            weight = {f"{norm}.weight": (normed,)}
            shapes |= weight if own else _norm_shapes(dimensions, norm, normed)
    if dimensions.sinks:
        shapes["attention.sinks"] = (dimensions.heads,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions, i: int) -> dict[str, tuple[int, ...]]:
    if is_mixture(dimensions, i):
        of_experts = mixture_shapes(dimensions)
        return {f"feed_forward.{name}": shape for name, shape in of_experts.items()}
    width, inner, up = dimensions.width, dimensions.inner_of(i), up_of(dimensions)
    rows = (2 if dimensions.gated else 1) * inner
    shapes: dict[str, tuple[int, ...]] = {
        f"feed_forward.{up}.weight": (rows, width),
        "feed_forward.down.weight": (width, inner),
    }
    if dimensions.feed_forward_bias:
        shapes |= {f"feed_forward.{up}.bias": (rows,), "feed_forward.down.bias": (width,)}
    return shapes


def up_of(dimensions: DecoderDimensions) -> str:
    return "gate_up" if dimensions.gated else "up"
