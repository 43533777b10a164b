"""Greedy steps whose state lies on the device write what kvcast's own operators write."""

import re
from dataclasses import replace
from functools import partial
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from kit.dimensions import MISTRAL, SMALL
from kit.models import random_programs
from kvcast_bench.greedy_step import PRODUCTS, GreedyState, compiled, make_step, slots_for, summed
from tiny_models import written_eagerly

NEW = 12


def begun(held: int, caches: list[tuple[int, ...]], cross: list[tuple[int, ...]]) -> GreedyState:
    generator = torch.Generator().manual_seed(0)

    def keys_and_values(shapes: list[tuple[int, ...]]) -> list[Tensor]:
        return [torch.randn(shape, generator=generator) for shape in shapes for _ in range(2)]

    return GreedyState(
        token_rs=torch.ones((1, 1), dtype=torch.int64),
        lengths=torch.full((1,), held, dtype=torch.int32),
        generated=torch.zeros(301, dtype=torch.int64),
        caches=keys_and_values(caches),
        given=keys_and_values(cross),
    )


def whisper() -> tuple[nn.Module, GreedyState]:
    decode = random_programs(replace(SMALL, decoder_layers=1, alignment_heads=()), seed=1)["decode"]
    return decode, begun(4, [(1, 4, 32, 16)], [(1, 4, 25, 16)])


def ring() -> tuple[nn.Module, GreedyState]:
    return random_programs(MISTRAL)["decode"], begun(5, [(1, 2, 7, 16)] * 2, [])


def linear() -> tuple[nn.Module, GreedyState]:
    dimensions = replace(MISTRAL, windows=(None, None), max_positions=300)
    return random_programs(dimensions)["decode"], begun(100, [(1, 2, 300, 16)] * 2, [])


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize("made", [whisper, ring, linear])
def test_steps_write_what_the_eager_operators_write(made, products: str):
    decode, text = made()
    expected = written_eagerly(decode, text, NEW)
    assert len(set(expected)) > 3  # a text that says something
    slots = slots_for(int(text.lengths) + NEW, text.caches[0].shape[2])
    first = int(text.lengths) + 1
    with torch.no_grad():
        step = make_step(decode, text, slots, products)
        for _ in range(NEW):
            step(*text)
    assert text.generated[first : first + NEW].tolist() == expected


def test_slots_are_powers_of_two_up_to_the_capacity():
    slots = [slots_for(n, 448) for n in (1, 128, 129, 256, 257, 448)]
    assert slots == [128, 128, 256, 256, 448, 448]


def test_a_sum_is_the_product():
    torch.manual_seed(0)
    weight, bias = torch.randn(6, 5), torch.randn(6)
    for shape in ((1, 1, 5), (2, 3, 5)):
        hidden = torch.randn(shape)
        expected = torch.nn.functional.linear(hidden, weight, bias)
        torch.testing.assert_close(summed(hidden, weight, bias), expected)


def test_a_step_reads_no_more_slots_than_it_was_made_for():
    decode, text = linear()
    expected = written_eagerly(decode, text, 1)
    with torch.no_grad():
        step = make_step(decode, text, 128, "sums")
        for cache in text.caches:
            cache[:, :, 128:] = torch.nan
        step(*text)
    assert [int(text.token_rs)] == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_compiled_step_writes_its_caches_in_place_and_the_same_tokens():
    from torch._inductor.utils import run_and_get_code

    decode, begun = whisper()
    with torch.no_grad():
        text = tree_map(torch.clone, begun)
        module = make_step(decode, text, 32, "sums")
        step, (code,) = run_and_get_code(partial(compiled, module, tuple(text)))
        for _ in range(NEW):
            step(*text)
    assert text.generated[5 : 5 + NEW].tolist() == written_eagerly(decode, begun, NEW)
    shapes = re.findall(r"empty_strided_cpu\(\(([\d, ]+)\)", code)
    buffers = [prod(map(int, re.findall(r"\d+", shape))) for shape in shapes]
    assert buffers
    assert max(buffers) < text.caches[0].numel()  # so none is a copy of a cache
