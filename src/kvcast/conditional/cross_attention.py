"""Cross-attention that projects a source once, for transformers' encoder-decoder models.

`use_cached_cross_attention` swaps it into a model in one line::

    caches = use_cached_cross_attention(model)
    with torch.no_grad():
        model.generate(source)
        caches.reset()
        model.generate(another)

The first call after a reset computes the keys and values of the encoder's states into buffers;
later calls read them. A flag in CPU memory decides between the two at run time: torch.export keeps
both branches as a `torch.cond`, and traces `reset` with them (`docs/conditional.md`). Without the
reset you get an error, or NaN from an exported program, but never the last source's words.

Branches of `torch.cond` must be pure: torch.export refuses one that returns or writes an operand.
`fill` and `keep` are declared as functions with new results, which is all that tracing sees. What
runs, eagerly and in Inductor's code, returns the buffer itself. This is safe under two rules:
buffers are read only through the results of the conditional, so no read moves before the write; and
each result goes through `keep` once more outside the branches, so Inductor never reuses its memory
after the last read. The pattern is ExecuTorch's (`executorch::alias`,
`executorch::update_cross_attn_cache` in `extension/llm/custom_ops/custom_ops.py`), which has no
second `keep`, and whose `update` returns a clone when it is not compiled.

Letters in shapes: r rows, s new positions, t source positions, h heads, d head_dim, x width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V
from torch.nn.functional import scaled_dot_product_attention

from kvcast.errors import KvcastError, UsageError

_ANOTHER_SOURCE = "the keys were computed from other encoder states: reset first"


@dataclass(frozen=True, kw_only=True)
class _Form:
    query: str
    key: str
    value: str
    output: str
    mask: str
    heads: str
    returned: Callable[[dict[str, Any]], tuple[Any, ...]]


_BART = _Form(
    query="q_proj",
    key="k_proj",
    value="v_proj",
    output="out_proj",
    mask="attention_mask",
    heads="num_heads",
    returned=lambda _: (None,),  # weights
)
_T5 = _Form(
    query="q",
    key="k",
    value="v",
    output="o",
    mask="mask",
    heads="n_heads",
    returned=lambda given: (given.get("position_bias"), None),  # the bias of later layers, weights
)
_FORMS = {
    "BartAttention": _BART,
    "MarianAttention": _BART,
    "T5Attention": _T5,
    "WhisperAttention": _BART,
}
_CROSS_ATTENTIONS = ("encoder_attn", "EncDecAttention")
_MASKED_ALIKE = ("eager", "sdpa")
_SOURCE_SIZES = ("max_source_positions", "n_positions", "max_position_embeddings")


class CachedCrossAttention(nn.Module):
    """Replaces a transformers cross-attention (Whisper, T5, BART, Marian) and shares its weights.

    `rows`: maximum in a batch, including beams. Raises UsageError for an unsupported module.
    """

    keys: Tensor
    values: Tensor
    first: Tensor
    filled: Tensor

    def __init__(self, attention: nn.Module, *, rows: int, source_positions: int) -> None:
        super().__init__()
        try:
            form = _FORMS[type(attention).__name__]
        except KeyError:
            raise UsageError(
                f"{type(attention).__name__} has no cached form; supported are "
                f"{', '.join(sorted(_FORMS))}"
            ) from None
        self._form = form
        self.query: nn.Linear = getattr(attention, form.query)
        self.key: nn.Linear = getattr(attention, form.key)
        self.value: nn.Linear = getattr(attention, form.value)
        self.output: nn.Linear = getattr(attention, form.output)
        self._heads = int(getattr(attention, form.heads))
        self._scale = float(attention.scaling)  # type: ignore[arg-type]
        self._rows, self._source_positions = rows, source_positions
        weight = self.key.weight
        head_dim = weight.shape[0] // self._heads
        # One position more than is ever filled: if a source could fill the buffer, torch.export
        # would require a dynamic source size to be always or never that large.
        shape = (rows, self._heads, source_positions + 1, head_dim)
        for name, size in {
            "keys": shape,
            "values": shape,
            "first": (rows, weight.shape[1]),
        }.items():
            self.register_buffer(name, weight.new_zeros(size, requires_grad=False), False)
        self.register_buffer("filled", torch.zeros((), dtype=torch.bool), False)

    def reset(self, when: Tensor | None = None) -> None:
        """Forget the source, or only if `when` (a bool on the CPU) is true. Can be traced."""
        if when is None:
            self.filled.fill_(False)
        else:
            self.filled.logical_and_(~when)

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor, **given: Any
    ) -> tuple[Any, ...]:
        """Attend from [r, s, x] to the encoder's states [r, t, x], the same until a reset.

        Of transformers' other arguments only the mask is used; attention weights are None.

        Raises:
            UsageError: there are more rows, or a longer source, than the buffers hold.
            KvcastError: the source differs from the projected one. An exported program returns
                NaN for its rows instead, because an exception would have to wait for the device.

        """
        rows, positions = key_value_states.shape[:2]
        if rows > self._rows or positions > self._source_positions:
            raise UsageError(
                f"a source of {rows} rows and {positions} positions does not fit buffers for "
                f"{self._rows} and {self._source_positions}; pass larger rows or source_positions"
            )
        keys, values, first = self._caches(key_value_states)
        self.filled.fill_(True)
        # An encoder's first position depends on the whole source.
        same_r = (first[:rows] == key_value_states[:, 0]).all(dim=-1)
        mixed = scaled_dot_product_attention(
            self._split(self.query(hidden_states)),
            keys[:rows, :, :positions],
            values[:rows, :, :positions],
            attn_mask=given.get(self._form.mask),
            scale=self._scale,
        )
        attended_rsx = self.output(mixed.transpose(1, 2).flatten(2))
        return _of_one_source(attended_rsx, same_r), *self._form.returned(given)

    def _caches(self, states_rtx: Tensor) -> tuple[Tensor, ...]:
        operands = (states_rtx, self.keys, self.values, self.first)
        if torch.compiler.is_compiling():
            caches = torch.cond(self.filled, _read, self._compute, operands)
        else:
            caches = _read(*operands) if self.filled else self._compute(*operands)
        # Once more outside the branches: see `kvcast.conditional.cross_attention`.
        return tuple(keep(cache) for cache in caches)

    def _compute(
        self, states_rtx: Tensor, keys: Tensor, values: Tensor, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        return (
            fill(keys, self._split(self.key(states_rtx))),
            fill(values, self._split(self.value(states_rtx))),
            fill(first, states_rtx[:, 0]),
        )

    def _split(self, flat_rsx: Tensor) -> Tensor:
        return flat_rsx.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "CachedCrossAttention":
        """Move all but the flag, which stays in CPU memory: reading a device's needs to wait."""
        super()._apply(fn, recurse)
        self.filled = self.filled.cpu()
        return self


