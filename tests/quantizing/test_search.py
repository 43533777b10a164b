"""The search, over costs that are made up: what it keeps, and what it leaves."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from kvcast.quantizing.search import MOST_TRIALS, Level, Move, Search, moves_of
from kvcast.quantizing.trials import with_precision
from kvcast.spec.recipes import Recipe


def level(precision: str, saving: float, cost: float) -> Level:
    return Level(precision=precision, saving=saving, cost=cost)


def start(names: Sequence[str]) -> Recipe:
    return Recipe(model="made up", sha256="", matrices=dict.fromkeys(names, "fp32"))


def searched(
    levels: Mapping[str, Sequence[Level]], costs: Mapping[tuple[str, str], float], budget: float
) -> tuple[Recipe, Search]:
    """Search where flips are the sum of what each matrix costs in its precision."""

    def measure(recipe: Recipe) -> float:
        return sum(costs.get(part, 0.0) for part in recipe.matrices.items())

    moves = moves_of(levels)
    search = Search(start(list(levels)), moves, budget, with_precision, measure)
    return search.run(), search


def test_moves_are_sorted_by_what_they_save_for_their_cost():
    moves = moves_of(
        {
            "steady": [level("int8", 0.3, 0.001), level("int4", 0.35, 0.011)],
            "robust": [level("int8", 0.3, 0.002), level("int4", 0.4, 0.002)],
        }
    )
    assert [(move.target, move.precision) for move in moves] == [
        ("steady", "int8"),  # 300 a nat
        ("robust", "int4"),  # 200 a nat, and int8 saves less for as much
        ("steady", "int4"),  # 5 a nat
    ]
    assert moves[2].worth == pytest.approx(5)


def test_a_precision_that_saves_nothing_is_no_move():
    assert moves_of({"small": [level("int8", 0.0, 0.0), level("int4", -0.1, 0.0)]}) == []


def test_a_cost_below_what_can_be_told_is_a_large_worth():
    [move] = moves_of({"free": [level("int8", 0.1, -0.5)]})
    assert move == Move(target="free", precision="int8", worth=pytest.approx(0.1 / 1e-9))


def test_everything_is_kept_where_the_budget_allows_it():
    levels = {name: [level("int8", 0.1, 0.1), level("int4", 0.2, 0.3)] for name in "abcd"}
    recipe, _ = searched(levels, {}, 0.0)
    assert set(recipe.matrices.values()) == {"int4"}


def test_nothing_is_kept_where_it_allows_nothing():
    levels = {name: [level("int8", 0.1, 0.1)] for name in "abcd"}
    recipe, _ = searched(levels, {(name, "int8"): 0.5 for name in "abcd"}, 0.1)
    assert recipe == start("abcd")


def test_one_that_costs_more_than_it_seemed_is_left_and_later_ones_are_kept():
    names = [f"m{i:02}" for i in range(20)]
    levels = {
        name: [level("int8", 0.1, 0.1 + 0.01 * i), level("int4", 0.15, 10.0 + i)]
        for i, name in enumerate(names)
    }
    recipe, search = searched(levels, {("m07", "int8"): 0.5, ("m03", "int4"): 0.5}, 0.1)
    assert recipe.matrices == {
        **dict.fromkeys(names, "int4"),
        "m03": "int8",
        "m07": "fp32",  # and not int4, whose step to int8 failed
    }
    assert len(search.points) <= MOST_TRIALS


@pytest.mark.parametrize("seed", range(5))
def test_the_budget_holds_whatever_parts_cost_together(seed: int):
    random = np.random.default_rng(seed)
    names = [f"m{i:03}" for i in range(60)]
    levels, costs = {}, {}
    for name in names:
        alone = sorted(random.uniform(0, 1, 2))
        levels[name] = [level("int8", 0.5, alone[0]), level("int4", 0.6, alone[1])]
        for precision, cost in zip(("int8", "int4"), alone, strict=True):
            costs[name, precision] = 0.01 * cost * random.uniform(0.3, 3)
    recipe, search = searched(levels, costs, 0.1)
    flips = sum(costs.get(part, 0.0) for part in recipe.matrices.items())
    assert 0.05 < flips <= 0.1
    # Each trial may be the last of a branch; no more than a few follow the limit.
    assert len(search.points) <= MOST_TRIALS + 8
    whole = {point.recipe: point.flips for point in search.points}
    assert whole[recipe] == pytest.approx(flips)
