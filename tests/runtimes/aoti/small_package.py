"""The smallest bundle of AOTInductor: one program with all kinds of int4 matrices and no model.

Compiling it takes a third of the time that a model's programs take.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from kit.models import once
from kvcast.bundle.manifest import Manifest
from kvcast.bundle.writing import seal
from kvcast.models.nn.feed_forward import Router
from kvcast.models.ops.experts import mixture_of_experts
from kvcast.runtimes.aoti import lowering as aoti
from kvcast.runtimes.aoti.precision import Precision
from kvcast.runtimes.lowering.signatures import Signature
from kvcast.spec.blocks import CodedMatrix, rounded
from kvcast.spec.program import Constant, Node, Program
from kvcast.spec.writer import ProgramWriter

WIDTH, OUTPUTS, TOKENS, EXPERTS = 64, 150, 70, 3


class Everything(nn.Module):
    """Products with and without a bias, a table that is looked up and multiplied, and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)
        self.up = nn.Linear(WIDTH, OUTPUTS)
        self.router = Router(WIDTH, EXPERTS, bias=False)
        self.gate_up = nn.Parameter(torch.randn(EXPERTS, 2 * 96, WIDTH) / 8)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, 96) / 8)
        # Whole numbers have one sum, in whatever order.
        self.router.weight.data = torch.randint(-3, 4, (EXPERTS, WIDTH)).float()

    def forward(self, ids_n: Tensor, hidden_nx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mixed = mixture_of_experts(hidden_nx, self.router(hidden_nx), self.gate_up, self.down, 2)
        return self.table(ids_n), self.up(hidden_nx), linear(mixed, self.table.weight)


def written() -> Program:
    """Return what `Everything` computes."""
    write, hidden = ProgramWriter(["ids", "hidden"]), Node("hidden")
    experts = Constant("gate_up"), Constant("down")
    router = write.linear(hidden, "router")
    return write.program(
        rows=write.embedding("table.weight", Node("ids")),
        ups=write.linear(hidden, "up", bias=True),
        logits=write.linear(write.step("mixture_of_experts", hidden, router, *experts, 2), "table"),
    )


def own_codes(name: str) -> CodedMatrix | None:
    """Return a checkpoint's codes of one matrix, which nothing that rounding gives equals."""
    matrix = np.random.default_rng(1).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    return rounded(matrix) if name == "table.weight" else None


def signature() -> Signature:
    """Return the program, always with the same weights."""
    rows = torch.export.Dim("rows")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        program = Everything().requires_grad_(False)
    return Signature(
        program=program,
        arguments=(torch.zeros(4, dtype=torch.int64), torch.zeros(4, WIDTH)),
        sizes=({0: rows}, {0: rows}),
        inputs=["ids", "hidden"],
        outputs=["rows", "ups", "logits"],
    )


def compiled_products() -> Path:
    """Return the bundle; nobody may change it."""
    return once("aoti-products", _write)


def _write(folder: Path) -> None:
    folder.mkdir()
    precision = Precision(quantize="int4")
    graphs = aoti.lower({"decode": signature()}, precision, folder, blocks_of=own_codes)
    seal(
        folder,
        Manifest(
            family="decoder",
            runtime="aoti",
            quantize="int4",
            dimensions={},
            cache=(),
            graphs=graphs,
            source={},
            tools={},
        ),
    )