def _read(_: Tensor, keys: Tensor, values: Tensor, first: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return keep(keys), keep(values), keep(first)


def _of_one_source(attended_rsx: Tensor, same_r: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        return torch.where(same_r[:, None, None], attended_rsx, torch.nan)
    if not same_r.all():
        raise KvcastError(_ANOTHER_SOURCE)
    return attended_rsx


class CrossCaches:
    def __init__(self, layers: Sequence[CachedCrossAttention]) -> None:
        self.layers = tuple(layers)

    def reset(self, when: Tensor | None = None) -> None:
        """Make the next call project its source, if `when` (a bool on the CPU) is true or None."""
        for layer in self.layers:
            layer.reset(when)


def use_cached_cross_attention(
    model: nn.Module, *, rows: int = 1, source_positions: int | None = None
) -> CrossCaches:
    """Replace every cross-attention of a transformers model by a cached one, in place.

    Args:
        model: Whisper, T5, BART or Marian, any class with a decoder, in evaluation mode.
        rows: maximum number of rows in a batch, including beams.
        source_positions: length of the longest source; None: the limit in the configuration.

    Returns:
        The caches, to reset them all.

    Raises:
        UsageError: there is no supported cross-attention, the model is in training mode, its
            attention is not "sdpa" or "eager", or its configuration has no limit for sources.

    """
    config: Any = getattr(model, "config", None)
    places = [
        (parent, name)
        for parent in model.modules()
        for name in _CROSS_ATTENTIONS
        if isinstance(getattr(parent, name, None), nn.Module)
    ]
    if not places:
        raise UsageError(f"{type(model).__name__} has no cross-attention to cache")
    if model.training:
        raise UsageError("cached cross-attention has no gradients; call model.eval() first")
    kind = getattr(config, "_attn_implementation", "sdpa")
    if kind not in _MASKED_ALIKE:
        raise UsageError(
            f"masks of {kind} attention are not supported; load the model with "
            'attn_implementation="sdpa"'
        )
    sizes = (getattr(config, name, None) for name in _SOURCE_SIZES)
    longest = source_positions or next((size for size in sizes if size), None)
    if longest is None:
        raise UsageError("the model's configuration has no longest source; pass source_positions")
    layers = []
    for parent, name in places:
        layer = CachedCrossAttention(getattr(parent, name), rows=rows, source_positions=longest)
        setattr(parent, name, layer)
        layers.append(layer)
    return CrossCaches(layers)


# `torch.library.custom_op` refuses results that are arguments. The namespace stays `kvcast_export`,
# the package's former name, because programs saved by torch.export name it.
_LIBRARY = torch.library.Library("kvcast_export", "FRAGMENT")
_LIBRARY.define("fill(Tensor buffer, Tensor part) -> Tensor")
_LIBRARY.define("keep(Tensor buffer) -> Tensor")


def fill(buffer: Tensor, part: Tensor) -> Tensor:
    """Write `part` at the start of the buffer, in every dimension, and return the buffer."""
    result: Tensor = torch.ops.kvcast_export.fill(buffer, part)
    return result


def keep(buffer: Tensor) -> Tensor:
    """Return the buffer without a copy; its memory is never reused."""
    result: Tensor = torch.ops.kvcast_export.keep(buffer)
    return result


def _fill(buffer: Tensor, part: Tensor) -> Tensor:
    buffer[tuple(slice(size) for size in part.shape)].copy_(part)
    return buffer


_LIBRARY.impl("fill", _fill, "CompositeExplicitAutograd")
_LIBRARY.impl("keep", lambda buffer: buffer, "CompositeExplicitAutograd")
torch.library.register_fake(
    "kvcast_export::fill", lambda buffer, _: torch.empty_like(buffer), lib=_LIBRARY
)
torch.library.register_fake("kvcast_export::keep", torch.empty_like, lib=_LIBRARY)


@register_lowering(torch.ops.kvcast_export.fill.default, type_promotion_kind=None)
def _lower_fill(buffer: Any, part: Any) -> Any:
    view = buffer
    for dimension, size in enumerate(part.get_size()):
        view = lowerings[torch.ops.aten.slice.Tensor](view, dimension, 0, size, 1)
    lowerings[torch.ops.aten.copy_.default](view, part)
    return buffer


@register_lowering(torch.ops.kvcast_export.keep.default, type_promotion_kind=None)
def _lower_keep(buffer: Any) -> Any:
    V.graph.never_reuse_buffers.add(buffer.get_name())
    return buffer
