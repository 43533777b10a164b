"""The canonical names and shapes of a decoder-only model's tensors.

Weights are [out, in], as in torch's Linear. Query, key and value are one tensor in this order, and
so are gate and up. RMS norms multiply by their weight as it is (Gemma's files store it minus one).
Rotary pairs are in halves of a head. Knows no file format.
"""

from kvcast.families.decoder import DecoderDimensions


def tensor_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    shapes = {
        "embedding.weight": (dimensions.vocab_size, dimensions.width),
        "norm.weight": (dimensions.width,),
    }
    if not dimensions.tied:
        shapes["head.weight"] = (dimensions.vocab_size, dimensions.width)
    for i in range(dimensions.layers):
        layer = _attention_shapes(dimensions) | _feed_forward_shapes(dimensions)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"decoder.{name}": shape for name, shape in shapes.items()}


def _attention_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    width, head_dim = dimensions.width, dimensions.head_dim
    mixed = dimensions.heads * head_dim
    projected = mixed + 2 * dimensions.kv_heads * head_dim
    shapes = {
        "attention_norm.weight": (width,),
        "attention.qkv.weight": (projected, width),
        "attention.out.weight": (width, mixed),
    }
    if dimensions.qkv_bias:
        shapes["attention.qkv.bias"] = (projected,)
    if dimensions.out_bias:
        shapes["attention.out.bias"] = (width,)
    if dimensions.query_key_norm:
        shapes["attention.query_norm.weight"] = (head_dim,)
        shapes["attention.key_norm.weight"] = (head_dim,)
    if dimensions.post_norms:
        shapes["attention_post_norm.weight"] = (width,)
    return shapes


def _feed_forward_shapes(dimensions: DecoderDimensions) -> dict[str, tuple[int, ...]]:
    width, inner, experts = dimensions.width, dimensions.inner, dimensions.experts
    shapes: dict[str, tuple[int, ...]] = {"feed_forward_norm.weight": (width,)}
    if experts:
        shapes["feed_forward.router.weight"] = (experts, width)
        shapes["feed_forward.gate_up"] = (experts, 2 * inner, width)
        shapes["feed_forward.down"] = (experts, width, inner)
    else:
        shapes["feed_forward.gate_up.weight"] = (2 * inner, width)
        shapes["feed_forward.down.weight"] = (width, inner)
    if dimensions.post_norms:
        shapes["feed_forward_post_norm.weight"] = (width,)
    return shapes
