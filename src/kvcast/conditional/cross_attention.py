"""Cross-attention that projects a source once, for transformers' encoder-decoder models.

`use_cached_cross_attention` swaps it into a model in one line::

    caches = use_cached_cross_attention(model)
    with torch.no_grad():
        model.generate(source)
        caches.reset()
        model.generate(another)

The first call after a reset computes the keys and values of the encoder's states into buffers;
later calls read those. Which of the two happens is decided by a flag in CPU memory, while the
program runs: torch.export keeps both branches, as a `torch.cond`, and `reset` is traced with them
(`docs/conditional.md`). Whoever forgets it gets an error, from an exported program NaN, and not the
last source's words.

Knows transformers' modules by their names and attributes, and does not import it.

Letters in shapes: r rows, s new positions, t source positions, h heads, d head_dim, x width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from kvcast.conditional.operators import fill, keep
from kvcast.errors import KvcastError, UsageError

_ANOTHER_SOURCE = "these encoder states are not those that the keys were computed from: reset first"


@dataclass(frozen=True, kw_only=True)
class _Form:
    """What a library's attention module calls its parts, and what it returns beside its result."""

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
    """Stands for a cross-attention of transformers and shares its weights.

    Args:
        attention: one of transformers' WhisperAttention, T5Attention, BartAttention and
            MarianAttention.
        rows: most rows of a batch, beams included.
        source_positions: longest source.

    Raises:
        UsageError: another module.

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
                f"{type(attention).__name__} has no cached form; those that have: "
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
        # A position more than is ever filled: if a source could fill all, torch.export would ask
        # of an open source size that it does or that it does not.
        shape = (rows, self._heads, source_positions + 1, head_dim)
        for name, size in {
            "keys": shape,
            "values": shape,
            "first": (rows, weight.shape[1]),
        }.items():
            self.register_buffer(name, weight.new_zeros(size, requires_grad=False), False)
        self.register_buffer("filled", torch.zeros((), dtype=torch.bool), False)

    def reset(self, when: Tensor | None = None) -> None:
        """Forget the source, or do so if `when` (a bool on the CPU) is true. Can be traced."""
        if when is None:
            self.filled.fill_(False)
        else:
            self.filled.logical_and_(~when)

    def forward(
        self, hidden_states: Tensor, key_value_states: Tensor, **given: Any
    ) -> tuple[Any, ...]:
        """Attend to a source.

        Args:
            hidden_states: [r, s, x].
            key_value_states: [r, t, x], the encoder's; the same at each call until a reset.
            given: what transformers gives beside them. Of it the mask is read.

        Returns:
            [r, s, x], and what transformers expects beside it; attention's weights are None.

        Raises:
            UsageError: more rows or a longer source than there is place for.
            KvcastError: another source than the one that was projected. An exported program
                returns NaN for its rows: an exception would wait for the device.

        """
        rows, positions = key_value_states.shape[:2]
        if rows > self._rows or positions > self._source_positions:
            raise UsageError(
                f"a source of {rows} rows and {positions} positions where there is place for "
                f"{self._rows} and {self._source_positions}; name more when swapping"
            )
        keys, values, first = self._caches(key_value_states)
        self.filled.fill_(True)
        # In an encoder the first position depends on all of the source.
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
        # Again outside of the branches: see the operator.
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
        """[r, s, h * d] to [r, h, s, d]."""
        return flat_rsx.unflatten(-1, (self._heads, -1)).transpose(1, 2)

    def _apply(
        self, fn: Callable[[Tensor], Tensor], recurse: bool = True
    ) -> "CachedCrossAttention":
        """Move to another device, all but the flag: reading it there would wait for the device."""
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
    """The cached cross-attentions of one model."""

    def __init__(self, layers: Sequence[CachedCrossAttention]) -> None:
        self.layers = tuple(layers)

    def reset(self, when: Tensor | None = None) -> None:
        """Have the next call project its source, if `when` is true or None.

        Inside of what is exported it becomes part of the program, so `when`, a bool in CPU memory,
        is then an input of it.
        """
        for layer in self.layers:
            layer.reset(when)


def use_cached_cross_attention(
    model: nn.Module, *, rows: int = 1, source_positions: int | None = None
) -> CrossCaches:
    """Swap every cross-attention of one of transformers' models for a cached one, in place.

    Args:
        model: Whisper, T5, BART or Marian, any class with a decoder, in evaluation mode.
        rows: most rows of a batch, beams included.
        source_positions: longest source; None is the longest that the model's configuration names.

    Returns:
        What resets them all.

    Raises:
        UsageError: no cross-attention of a known form, a model in training mode, an attention
            other than "sdpa" or "eager", or a configuration that names no longest source.

    """
    config: Any = getattr(model, "config", None)
    found = [
        (parent, name)
        for parent in model.modules()
        for name in _CROSS_ATTENTIONS
        if isinstance(getattr(parent, name, None), nn.Module)
    ]
    if not found:
        raise UsageError(f"{type(model).__name__} has no cross-attention to cache")
    if model.training:
        raise UsageError("cached cross-attention has no gradients; call model.eval() first")
    kind = getattr(config, "_attn_implementation", "sdpa")
    if kind not in _MASKED_ALIKE:
        raise UsageError(
            f"masks of {kind} attention are not read here; load the model with "
            'attn_implementation="sdpa"'
        )
    sizes = (getattr(config, name, None) for name in _SOURCE_SIZES)
    longest = source_positions or next((size for size in sizes if size), None)
    if longest is None:
        raise UsageError("the model's configuration names no longest source; give source_positions")
    layers = []
    for parent, name in found:
        layer = CachedCrossAttention(getattr(parent, name), rows=rows, source_positions=longest)
        setattr(parent, name, layer)
        layers.append(layer)
    return CrossCaches(layers)
