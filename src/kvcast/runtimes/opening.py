"""A bundle's files on a runtime: what does not fit the manifest, or fails, is a line that names it.

Checksums tell damage and not whether a file is what its manifest says: both may have been changed
and sealed again. So a program's own arguments are compared with what the manifest promises before
memory is taken for them, and whatever a runtime raises becomes a KvcastError. Knows no runtime.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcast.bundle.manifest import CacheLayers, Manifest
from kvcast.errors import KvcastError, in_one_line

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None is open."""


@dataclass(frozen=True)
class Argument:
    """A tensor that a program takes or gives; `dtype` is spelled as NumPy spells it."""

    dtype: str
    shape: Shape


def failed(path: Path, error: BaseException) -> KvcastError:
    """Say in one line that a file does not run here, and what the runtime said."""
    return KvcastError(f"{path} cannot be run here: {in_one_line(error)}; export it again")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raise KvcastError, which names the file, for whatever is raised inside."""
    try:
        yield
    except KvcastError:
        raise
    except Exception as error:
        raise failed(path, error) from error


def each_layer(runs: Iterable[CacheLayers]) -> list[CacheLayers]:
    """Return the self caches, one entry a layer."""
    return [run for run in runs if run.kind != "cross" for _ in range(run.layers)]


def check_arguments(
    path: Path,
    promised: Sequence[str],
    found: Mapping[str, Argument],
    known: Mapping[str, Argument],
) -> None:
    """Raise KvcastError unless a program's arguments are those that the manifest promises.

    Args:
        path: the program's file.
        promised: names in the manifest.
        found: what the program itself says of its arguments, by name.
        known: what each may be; a name that begins with one of these and an asterisk will do.

    """
    if set(promised) != set(found):
        odd = min(set(promised) ^ set(found))
        where = "bundle.json" if odd in promised else "the file"
        raise KvcastError(f"{path} does not fit bundle.json: only {where} has {odd}; export again")
    for name, argument in found.items():
        expected = known.get(name)
        if expected is None:
            raise KvcastError(f"{path} has {name}, which this kvcast does not know; export again")
        if argument.dtype != expected.dtype or not _fits(argument.shape, expected.shape):
            raise KvcastError(
                f"{path} does not fit bundle.json: {name} is {_shown(argument)}, "
                f"not {_shown(expected)}; export again"
            )


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(
        size is None or wanted is None or size == wanted
        for size, wanted in zip(shape, expected, strict=True)
    )


def _shown(argument: Argument) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in argument.shape)
    return f"{argument.dtype} [{sizes}]"


def check_past(path: Path, inputs: Sequence[str], layers: Sequence[CacheLayers]) -> None:
    """Raise KvcastError unless a program takes key and value of each layer, in order."""
    wanted = [f"past_{part}_{i}" for i in range(len(layers)) for part in ("key", "value")]
    if [name for name in inputs if name.startswith("past_")] != wanted:
        raise KvcastError(
            f"{path} does not fit bundle.json: it does not take the caches of {len(layers)} "
            "layers in order; export again"
        )


def sizes_of(manifest: Manifest, *names: str) -> list[int | None]:
    """Return dimensions by name; None for those that the model's family does not have."""
    return [manifest.dimensions.get(name) for name in names]
