"""Lists the models that are known, and the runtimes that run them, from the tables of both.

Opens nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvcast.checkpoints.hub import PUBLISHED
from kvcast.checkpoints.hub_names import SPEECH, TEXT
from kvcast.checkpoints.source import known_types
from kvcast.families.base import Family, Task
from kvcast.families.table import FAMILIES
from kvcast.spec.runtimes import RUNTIMES


@dataclass(frozen=True, kw_only=True)
class KnownType:
    name: str
    formats: Sequence[str]
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class KnownFamily:
    name: str
    title: str
    task: Task
    types: Sequence[KnownType]


@dataclass(frozen=True, kw_only=True)
class KnownRuntime:
    name: str
    title: str
    exports: bool
    opens: bool
    quantize: Sequence[str]
    dtypes: Sequence[str]
    caches: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    families: Sequence[KnownFamily]
    names: Mapping[str, str]  # hub ids by usual name
    runtimes: Sequence[KnownRuntime]


def catalogue() -> Catalogue:
    types = known_types()
    return Catalogue(
        families=[
            KnownFamily(
                name=family.name,
                title=family.title,
                task=family.task,
                types=[
                    KnownType(name=name, formats=formats, example=_example(family, name))
                    for name, formats in sorted(types.get(family.dimensions, {}).items())
                ],
            )
            for family in FAMILIES.values()
        ],
        names={**SPEECH, **TEXT},
        runtimes=[
            KnownRuntime(
                name=name,
                title=runtime.title,
                exports=runtime.exports,
                opens=runtime.direct,
                quantize=_default_first(runtime.quantize, runtime.default_quantize),
                dtypes=runtime.dtypes,
                caches=runtime.caches,
            )
            for name, runtime in RUNTIMES.items()
        ],
    )


def _example(family: Family, name: str) -> str:
    """Return a published model of a type, of which several families may have one."""
    return PUBLISHED.get(f"{name} ({family.task})", PUBLISHED.get(name, ""))


def _default_first(words: Sequence[str], default: str) -> list[str]:
    return sorted(words, key=lambda word: word != default)
