"""Executing programs with PyTorch: weights, what is kept in memory, and packed rows."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kit.dimensions import LLAMA, MISTRAL, ROFORMER, SMALL, SMALL_T5
from kit.models import random_programs, random_tensors
from kvcast.errors import KvcastError
from kvcast.loading.components import quantize_eager
from kvcast.models.executor import TorchModel, TorchProgram
from kvcast.spec.program import Node, ProgramWriter


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda tensors: tensors.pop("decoder.norm.weight"), "decoder.norm.weight is missing"),
        (lambda tensors: tensors.update(extra=np.ones(1)), "extra is unknown"),
        (
            lambda tensors: tensors.update({"decoder.norm.weight": np.ones(3)}),
            r"decoder.norm.weight is \(3,\), not \(64,\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_one_line(change, problem):
    tensors = random_tensors(LLAMA)
    change(tensors)
    with pytest.raises(KvcastError, match=f"the weights do not fit the model: {problem}"):
        TorchModel.from_tensors(LLAMA, tensors)


@pytest.mark.parametrize("dimensions", [SMALL, SMALL_T5, LLAMA, ROFORMER], ids=str)
def test_parameters_have_the_names_of_tensors_and_programs_share_them(dimensions):
    model = random_programs(dimensions)
    tensors = random_tensors(dimensions)
    read = {}
    for program in model.programs.values():
        for name, parameter in program.named_parameters():
            assert read.setdefault(name, parameter) is parameter
            np.testing.assert_array_equal(parameter.numpy(), tensors[name])
    # Tables of relative positions are read by way of the constants that are made of them.
    assert {name for name in tensors if ".bias.weight" not in name} == read.keys()


def test_a_result_is_let_go_when_nothing_reads_it_any_more():
    write = ProgramWriter(["x"])
    first = write.step("mul", Node("x"), 2.0)
    second = write.step("mul", first, 2.0)
    third = write.step("mul", second, 2.0)
    program = TorchProgram(write.program(third=third, first=first), ["third", "first"], {})

    def watched(x, factor):
        alive.append([result() is not None for result in made])
        result = x * factor
        made.append(weakref.ref(result))
        return result

    made, alive = [], []
    outputs = program.run([torch.ones(2)], mul=watched)
    assert [result.tolist() for result in outputs] == [[8.0, 8.0], [2.0, 2.0]]
    assert alive == [[], [True], [True, True]]
    assert [result() is not None for result in made] == [True, False, True]


def test_a_bias_belongs_to_its_matrix_and_a_table_may_multiply():
    write = ProgramWriter(["ids"])
    rows = write.embedding("table.weight", Node("ids"), (5, 4))
    program = write.program(
        tied=write.linear(rows, "table", (5, 4)),
        biased=write.linear(rows, "up", (4, 4), bias=True, activation="relu", residual=rows),
        gated=write.linear(rows, "gate", (6, 4), gate="silu"),
        shifted=write.step("add", rows, write.tensor("shift", 4)),
    )
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "table.weight": (5, 4),
        "up.weight": (4, 4),
        "up.bias": (4,),
        "gate.weight": (6, 4),
        "shift": (4,),
    }
    assert program.tensors == shapes
    weights = {
        name: nn.Parameter(torch.randn(shape, generator=generator), requires_grad=False)
        for name, shape in shapes.items()
    }
    given = torch.tensor([3, 1])
    tied, biased, gated, shifted = TorchProgram(program, list(program.outputs), weights)(given)
    table, up, bias, gate, shift = weights.values()
    x = table[given]
    torch.testing.assert_close(tied, x @ table.T)
    torch.testing.assert_close(biased, x + (x @ up.T + bias).relu())
    first, second = (x @ gate.T).chunk(2, dim=-1)
    torch.testing.assert_close(gated, torch.nn.functional.silu(first) * second)
    torch.testing.assert_close(shifted, x + shift)


def test_quantised_matrices_replace_those_of_fp32_in_memory():
    model = random_programs(replace(MISTRAL, vocab_size=320))
    kept = weakref.ref(model.weights["decoder.layers.0.attention.qkv.weight"])
    quantize_eager(model, "int8")
    gc.collect()
    assert kept() is None
    assert model["decode"].matrix("decoder.head.weight").weight.dtype == torch.int8
    assert "decoder.embedding.weight" in model.weights
