"""Opens a bundle's files on a runtime; errors are one line that names the file.

A resealed bundle may disagree with its manifest, so a program's arguments are checked before memory
is allocated for them, and any error of a runtime becomes a KvcastError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvcast.bundle.manifest import Manifest
from kvcast.errors import KvcastError, in_one_line
from kvcast.families.programs import ALIGNMENT_QUERIES, ENCODED, CacheLayers

Shape = tuple[int | None, ...]
"""Sizes of a tensor; None is open."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output tensor of a program; `dtype` is NumPy's name."""

    dtype: str
    shape: Shape


@dataclass(frozen=True)
class ProgramFile:
    """A program's file, and its inputs and outputs as the runtime describes them, by name."""

    path: Path
    takes: Mapping[str, TensorSpec]
    gives: Mapping[str, TensorSpec]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn any exception inside into a KvcastError that names the file."""
    try:
        yield
    except KvcastError:
        raise
    except Exception as error:
        raise KvcastError(
            f"{path} cannot be run here: {in_one_line(error)}; export it again"
        ) from error


def check_programs(
    manifest: Manifest,
    programs: Mapping[str, ProgramFile],
    *,
    rows: int | None,
    cache: Callable[[int, int | None, int], Shape],
) -> None:
    """Raise KvcastError unless programs, as the runtime describes them, match the manifest.

    `rows`: maximum of a call; `cache`: a tensor's shape from heads, positions and head size.
    """
    layers = [run for run in manifest.cache if run.kind not in ENCODED for _ in range(run.layers)]
    known = _known(manifest, layers, rows, cache)
    encoded: dict[str, TensorSpec] = {}
    for name in sorted(programs, reverse=True):  # encode before decode, which takes its results
        program, promised = programs[name], manifest.graph(name)
        takes, gives = program.takes, program.gives
        if name == "encode":
            encoded = {n: given for n, given in gives.items() if n.startswith("cross_")}
        fitting = known | encoded | {"hidden": _hidden(manifest, name, rows)}
        fitting |= {n: takes[b] for n, b in promised.aliases.items() if b in encoded and b in takes}
        _check_arguments(program.path, promised.inputs, takes, fitting)
        _check_arguments(program.path, promised.outputs, gives, fitting)
        if name == "decode":
            _check_past(program.path, promised.inputs, layers)
        for output, buffer in promised.aliases.items():
            if gives[output].dtype != takes[buffer].dtype:
                raise KvcastError(
                    f"{program.path} does not fit bundle.json: {output} cannot be written to "
                    f"{buffer}; export again"
                )


def _known(
    manifest: Manifest,
    layers: Sequence[CacheLayers],
    rows: int | None,
    cache: Callable[[int, int | None, int], Shape],
) -> dict[str, TensorSpec]:
    """Describe the arguments of a family's programs; unknown sizes are dynamic."""
    size = manifest.dimensions.get
    frames = None if (positions := size("source_positions")) is None else 2 * positions
    aligned = len(size("alignment_heads", ())) * max((run.head_dim for run in layers), default=0)
    known = {
        "tokens": TensorSpec("int64", (rows, None)),
        "lengths": TensorSpec("int32", (rows,)),
        "offsets": TensorSpec("int64", (None,)),
        "source": TensorSpec("int64", (rows, None)),
        "source_lengths": TensorSpec("int32", (rows,)),
        "features": TensorSpec("float32", (rows, size("n_mels"), frames)),
        "logits": TensorSpec("float32", (rows, None, size("vocab_size"))),
        ALIGNMENT_QUERIES: TensorSpec("float32", (rows, None, aligned)),
        "pooled": TensorSpec("float32", (rows, size("width"))),
    }
    for i, layer in enumerate(layers):
        for part, sizes in zip(layer.parts, layer.sizes, strict=True):
            argument = TensorSpec(layer.dtype, cache(*sizes))
            known |= {f"past_{part}_{i}": argument, f"present_{part}_{i}": argument}
    return known


def _hidden(manifest: Manifest, program: str, rows: int | None) -> TensorSpec:
    width = manifest.dimensions.get("width")
    return TensorSpec("float32", (rows, width) if program == "pool" else (rows, None, width))


def _check_arguments(
    path: Path,
    promised: Sequence[str],
    declared: Mapping[str, TensorSpec],
    known: Mapping[str, TensorSpec],
) -> None:
    if set(promised) != set(declared):
        odd = min(set(promised) ^ set(declared))
        where = "bundle.json" if odd in promised else "the file"
        raise KvcastError(f"{path} does not fit bundle.json: only {where} has {odd}; export again")
    for name, argument in declared.items():
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


def _shown(argument: TensorSpec) -> str:
    sizes = ", ".join("any" if size is None else str(size) for size in argument.shape)
    return f"{argument.dtype} [{sizes}]"


def _check_past(path: Path, inputs: Sequence[str], layers: Sequence[CacheLayers]) -> None:
    wanted = [f"past_{part}_{i}" for i, layer in enumerate(layers) for part in layer.parts]
    if [name for name in inputs if name.startswith("past_")] != wanted:
        raise KvcastError(
            f"{path} does not fit bundle.json: it does not take the caches of {len(layers)} "
            "layers in order; export again"
        )
