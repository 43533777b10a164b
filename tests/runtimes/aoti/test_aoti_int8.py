"""int8 matrices of a compiled program: bounds on their errors."""

import pytest
import torch
from torch import Tensor, nn

from kvcast.runtimes.aoti.precision import Precision

PRODUCT, TABLE = Precision(dtype="bf16", quantize="int8").forms("decode")
WIDTH = 64


def linear(weight: Tensor) -> nn.Linear:
    matrix = nn.Linear(*weight.T.shape, bias=False)
    matrix.weight = nn.Parameter(weight, requires_grad=False)
    return matrix


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "tokens",
    [
        normal(500, WIDTH),
        normal(500, WIDTH).exp(),
        -normal(500, WIDTH).exp(),
        nn.functional.gelu(5 * normal(500, WIDTH)),
        normal(500, WIDTH) * 1e-6 + 3,
        normal(500, 1).expand(-1, WIDTH),
        torch.zeros(1, WIDTH),
    ],
    ids=["about zero", "above", "below", "gelu", "far from zero", "all the same", "all zero"],
)
def test_activations_are_at_most_half_a_step_off_and_zero_stays(tokens):
    """A step is a 252nd of the distance from a token's lowest value to its highest."""
    given = tokens.clone()
    given[:, 5] = 0
    seen = PRODUCT(linear(torch.eye(WIDTH)))(given)
    step = (given.amax(1, keepdim=True) - given.amin(1, keepdim=True)) / 252
    assert ((seen - given).abs() <= 0.501 * step).all()
    assert (seen[:, 5] == 0).all()


def error(form: nn.Module, weight: Tensor, tokens: Tensor) -> float:
    """Root mean square error, relative to that of the correct values."""
    right = tokens @ weight.T
    return float((form(tokens) - right).square().mean().sqrt() / right.square().mean().sqrt())


def test_one_large_column_of_a_table_takes_at_most_a_bit_from_the_others():
    weight, tokens = normal(300, WIDTH), normal(20, WIDTH)
    tokens[:, 7] = 0
    usual = error(TABLE(linear(weight)), weight, tokens)
    weight[:, 7] = 100
    assert error(TABLE(linear(weight)), weight, tokens) < 2.1 * usual
    assert error(PRODUCT(linear(weight)), weight, tokens) > 10 * usual


def test_a_table_without_such_a_column_is_multiplied_as_any_matrix():
    weight, tokens = normal(300, WIDTH), normal(20, WIDTH)
    matrix = linear(weight)
    torch.testing.assert_close(TABLE(matrix)(tokens), PRODUCT(matrix)(tokens), rtol=0, atol=0)
