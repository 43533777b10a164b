"""Forms of one cross-attention, compiled by AOTInductor: computed once, and at every call.

A branch of `torch.cond` may return no operand. The form with clones returns copies of keys and
values, which are copied back into the cache. Operators that alias return the cache itself. The
host reads the flag: from a device's memory that is a copy for each layer and token.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import linear, scaled_dot_product_attention
from typing_extensions import override

from kvcast.conditional.cross_attention import CachedCrossAttention, fill, keep
from kvcast_bench.sources.figures import TIMES, Clock, Figures, spread, times
from kvcast_bench.sources.generated import Compiled, Counts, compiled, counts
from kvcast_bench.sources.models import published


@dataclass(frozen=True)
class Sizes:
    width: int
    heads: int
    source: int

    @property
    def cache(self) -> int:
        return self.width * self.source


class Attention(nn.Module):
    """Weights under transformers' names, and a cache for one row in buffers.

    Letters in shapes: s new positions, t source positions, h heads, d head_dim, x width.
    """

    keys: Tensor
    values: Tensor
    flag: Tensor

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.num_heads, self.scaling = of.heads, (of.width // of.heads) ** -0.5
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(of.width, of.width) for _ in range(3))
        self.k_proj = nn.Linear(of.width, of.width, bias=False)
        shape = (1, of.heads, of.source, of.width // of.heads)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(shape), persistent=False)
        self.register_buffer("flag", torch.zeros((), dtype=torch.bool), persistent=False)

    def split(self, flat_1sx: Tensor) -> Tensor:
        """[1, s, h * d] to [1, h, s, d]."""
        parts: Tensor = flat_1sx.view(*flat_1sx.shape[:-1], self.num_heads, -1)
        return parts.transpose(1, 2)

    def projected(self, states_1tx: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [1, h, t, d] of a source."""
        return self.split(self.k_proj(states_1tx)), self.split(self.v_proj(states_1tx))

    def attend(self, hidden_1sx: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return [1, s, x]."""
        query = self.split(self.q_proj(hidden_1sx))
        mixed = scaled_dot_product_attention(query, keys, values)
        attended: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return attended


class Recomputed(Attention):
    """Projects the source at every call, as a stock export does."""

    @override
    def forward(self, hidden: Tensor, states: Tensor) -> Tensor:
        return self.attend(hidden, *self.projected(states))


class Clones(Attention):
    """Branches return new tensors, as `torch.cond` demands, which are copied into the cache."""

    @override
    def forward(self, hidden: Tensor, states: Tensor) -> Tensor:
        def read(keys: Tensor, values: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return keys.clone(), values.clone()

        def compute(_: Tensor, __: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            keys, values = self.projected(given)
            return keys.contiguous(), values.contiguous()

        keys, values = torch.cond(self.flag, read, compute, (self.keys, self.values, states))
        self.keys.copy_(keys)
        self.values.copy_(values)
        self.flag.fill_(True)
        return self.attend(hidden, keys, values)


class Aliases(Attention):
    """The published form: operators that say they make new tensors, and return the cache.

    Nothing resets its flag.
    """

    @override
    def forward(self, hidden: Tensor, states: Tensor) -> Tensor:
        def read(keys: Tensor, values: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
            return keep(keys), keep(values)

        def compute(keys: Tensor, values: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
            key, value = self.projected(given)
            return fill(keys, key), fill(values, value)

        keys, values = torch.cond(self.flag, read, compute, (self.keys, self.values, states))
        self.flag.fill_(True)
        return self.attend(hidden, keys, values)


class WhisperAttention(Attention):
    """`kvcast.conditional` finds attention modules by this name."""


class WithReset(nn.Module):
    """`kvcast.conditional`, whose reset is a part of the program."""

    def __init__(self, of: Sizes) -> None:
        super().__init__()
        attention = WhisperAttention(of)
        self.cached = CachedCrossAttention(attention, rows=1, source_positions=of.source)

    @override
    def forward(self, hidden: Tensor, states: Tensor, fresh: Tensor) -> Tensor:
        self.cached.reset(fresh)
        attended: Tensor = self.cached(hidden, states)[0]
        return attended


class Inputs(Attention):
    """Keys and values are arguments, which another program has made."""

    @override
    def forward(self, hidden: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self.attend(hidden, keys, values)


FORMS: Mapping[str, type[Any]] = {
    "recomputed": Recomputed,
    "torch.cond with clones": Clones,
    "torch.cond with operators that alias": Aliases,
    "the same with a reset (`kvcast.conditional`)": WithReset,
    "keys and values as inputs (two programs)": Inputs,
}
"""By what a table says of them."""


def inputs(of: Sizes) -> tuple[Tensor, Tensor]:
    """Return a step's hidden states [1, 1, x] and a source's [1, t, x]."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, 1, of.width, generator=generator)
    return hidden, torch.randn(1, of.source, of.width, generator=generator)


def form(of: Sizes, name: str, folder: Path) -> tuple[Compiled, list[Tensor]]:
    """Compile a form and take its first step; return the arguments of steps after it."""
    module = FORMS[name](of)
    hidden, states = inputs(of)
    given = [hidden, states]
    if isinstance(module, WithReset):
        given.append(torch.tensor(True))
    if isinstance(module, Inputs):
        with torch.no_grad():
            given = [hidden, *(part.contiguous() for part in module.projected(states))]
    program = compiled(module, given, folder / "form.pt2")
    program.call(*given)
    if isinstance(module, WithReset):
        given[-1] = torch.tensor(False)
    return program, given


def exported_flags(device: str) -> list[str]:
    """Return the device of each conditional's flag, in a program for a CUDA device.

    Nothing is computed, so no such device is needed. `device` is where the flag was registered.
    """
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        warnings.catch_warnings(action="ignore"),  # torch's internal ones
    ):
        program = torch.export.export(
            _OnCuda(device), (torch.empty(1, 4, 8, device="cuda"),), strict=False
        )
    return [
        str(node.args[0].meta["val"].device.type)
        for node in program.graph.nodes
        if node.target is torch.ops.higher_order.cond
    ]


