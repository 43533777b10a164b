"""The canonical names and shapes of a UniLM's tensors (RoFormer, SimBERT).

Weights are [out, in], as in torch's Linear. Query, key and value are one tensor in this order;
rotary pairs, if any, are in halves of a head. The output head is the embedding. Knows no file
format.
"""

from kvcast.families.unilm import UnilmDimensions


def tensor_shapes(dimensions: UnilmDimensions) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape."""
    width, embedded = dimensions.width, dimensions.embedding_width
    linears = {"head.transform": (embedded, width)}
    norms = {"embedding_norm": embedded, "head.norm": embedded}
    if embedded != width:
        linears["projection"] = (width, embedded)
    if dimensions.pooled:
        linears["pooler"] = (width, width)
    for i in range(dimensions.layers):
        linears |= {
            f"layers.{i}.attention.qkv": (3 * width, width),
            f"layers.{i}.attention.out": (width, width),
            f"layers.{i}.feed_forward.up": (dimensions.inner, width),
            f"layers.{i}.feed_forward.down": (width, dimensions.inner),
        }
        norms |= {f"layers.{i}.attention_norm": width, f"layers.{i}.feed_forward_norm": width}
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (dimensions.vocab_size, embedded),
        "segments.weight": (dimensions.segments, embedded),
        "head.bias": (dimensions.vocab_size,),
    }
    if dimensions.rotary is None:
        shapes["positions.weight"] = (dimensions.max_positions, embedded)
    for name, shape in linears.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, size in norms.items():
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    return shapes
