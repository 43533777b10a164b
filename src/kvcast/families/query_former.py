"""BLIP-2's Q-Former as data: learnt queries attend to each other and to windows of positions.

Norms follow their residuals, as in BERT. Canonical tensors are [out, in], as in torch's Linear;
query, key and value are one tensor, and so are key and value. Knows no encoder.
"""

from dataclasses import dataclass

from kvcast.errors import KvcastError
from kvcast.families.blocks import with_biases
from kvcast.spec.program import Constant, Node, ProgramWriter
from kvcast.spec.sizes import (
    ACTIVATIONS,
    MOST_POSITIONS,
    require_heads,
    require_layers,
    require_one_of,
    require_positive,
)

_QUERIES = "encoder.projector.queries"


@dataclass(frozen=True, kw_only=True)
class QueryFormer:
    """Sizes of a Q-Former.

    Attributes:
        width: size of a hidden state.
        inner: inner width of a feed-forward.
        heads: number of heads.
        layers: number of layers.
        crossing: every how many layers queries attend to positions, from the first on.
        epsilon: of norms.
        activation: of feed-forwards; one of `sizes.ACTIVATIONS`.

    """

    width: int
    inner: int
    heads: int
    layers: int
    crossing: int
    epsilon: float
    activation: str = "gelu"

    def __post_init__(self) -> None:
        names = ("width", "inner", "heads", "layers", "crossing")
        require_positive(**{name: vars(self)[name] for name in names})
        require_layers(self.layers)
        require_one_of("activation", self.activation, ACTIVATIONS)
        require_heads(self.width, self.heads)
        if max(self.width, self.inner) > MOST_POSITIONS:
            raise KvcastError("a projector is larger than any model's")


def shapes(of: QueryFormer, queries: int, source: int) -> dict[str, tuple[int, ...]]:
    """Return every canonical name with its shape; `source` is the width of positions."""
    width = of.width
    norms = [f"{_QUERIES}_norm"]
    linears: dict[str, tuple[int, ...]] = {}
    for i in range(of.layers):
        layer = _layer(i)
        linears |= {
            f"{layer}.self_attention.qkv": (3 * width, width),
            f"{layer}.self_attention.out": (width, width),
            f"{layer}.feed_forward.up": (of.inner, width),
            f"{layer}.feed_forward.down": (width, of.inner),
        }
        norms += [f"{layer}.self_attention_norm", f"{layer}.feed_forward_norm"]
        if i % of.crossing == 0:
            linears |= {
                f"{layer}.cross_attention.query": (width, width),
                f"{layer}.cross_attention.key_value": (2 * width, source),
                f"{layer}.cross_attention.out": (width, width),
            }
            norms.append(f"{layer}.cross_attention_norm")
    modules = linears | dict.fromkeys(norms, (width,))
    return {_QUERIES: (queries, width), **with_biases(modules)}


def written(
    write: ProgramWriter, windows: Node, of: QueryFormer, queries: int, window: int
) -> Node:
    """Write it: positions [windows, window, source] to answers [windows, queries, width]."""
    scale = (of.width // of.heads) ** -0.5
    x = _asked(write, windows, of, queries)
    for i in range(of.layers):
        layer = _layer(i)
        own = write.chunk(write.linear(x, f"{layer}.self_attention.qkv", bias=True), 3)
        mixed = write.step("encoder_attention", *own, of.heads, scale)
        x = _added(write, x, mixed, layer, "self_attention", of)
        if i % of.crossing == 0:
            query = write.linear(x, f"{layer}.cross_attention.query", bias=True)
            held = write.linear(windows, f"{layer}.cross_attention.key_value", bias=True)
            given = query, *write.chunk(held, 2), of.heads, scale
            # So far that each query sees all positions of its window.
            mixed = write.step("window_attention", *given, window, window)
            x = _added(write, x, mixed, layer, "cross_attention", of)
        activation = of.activation
        inner = write.linear(x, f"{layer}.feed_forward.up", bias=True, activation=activation)
        x = _added(write, x, inner, layer, "feed_forward", of)
    return x


def _layer(i: int) -> str:
    return f"encoder.projector.layers.{i}"


def _asked(write: ProgramWriter, windows: Node, of: QueryFormer, queries: int) -> Node:
    """Return the queries of each window, [windows, queries, width]."""
    own = write.step("arange", queries, dtype="int64")
    count = write.size(windows, 0)
    same = write.step("mul", write.step("arange", count, dtype="int64"), 0)
    index = write.step("add", write.step("unsqueeze", same, 1), own)
    normed = write.layer_norm(
        write.step("index_select", Constant(_QUERIES), 0, own), f"{_QUERIES}_norm", of.epsilon
    )
    lines = write.step("index_select", normed, 0, write.step("flatten", index))
    return write.step("unflatten", lines, 0, [count, queries])


def _added(
    write: ProgramWriter, x: Node, inner: Node, layer: str, block: str, of: QueryFormer
) -> Node:
    last = "down" if block == "feed_forward" else "out"
    whole = write.linear(inner, f"{layer}.{block}.{last}", bias=True, residual=x)
    return write.layer_norm(whole, f"{layer}.{block}_norm", of.epsilon)
