"""Embeddings of a token for each layer, beside the one that the first layer gets (Gemma 4).

A table has a row of all layers' embeddings for each token. A projection of the usual embedding is
added; each layer multiplies its part by a gate of its hidden state and adds the result. Knows the
number of layers and no layer.
"""

import math

from kvcast.families.blocks import TOKENS
from kvcast.spec.program import Node, ProgramWriter

_TABLE, _PROJECTION = "decoder.layer_embedding", "decoder.layer_projection"


def shapes(width: int, *, layers: int, vocab_size: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of all layers, for embeddings of that width of each."""
    return {
        f"{_TABLE}.weight": (vocab_size, layers * width),
        f"{_PROJECTION}.weight": (layers * width, hidden),
        f"{_PROJECTION}_norm.weight": (width,),
    }


def layer_shapes(width: int, *, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer."""
    return {
        "layer_input.gate.weight": (width, hidden),
        "layer_input.out.weight": (hidden, width),
        "layer_input_norm.weight": (hidden,),
    }


def embedded(write: ProgramWriter, x: Node, width: int, *, hidden: int, epsilon: float) -> Node:
    """Return the embeddings of all layers, [rows, new, layers * width], of embeddings `x`.

    They are larger by the root of 2 than Gemma's: a norm follows each layer's part.
    """
    # Norms of a projection divided by the root of `hidden`.
    parts = write.step("unflatten", write.linear(x, _PROJECTION), -1, [-1, width])
    normed = write.rms_norm(parts, f"{_PROJECTION}_norm", epsilon * hidden)
    own = write.step("mul", write.embedding(f"{_TABLE}.weight", TOKENS), math.sqrt(width))
    return write.step("add", own, write.step("flatten", normed, -2))


def added(
    write: ProgramWriter, x: Node, part: Node, i: int, *, activation: str, epsilon: float
) -> Node:
    """Add what layer i makes of its part of the embeddings to its hidden state."""
    layer = f"decoder.layers.{i}.layer_input"
    gate = write.linear(x, f"{layer}.gate", activation=activation)
    product = write.linear(write.step("mul", gate, part), f"{layer}.out")
    # Of parts that are larger by the root of 2.
    return write.step("add", x, write.rms_norm(product, f"{layer}_norm", 2 * epsilon))
