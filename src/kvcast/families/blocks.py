"""Parts of programs that several families have."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from kvcast.families.programs import cache_names
from kvcast.spec.program import Constant, Node, ProgramWriter, SelfAttention, SharedAttention

TOKENS, LENGTHS, OFFSETS = Node("tokens"), Node("lengths"), Node("offsets")
"""Inputs of `decode`: tokens [rows, new], lengths [rows], offsets [asked]."""

EMBEDDINGS = Node("cross_embeddings_0")
"""What `encode` gives a decoder without cross-attention to read: [slots, 1, t, width]."""


def cache_of(prefix: str, layer: int) -> tuple[Node, Node]:
    return Node(f"{prefix}_key_{layer}"), Node(f"{prefix}_value_{layer}")


def attend(
    write: ProgramWriter, layer: int, qkv: Sequence[Node], scale: float, **options: Any
) -> Node:
    """Options as for `SelfAttention`."""
    query, key, value = qkv
    call = SelfAttention(query, key, value, *cache_of("past", layer), LENGTHS, scale, **options)
    return write.self_attention(call)


def attend_shared_cache(
    write: ProgramWriter, layer: int, query: Node, scale: float, **options: Any
) -> Node:
    """Attend at `offsets`, [rows, asked, width]; options as for `SharedAttention`."""
    call = SharedAttention(query, *cache_of("past", layer), LENGTHS, OFFSETS, scale, **options)
    return write.step("shared_attention", *call)


def new_positions(write: ProgramWriter, dtype: str = "int64") -> Node:
    """[rows, new]."""
    new = write.step("arange", write.size(TOKENS, 1), dtype=dtype)
    return write.step("add", write.step("unsqueeze", LENGTHS, 1), new)


def positions(write: ProgramWriter) -> Node:
    """Int64 [rows, new]; an operation, like attention, because rows may be packed."""
    return write.step("positions", TOKENS, LENGTHS)


def rows_at_positions(write: ProgramWriter, table: Constant, width: int) -> Node:
    """Rows of a table [positions, width] for the new tokens, [rows, new, width]."""
    rows = write.step("index_select", table, 0, write.step("flatten", positions(write)))
    return write.step("view", rows, [write.size(TOKENS, 0), write.size(TOKENS, 1), width])


def gather_embeddings(write: ProgramWriter, places: Node) -> Node:
    """Return EMBEDDINGS of each row's own slot at places [rows, new]: [rows, new, width]."""
    slots, count = write.size(EMBEDDINGS, 0), write.size(EMBEDDINGS, 2)
    # Adjacent rows read one slot, so they are one row of all its new tokens.
    by_slot = write.step("view", places, [slots, -1])
    first = write.step("mul", write.step("arange", slots, dtype="int64"), count)
    index = write.step("add", by_slot, write.step("unsqueeze", first, 1))
    held = write.step("flatten", EMBEDDINGS, 0, 2)
    lines = write.step("index_select", held, 0, write.step("flatten", index))
    return write.step("view", lines, [write.size(TOKENS, 0), write.size(TOKENS, 1), -1])


def select_asked(write: ProgramWriter, hidden: Node) -> Node:
    """Hidden states at `offsets`, [rows, asked, width]: only these go through the large head."""
    return write.step("index_select", hidden, 1, OFFSETS)


def join_rows(write: ProgramWriter, hidden: Node) -> Node:
    """Join rows and positions: [rows * asked, width]."""
    return write.step("flatten", hidden, 0, 1)


def split_rows(write: ProgramWriter, logits: Node) -> Node:
    """[rows * asked, vocab] to [rows, asked, vocab]."""
    sizes = [write.size(LENGTHS, 0), write.size(OFFSETS, 0)]
    return write.step("unflatten", logits, 0, sizes)


def cap_logits(write: ProgramWriter, logits: Node, cap: float) -> Node:
    """Return c tanh(x / c), for a cap c; 0: none."""
    if not cap:
        return logits
    return write.step("mul", write.step("tanh", write.step("div", logits, cap)), cap)


def sigmoid(write: ProgramWriter, x: Node) -> Node:
    half = write.step("tanh", write.step("mul", x, 0.5))
    return write.step("mul", write.step("add", half, 1.0), 0.5)


def project_cross_caches(
    write: ProgramWriter,
    encoded: Node,
    layers: int,
    shape: tuple[int, int],
    heads: int,
    *,
    bias: bool,
) -> Mapping[str, Node]:
    """Return [batch, heads, t, head_dim] of encoded positions [batch, t, width], by cache name."""
    names = [f"decoder.layers.{layer}.cross_attention.key_value" for layer in range(layers)]
    pairs = (write.chunk(write.linear(encoded, name, shape, bias=bias), 2) for name in names)
    return split_heads(write, pairs, heads)


def split_heads(
    write: ProgramWriter, pairs: Iterable[Sequence[Node]], heads: int
) -> Mapping[str, Node]:
    """Pairs [batch, t, width] to the cross caches [batch, heads, t, head_dim], by name."""
    parts = [
        write.step("contiguous", write.step("transpose", apart, 1, 2))
        for pair in pairs
        for part in pair
        for apart in [write.step("unflatten", part, -1, [heads, -1])]
    ]
    return dict(zip(cache_names("cross", len(parts) // 2), parts, strict=True))


class BertSizes(Protocol):
    @property
    def width(self) -> int:
        """Size of a hidden state."""

    @property
    def inner(self) -> int:
        """Inner width of a feed-forward."""

    @property
    def activation(self) -> str:
        """Of the feed-forward; one of `sizes.ACTIVATIONS`."""

    @property
    def norm_eps(self) -> float:
        """Of layer norms."""


def bert_layer(
    write: ProgramWriter, x: Node, i: int, sizes: BertSizes, mix: Callable[[Sequence[Node]], Node]
) -> Node:
    """Write a layer of BERT; `mix` attends, with query, key and value."""
    layer, width, epsilon = f"layers.{i}", sizes.width, sizes.norm_eps
    projected = write.linear(x, f"{layer}.attention.qkv", (3 * width, width), bias=True)
    mixed = mix(write.split(projected, [width] * 3))
    x = write.linear(mixed, f"{layer}.attention.out", (width, width), bias=True, residual=x)
    x = write.layer_norm(x, f"{layer}.attention_norm", width, epsilon)
    block, up, activation = f"{layer}.feed_forward", (sizes.inner, width), sizes.activation
    fed = write.linear(x, f"{block}.up", up, bias=True, activation=activation)
    x = write.linear(fed, f"{block}.down", up[::-1], bias=True, residual=x)
    return write.layer_norm(x, f"{block}_norm", width, epsilon)


def bias_by_distance(
    write: ProgramWriter, table: str, farthest: int, positions: Node, sizes: Sequence[int | Node]
) -> Node:
    """Biases [rows, heads, queries, keys] of attention; `sizes` are rows, queries and keys.

    `table`: a constant [heads, distances], of distances from -farthest to farthest; `positions` of
    queries, [rows, queries].
    """
    keys = write.step("arange", sizes[-1], dtype="int64")
    distances = write.step("sub", keys, write.step("unsqueeze", positions, 2))
    index = write.step("add", write.step("clamp", distances, -farthest, farthest), farthest)
    # Heads first, so that the transpose moves long rows.
    by_head = write.step("index_select", Constant(table), 1, write.step("flatten", index))
    return write.step("transpose", write.step("unflatten", by_head, 1, list(sizes)), 0, 1)
