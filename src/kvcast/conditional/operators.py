"""Operators with which a branch of `torch.cond` writes or returns a buffer without a copy.

Branches must be pure: torch.export refuses one that returns or writes an operand. `fill` and `keep`
are declared as functions with new results, which is all that tracing sees. What runs, eagerly and
in Inductor's code, returns the buffer itself. This is safe under two rules. Buffers are read only
through the results of the conditional, so no read can be moved before the write. And each result
goes through `keep` once more outside the branches, so Inductor never reuses its memory after the
last read.

The pattern is ExecuTorch's (`executorch::alias` and `executorch::update_cross_attn_cache` in
`extension/llm/custom_ops/custom_ops.py`), which has no second `keep`, and whose `update` returns a
clone when it is not compiled. Knows nothing of attention or models.
"""

from typing import Any

import torch
from torch import Tensor
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V

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
