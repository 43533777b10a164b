"""Compiles attention to latents, as `kvcast.runtimes.native.operations` does.

Steps are absorbed, and so is everything in fp32; quantized prompts are expanded.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kvcast.runtimes.native.opcodes import STRUCTS, Dtype, Operation, Word
from kvcast.runtimes.native.plan_builder import Builder, Experts
from kvcast.runtimes.native.values import (
    NOTHING,
    Value,
    cache_sizes,
    expect,
    expect_angles,
    expect_lengths,
    flat,
    flat_words,
    heads_of,
    is_cache,
)
from kvcast.spec.program import LatentAttention, PositionSelection


def _latent_attention(
    builder: Builder,
    *arguments: Any,
    **options: Any,
) -> Value:
    call = LatentAttention[Any](*arguments, **options)
    rows, new, _ = call.query.sizes
    heads = _expect_latents(call)
    rank, rotated = _line(call)
    expect_angles(call.cosines, call.sines, rotated // 2)
    words: dict[str, Any] = {
        "held": STRUCTS["LatentCache"].words(
            rows=rows,
            new_positions=new,
            capacity=call.cache.sizes[2],
            rank=rank,
            rotated=rotated,
            latent=_written(builder, call.latent),
            key=_written(builder, call.key),
            cache=heads_of(call.cache),
            lengths=call.lengths.address,
            **angle_words(builder, call),
        ),
        "heads": heads,
        "query": flat(builder.lines(call.query)),
        "scale": float(call.scale),
    }
    if not builder.prompt or call.selected is not None:
        return _absorbed(builder, call, words)
    width = heads * call.value_b.matrices[0].outputs
    out = Value.fresh((rows, new, width), Dtype.F32)
    stacks = {"keys": call.key_b.words, "values": call.value_b.words}
    builder.emit(
        Operation.EXPANDED_ATTENTION, **words, **stacks, out=flat_words(out.address, width)
    )
    return out


def _absorbed(builder: Builder, call: LatentAttention[Any], words: Mapping[str, Any]) -> Value:
    (rows, new, width), heads = call.query.sizes, words["heads"]
    (rank, _), each = _line(call), width // heads
    absorbed = _head_products(builder, call.query, call.absorb, each)
    mixed = Value.fresh((rows, new, heads * rank), Dtype.F32)
    builder.emit(
        Operation.LATENT_ATTENTION,
        **words,
        absorbed=flat_words(absorbed.address, heads * rank),
        query_dim=each,
        **_selected(builder, call),
        out=flat_words(mixed.address, heads * rank),
    )
    return _head_products(builder, mixed, call.value_b, rank)


def _line(call: LatentAttention[Any]) -> tuple[int, int]:
    """Return the widths of a cached line's latent and rotated key."""
    rank: int = call.key_b.matrices[0].inputs
    return rank, cache_sizes(call.cache)[-1] - rank


def _written(builder: Builder, part: Value | None) -> list[Word]:
    return flat_words(NOTHING, 0) if part is None else flat(builder.lines(part))


def _selected(builder: Builder, call: LatentAttention[Any]) -> dict[str, Any]:
    chosen = call.selected
    if chosen is None:
        return {"selected": NOTHING, "most": 0}
    expect(chosen.sizes[:2] == call.query.sizes[:2] and chosen.dtype == Dtype.I32, "positions")
    return {"selected": builder.contiguous(chosen, Dtype.I32).address, "most": chosen.sizes[2]}


def _select_positions(builder: Builder, *arguments: Any, **options: Any) -> Value:
    call = PositionSelection[Any](*arguments, **options)
    (rows, new, width), dim = call.query.sizes, call.key.sizes[-1]
    heads, capacity = call.weights.sizes[-1], call.cache.sizes[2]
    expect(call.key.sizes[:2] == call.weights.sizes[:2] == (rows, new), "index keys")
    expect(width == heads * dim and call.most > 0, "index heads")
    expect(is_cache(call.cache) and cache_sizes(call.cache) == (rows, 1, capacity, dim), "an index")
    expect_lengths(call.lengths, rows)
    rotated = 0 if call.cosines is None else 2 * call.cosines.shape[-1]
    expect_angles(call.cosines, call.sines, rotated // 2)
    expect(rotated <= dim, "tables of angles")
    out = Value.fresh((rows, new, call.most), Dtype.I32)
    builder.emit(
        Operation.SELECT_POSITIONS,
        rows=rows,
        new_positions=new,
        capacity=capacity,
        heads=heads,
        dim=dim,
        rotated=rotated,
        count=call.most,
        query=flat(builder.lines(call.query)),
        key=flat(builder.lines(call.key)),
        weights=flat(builder.lines(call.weights)),
        cache=heads_of(call.cache),
        lengths=call.lengths.address,
        **angle_words(builder, call),
        out=out.address,
    )
    return out


def angle_words(builder: Builder, call: Any) -> dict[str, Any]:
    return {
        name: NOTHING if (table := getattr(call, name)) is None else builder.outer(table).address
        for name in ("cosines", "sines")
    }


def _head_products(builder: Builder, x: Value, matrices: Experts, each: int) -> Value:
    """Multiply each head's first inputs by its matrix; its part of x has `each` numbers."""
    lines, heads = builder.lines(x), len(matrices.matrices)
    width = heads * matrices.matrices[0].outputs
    out = Value.fresh((*x.sizes[:-1], width), Dtype.F32)
    builder.emit(
        Operation.HEAD_PRODUCTS,
        rows=lines.rows,
        heads=heads,
        matrices=matrices.words,
        x=flat(lines),
        x_head_stride=each,
        out=flat_words(out.address, width),
    )
    return out


def _expect_latents(call: LatentAttention[Any]) -> int:
    """Return the number of heads of a call whose parts fit, else raise ValueError."""
    rows, new, width = call.query.sizes
    rank, rotated = _line(call)
    sizes = (rows, 1, call.cache.sizes[2], rank + rotated)
    expect(is_cache(call.cache) and cache_sizes(call.cache) == sizes, "a cache of latents")
    expect((call.key is None) == (call.latent is None or rotated == 0), "latents")
    for part, size in ((call.latent, rank), (call.key, rotated)):
        expect(part is None or part.sizes == (rows, new, size), "latents")
    expect_lengths(call.lengths, rows)
    heads = len(call.key_b.matrices)
    plain = width // heads - rotated
    shapes = [
        (len(stack.matrices), stack.matrices[0].outputs, stack.matrices[0].inputs)
        for stack in (call.key_b, call.absorb, call.value_b)
    ]
    wanted = [(heads, plain, rank), (heads, rank, plain), (heads, shapes[2][1], rank)]
    expect(width == heads * (plain + rotated) and shapes == wanted, "matrices of heads")
    return heads


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "latent_attention": _latent_attention,
    "select_positions": _select_positions,
}
