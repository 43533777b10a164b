"""The smallest bundle of AOTInductor: one program with all kinds of int4 matrices and no model.

Compiling it takes a third of the time that a model's programs take.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from kit.models import once
from kvcast.bundle.manifest import Graph, Manifest
from kvcast.bundle.writing import seal
from kvcast.models.executor import TorchProgram
from kvcast.runtimes.aoti import lowering as aoti
from kvcast.runtimes.aoti.precision import Precision
from kvcast.runtimes.lowering.torch_export import Signature
from kvcast.spec.program import Constant, Node, Program, ProgramWriter
from kvcast.spec.stored_matrices import CodedMatrix, rounded

WIDTH, OUTPUTS, TOKENS, EXPERTS = 64, 150, 70, 3


def written() -> Program:
    """Return products with and without a bias, a table looked up and multiplied, and experts."""
    write, hidden = ProgramWriter(["ids", "hidden"]), Node("hidden")
    experts = Constant("gate_up"), Constant("down")
    router, table = write.linear(hidden, "router", (EXPERTS, WIDTH)), (TOKENS, WIDTH)
    mixed = write.step("mixture_of_experts", hidden, router, *experts, 2)
    return write.program(
        rows=write.embedding("table.weight", Node("ids"), table),
        ups=write.linear(hidden, "up", (OUTPUTS, WIDTH), bias=True),
        logits=write.linear(mixed, "table", table),
    )


def own_codes(name: str) -> CodedMatrix | None:
    """Return a checkpoint's codes of one matrix, which nothing that rounding gives equals."""
    matrix = np.random.default_rng(1).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    return rounded(matrix) if name == "table.weight" else None


def signature() -> Signature:
    """Return the program, always with the same weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "table.weight": (TOKENS, WIDTH),
        "up.weight": (OUTPUTS, WIDTH),
        "up.bias": (OUTPUTS,),
        "gate_up": (EXPERTS, 2 * 96, WIDTH),
        "down": (EXPERTS, WIDTH, 96),
    }
    weights = {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}
    # Whole numbers have one sum, in whatever order.
    router = torch.randint(-3, 4, (EXPERTS, WIDTH), generator=generator)
    weights["router.weight"] = router.float()
    parameters = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in weights.items()
    }
    rows = torch.export.Dim("rows")
    return Signature(
        program=TorchProgram(written(), ["rows", "ups", "logits"], parameters),
        arguments=(torch.zeros(4, dtype=torch.int64), torch.zeros(4, WIDTH)),
        sizes=(({0: rows}, {0: rows}),),
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
    seal_graphs(folder, graphs, "int4")


def seal_graphs(folder: Path, graphs: dict[str, Graph], quantize: str) -> Manifest:
    """Write the manifest of a bundle without a model."""
    described = {"family": "decoder", "runtime": "aoti", "quantize": quantize, "graphs": graphs}
    return seal(folder, Manifest(dimensions={}, cache=(), source={}, tools={}, **described))
