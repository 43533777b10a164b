"""A program to one greedy step without branches, whose whole state lies on the device.

The step takes its token from where the step before has put it, so a text is written by calling it
repeatedly, and nothing returns to the host in between, so that a CUDA graph can hold it.

How many slots a step reads is fixed when it is made: a power of two, as reading them all would cost
a text of 500 tokens in a cache of 4,096 slots eight times what it holds, and a graph for each
length would be thousands. So there are few graphs and a step reads at most twice what is held.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import linear

from kvcast.runtimes.aoti.inductor import TUNED
from kvcast.runtimes.aoti.operators import reading, table
from kvcast.runtimes.lowering.torch_export import replace_operators

FEWEST_SLOTS = 128

StepFunction = Callable[..., object]
"""Takes the parts of a text, or nothing if it has them already, and changes them in place."""


class GreedyState(NamedTuple):
    """The state of a step: one row that is being written, in tensors that steps change in place."""

    token_rs: Tensor  # int64 [1, 1], the newest token, which no cache holds yet
    lengths: Tensor  # int32 [1], positions that the caches hold
    written: Tensor  # int64 [capacity + 1], the token that a step chose for each position
    caches: list[Tensor]  # key and value [1, kv_heads, slots, d] of each layer
    given: list[Tensor]  # further arguments of the program: cross caches; never changed


def slots_for(positions: int, capacity: int) -> int:
    """Return how many slots are read to see so many positions."""
    slots = FEWEST_SLOTS
    while slots < positions:
        slots *= 2
    return min(slots, capacity)


def summed(hidden: Tensor, weight_oi: Tensor, bias_o: Tensor | None = None) -> Tensor:
    """[..., inputs] to [..., outputs]; for a single row as a sum, which Inductor can fuse.

    A matrix is read once and not multiplied with: what counts is that no other kernel comes
    between. gpt-fast owes its speed to it. Inductor does so by itself, but not with a bias.
    """
    if not _is_row(hidden):
        return linear(hidden, weight_oi, bias_o)
    # A view by strides is of something in memory: what is before is not computed for each output.
    row_i = hidden.contiguous().as_strided((hidden.shape[-1],), (1,))
    product = (row_i * weight_oi).sum(-1).view(*hidden.shape[:-1], -1)
    return product if bias_o is None else product + bias_o


PRODUCTS: Mapping[str, Callable[..., Tensor]] = {"sums": summed, "library": linear}
"""How to multiply one row with a matrix; `kvcast bench gpu` measures which is faster."""


class _Greedy(nn.Module):
    offsets: Tensor

    def __init__(self, program: nn.Module, slots: int, offsets: Tensor) -> None:
        super().__init__()
        self.program = program
        self._slots = {"linear": slots, "ring": slots}
        self.register_buffer("offsets", offsets)

    def forward(
        self, token_rs: Tensor, lengths: Tensor, written: Tensor, caches: Any, given: Any
    ) -> Tensor:
        with reading(self._slots):
            logits_rpv, *_ = self.program(token_rs, lengths, self.offsets, *caches, *given)
        newest_r: Tensor = logits_rpv[:, -1].argmax(-1)
        lengths.add_(1)
        written.index_put_((lengths.long(),), newest_r)
        token_rs.copy_(newest_r[:, None])
        return newest_r


@torch.no_grad()
def make_step(program: nn.Module, text: GreedyState, slots: int, products: str) -> GraphModule:
    """Return a step over texts like this one, which is left as it is, in plain operators.

    The first `slots` slots of each cache are read; `products` is one of PRODUCTS.
    """
    offsets = torch.zeros_like(text.lengths, dtype=torch.int64)
    taken = (text.token_rs, text.lengths, offsets, *text.caches, *text.given)
    exported = torch.export.export(program, taken, strict=False)
    numbers = text.caches[0].dtype
    operators = {**table(numbers), torch.ops.aten.linear.default: PRODUCTS[products]}
    replaced = replace_operators(exported, operators)
    _cut_before_products(replaced)
    step = _Greedy(replaced, slots, offsets)
    return torch.export.export(step, tuple(text), strict=False).module(check_guards=False)


def _cut_before_products(module: GraphModule) -> None:
    """Make a summed product whose result is cut into equal parts a product for each part.

    Sums over the same axis become one kernel with their combination, so a gate is applied where
    it is computed and not anew for each row of the next matrix.
    """
    for product in module.graph.find_nodes(op="call_function", target=summed):
        (cut, *others) = product.users
        if others or cut.target is not torch.ops.aten.chunk.default:
            continue
        with module.graph.inserting_before(cut):
            parts = module.graph.call_function(_summed_parts, (cut.args[1], *product.args))
        cut.replace_all_uses_with(parts)
        module.graph.erase_node(cut)
        module.graph.erase_node(product)
    module.recompile()


def _summed_parts(
    count: int, hidden: Tensor, weight_oi: Tensor, bias_o: Tensor | None = None
) -> list[Tensor]:
    if not _is_row(hidden):
        return list(linear(hidden, weight_oi, bias_o).chunk(count, -1))
    biases = [None] * count if bias_o is None else bias_o.chunk(count)
    return [summed(hidden, *part) for part in zip(weight_oi.chunk(count), biases, strict=True)]


def _is_row(hidden: Tensor) -> bool:
    return hidden.numel() == hidden.shape[-1]


def compiled(module: GraphModule, arguments: tuple[Any, ...]) -> StepFunction:
    """Return the step as Inductor's kernels, which the host launches in sequence.

    Not by torch.compile, which would trace the exported graph once more: Dynamo refuses branches
    of torch.cond that write, and its guards would look at every weight before every step.
    """
    # The options of mode max-autotune-no-cudagraphs.
    options = {**TUNED, "coordinate_descent_tuning": True}
    # Halves of a rotated head are put together in the kernel that writes them into the cache.
    options["force_pointwise_cat"] = True
    step: StepFunction = torch._inductor.compile(module, list(arguments), options=options)
    return step


def captured(take: StepFunction, rewind: Callable[[], object]) -> StepFunction:
    """Return a replay of a step as one CUDA graph; `rewind` takes back steps to warm up."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            rewind()
            take()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        take()
    replay: StepFunction = graph.replay
    return replay
