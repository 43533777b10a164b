"""Texts after many prompts, written on the machines of a cluster. Knows no model."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from kvcast.cluster.mapping import mapped

P = TypeVar("P")
R = TypeVar("R")


def answered(
    make: Callable[[], Callable[[Sequence[P]], Sequence[R]]],
    prompts: Sequence[P],
    keys: Sequence[tuple[Hashable, Hashable]],
    *,
    together: int,
    actors: int | None,
    cores: int,
) -> Iterator[R]:
    """Yield the answer to each prompt, in order.

    Args:
        make: is called once in each process; returns the function that answers several prompts.
        prompts: of which each is answered once.
        keys: of each prompt its call and its text, for `packed`.
        together: prompts that are answered in one call, at least, where there are so many.
        actors: processes at most.
        cores: of each.

    Raises as `kvcast.cluster.mapping.mapped`.

    """
    jobs = [[(i, prompts[i]) for i in some] for some in packed(keys, together)]
    waiting: dict[int, R] = {}
    place = 0
    for answers in mapped(_PromptActor(make), jobs, actors=actors, cores=cores):
        waiting.update(answers)
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def packed(keys: Sequence[tuple[Hashable, Hashable]], together: int) -> list[list[int]]:
    """Return which prompts are answered together, by their places.

    Prompts of one call that say the same stay together and in order: the random numbers of a text
    depend on the number of equal prompts before it in its call, and on no other prompt.

    Args:
        keys: of each prompt its call and its text. Prompts of a call follow each other.
        together: prompts of one call are packed until there are at least so many.

    """
    packs: list[list[int]] = []
    for _, places in groupby(range(len(keys)), key=lambda i: keys[i][0]):
        same: dict[Hashable, list[int]] = {}
        for i in places:
            same.setdefault(keys[i][1], []).append(i)
        pack: list[int] = []
        for some in same.values():
            pack += some
            if len(pack) >= together:
                packs.append(sorted(pack))
                pack = []
        if pack:
            packs.append(sorted(pack))
    return packs


@dataclass(frozen=True)
class _PromptActor(Generic[P, R]):
    make: Callable[[], Callable[[Sequence[P]], Sequence[R]]]

    def __call__(self) -> Callable[[Sequence[tuple[int, P]]], list[tuple[int, R]]]:
        answer = self.make()

        def answer_all(job: Sequence[tuple[int, P]]) -> list[tuple[int, R]]:
            answers = answer([prompt for _, prompt in job])
            return [(i, texts) for (i, _), texts in zip(job, answers, strict=True)]

        return answer_all