class _OnCuda(nn.Module):
    def __init__(self, flag: str) -> None:
        super().__init__()
        for layer in range(2):
            weight = torch.empty(8, 8, device="cuda")
            self.register_parameter(f"weight_{layer}", nn.Parameter(weight, requires_grad=False))
            self.register_buffer(f"keys_{layer}", torch.empty(1, 4, 8, device="cuda"))
            self.register_buffer(f"flag_{layer}", torch.empty((), dtype=torch.bool, device=flag))

    @override
    def forward(self, states: Tensor) -> Any:
        def read(keys: Tensor, _: Tensor, __: Tensor) -> tuple[Tensor]:
            return (keep(keys),)

        def compute(keys: Tensor, given: Tensor, weight: Tensor) -> tuple[Tensor]:
            return (fill(keys, linear(given, weight)),)

        for layer in range(2):
            keys, weight, flag = (
                getattr(self, f"{name}_{layer}") for name in ("keys", "weight", "flag")
            )
            (held,) = torch.cond(flag, read, compute, (keys, states, weight))
            flag.fill_(True)
            states = states + held
        return states


def measure(clock: Clock) -> Sequence[Figures]:
    turbo = published("whisper-large-v3-turbo")
    of = Sizes(turbo.d_model, turbo.decoder_heads, turbo.source_positions)
    with TemporaryDirectory() as folder:
        places = {name: Path(folder) / str(number) for number, name in enumerate(FORMS)}
        for place in places.values():
            place.mkdir()
        compiled_forms = {name: form(of, name, place) for name, place in places.items()}
        seconds = clock.seconds(
            {
                name: lambda call=program.call, given=given: call(*given)  # type: ignore[misc]
                for name, (program, given) in compiled_forms.items()
            }
        )
        counted = {name: counts(program, of.cache) for name, (program, _) in compiled_forms.items()}
    return [_table(of, clock, counted, seconds), _flags(turbo.decoder_layers)]


def _table(
    of: Sizes, clock: Clock, counted: Mapping[str, Counts], seconds: Mapping[str, list[float]]
) -> Figures:
    baseline = seconds["keys and values as inputs (two programs)"]
    return Figures(
        head=["form", "projections", "copies of a cache", "flags read", "ms a call", TIMES],
        rows=[
            [
                name,
                str(each.projections),
                str(each.copies),
                str(each.flags),
                spread(seconds[name]),
                times(seconds[name], baseline),
            ]
            for name, each in counted.items()
        ],
        note="One cross-attention of whisper-large-v3-turbo: "
        f"width {of.width:,}, {of.heads} heads, "
        f"{of.source:,} source positions, one token; random weights, fp32, AOTInductor, "
        f"{clock.words}. "
        "Counted in the C++ that Inductor wrote, without the branch that computes: products that "
        "make keys or values, loops that write as many numbers, flags that the host reads.",
    )


def _flags(layers: int) -> Figures:
    rows = []
    for device in ("cpu", "cuda"):
        devices = exported_flags(device)
        copied = sum(each != "cpu" for each in devices)
        rows.append([device, f"{copied} of {len(devices)}", str(layers * copied // len(devices))])
    return Figures(
        head=[
            "flag registered on",
            "conditionals whose flag is copied back",
            "copies a token, turbo",
        ],
        rows=rows,
        note="Programs exported for a CUDA device; none is needed to count. The generated code "
        "asks for each flag with `aoti_torch_item_bool`: from host memory a read, from a device's "
        "a copy that waits for all work before it.",
    )
