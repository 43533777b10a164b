"""Searches for a recipe: the largest saving first, as long as few tokens change.

Every matrix and both kinds of caches are tried alone in every precision. A *move* takes one of them
to a smaller one; moves are sorted by what they save for the divergence that they cost alone. How
many moves fit is measured with all of them together: by bisection, then by trying the others in
halves. Knows no runtime.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvcast.spec.recipes import Recipe

MOST_TRIALS = 48
"""Recipes that are measured whole, at most."""
_LEAST_COST = 1e-9  # nats, below what can be told from nothing
_ON_THE_WAY = 6  # recipes on the way to all moves, for the frontier


@dataclass(frozen=True, kw_only=True)
class Level:
    """A precision of a matrix or of caches, compared with fp32 while all else is fp32.

    Attributes:
        precision: as recipes call it.
        saving: as a share of what all take in fp32.
        cost: the divergence.

    """

    precision: str
    saving: float
    cost: float


@dataclass(frozen=True, kw_only=True)
class Move:
    """A step of a matrix or of caches to a smaller precision; `worth` is the saving for the cost.

    `target` is a matrix's name, "self_cache" or "cross_cache".
    """

    target: str
    precision: str
    worth: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """A recipe and the share of flips that was measured of it."""

    recipe: Recipe
    flips: float


def moves_of(levels: Mapping[str, Sequence[Level]]) -> list[Move]:
    """Return moves, the worthiest first; a target's moves come in the order of their savings.

    Precisions that save less for their cost than a smaller one are skipped: a target's moves are
    the upper hull of its savings over costs.
    """
    moves = [move for target, each in levels.items() for move in _hull(target, each)]
    return sorted(moves, key=lambda move: (-move.worth, move.target))


def _hull(target: str, levels: Sequence[Level]) -> Iterator[Move]:
    saving, cost = 0.0, 0.0
    while larger := [level for level in levels if level.saving > saving]:
        worths = [(each.saving - saving) / max(each.cost - cost, _LEAST_COST) for each in larger]
        worth = max(worths)
        best = larger[worths.index(worth)]
        yield Move(target=target, precision=best.precision, worth=worth)
        saving, cost = best.saving, max(best.cost, cost)


@dataclass
class Search:
    """A search among moves.

    Attributes:
        start: the recipe without any move.
        moves: the worthiest first.
        budget: the largest share of flips.
        apply: returns a recipe with another precision of a target.
        measure: returns the share of flips of a recipe; each is measured once.
        points: every recipe that was measured.

    """

    start: Recipe
    moves: Sequence[Move]
    budget: float
    apply: Callable[[Recipe, str, str], Recipe]
    measure: Callable[[Recipe], float]
    points: list[Point] = field(default_factory=list)

    def run(self) -> Recipe:
        """Return the best recipe whose flips stay under the budget; the start where none does."""
        for i in range(1, _ON_THE_WAY + 1):
            self._fits(self.moves[: round(i * len(self.moves) / _ON_THE_WAY)])
        fits, fails = 0, len(self.moves) + 1
        while fails - fits > 1:
            # The first probe is all of them.
            middle = len(self.moves) if fails > len(self.moves) else (fits + fails) // 2
            if self._fits(self.moves[:middle]):
                fits = middle
            else:
                fails = middle
        kept = list(self.moves[:fits])
        self._extend(kept, self.moves[fails:])
        return self._recipe(kept)

    def _extend(self, kept: list[Move], others: Sequence[Move]) -> None:
        """Keep of the other moves what fits, a half at a time where a whole does not."""
        others = self._possible(kept, others)
        if not others or len(self.points) >= MOST_TRIALS:
            return
        if self._fits([*kept, *others]):
            kept += others
        elif len(others) > 1:
            middle = len(others) // 2
            self._extend(kept, others[:middle])
            self._extend(kept, others[middle:])

    def _possible(self, kept: Sequence[Move], others: Sequence[Move]) -> list[Move]:
        """Return the moves of targets whose earlier moves are all kept."""
        done, possible = {*kept}, list[Move]()
        for move in others:
            earlier = [each for each in self.moves if each.target == move.target]
            if done.issuperset(earlier[: earlier.index(move)]):
                possible.append(move)
                done.add(move)
        return possible

    def _fits(self, moves: Sequence[Move]) -> bool:
        recipe = self._recipe(moves)
        known = next((point for point in self.points if point.recipe == recipe), None)
        if known is None:
            known = Point(recipe=recipe, flips=self.measure(recipe))
            self.points.append(known)
        return known.flips <= self.budget

    def _recipe(self, moves: Sequence[Move]) -> Recipe:
        recipe = self.start
        for move in moves:
            recipe = self.apply(recipe, move.target, move.precision)
        return recipe
