"""The canonical names and shapes of a T5's tensors.

Weights are [out, in], as in torch's Linear. Query, key and value of self-attention are one tensor
in this order, and so are key and value of cross-attention, and gate and up. Tables of relative
positions are [buckets, heads]. Knows no file format.
"""

from kvcast.families.t5 import T5Dimensions


def tensor_shapes(dimensions: T5Dimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    width, vocab = dimensions.width, dimensions.vocab_size
    mixed = dimensions.heads * dimensions.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (vocab, width)}
    if not dimensions.tied:
        shapes["head.weight"] = (vocab, width)
    for stack, layers in (
        ("encoder", dimensions.encoder_layers),
        ("decoder", dimensions.decoder_layers),
    ):
        shapes[f"{stack}.bias.weight"] = (dimensions.buckets, dimensions.heads)
        shapes[f"{stack}.norm.weight"] = (width,)
        attention = {
            "self_attention_norm.weight": (width,),
            "self_attention.qkv.weight": (3 * mixed, width),
            "self_attention.out.weight": (width, mixed),
        }
        layer = attention | _feed_forward_shapes(dimensions)
        if stack == "decoder":
            layer |= {
                "cross_attention_norm.weight": (width,),
                "cross_attention.query.weight": (mixed, width),
                "cross_attention.key_value.weight": (2 * mixed, width),
                "cross_attention.out.weight": (width, mixed),
            }
        for i in range(layers):
            shapes |= {f"{stack}.layers.{i}.{name}": shape for name, shape in layer.items()}
    return shapes


def _feed_forward_shapes(dimensions: T5Dimensions) -> dict[str, tuple[int, ...]]:
    width, inner = dimensions.width, dimensions.inner
    up = {"gate_up": 2 * inner} if dimensions.gated else {"up": inner}
    return {
        "feed_forward_norm.weight": (width,),
        **{f"feed_forward.{name}.weight": (size, width) for name, size in up.items()},
        "feed_forward.down.weight": (width, inner),
    }
