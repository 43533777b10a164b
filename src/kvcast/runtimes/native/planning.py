"""Plans calls of programs: the instructions for given sizes and arrays.

A program is written by its family and knows no sizes that callers vary; each call has its own
(`kvcast/runtimes/native/operations.py` compiles its operations). Knows no family.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kvcast.runtimes.native.attention import stored
from kvcast.runtimes.native.building import Builder, Plan
from kvcast.runtimes.native.instructions import Dtype, Element
from kvcast.runtimes.native.operations import OPERATIONS
from kvcast.runtimes.native.values import Value
from kvcast.spec.program import Constant, Node, Program

WEIGHTS = "weights.safetensors"
"""The file beside programs with their constants."""


def planned(
    program: Program,
    constants: Mapping[Constant, Any],
    inputs: Mapping[str, NDArray[Any]],
    outputs: Mapping[str, NDArray[Any]],
    *,
    exact: bool = True,
    prompt: bool = False,
) -> Plan:
    """Return the instructions of a call that reads these arrays and fills those.

    Outputs are the program's, or results of steps by their names. The caller keeps the arrays,
    which are the plan's arguments in their order, alive. `exact`: attention of encoders is computed
    in fp32. `prompt`: new positions are a prompt's, for which attention may have another kernel.
    """
    builder = Builder(exact=exact, prompt=prompt)
    known = _compiled(builder, program, constants, inputs, list(outputs))
    for name, array in outputs.items():
        _put(builder, known[program.outputs.get(name, name)], builder.argument(array))
    return builder.plan()


def sizes_of(
    program: Program, constants: Mapping[Constant, Any], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of a program's results by name, of a call that reads these arrays."""
    known = _compiled(Builder(), program, constants, inputs, list(program.outputs))
    return {name: known[node].sizes for name, node in program.outputs.items()}


def _compiled(
    builder: Builder,
    program: Program,
    constants: Mapping[Constant, Any],
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
) -> dict[str, Any]:
    """Compile the steps that some results need; return all results by the names of steps."""
    known: dict[str, Any] = {name: builder.argument(array) for name, array in inputs.items()}

    def resolved(given: Any) -> Any:
        if isinstance(given, Node):
            return known[given.name]
        if isinstance(given, Constant):
            return constants[given]
        return [resolved(item) for item in given] if isinstance(given, list) else given

    for step in program.needed(outputs):
        keywords = {name: resolved(item) for name, item in step.keywords.items()}
        operation = OPERATIONS[step.operation]
        known[step.name] = operation(builder, *map(resolved, step.arguments), **keywords)
    return known


def read_program(path: Path) -> Program:
    """Read a program's file; ValueError for another, or for operations that are not known here."""
    program = Program.read(path)
    unknown = {step.operation for step in program.steps} - set(OPERATIONS)
    if unknown:
        raise ValueError(f"it has unknown operations: {', '.join(sorted(unknown))}")
    return program


def _put(builder: Builder, result: Value, wanted: Value) -> None:
    """Let a result lie where the caller wants it, as codes if that is a cache of them."""
    if wanted.dtype == Dtype.INT8:
        stored(builder, result, wanted)
        return
    if result.sizes != wanted.sizes:
        raise ValueError(f"a result is {list(result.sizes)} and not {list(wanted.sizes)}")
    whole = result.fills_storage and result.storage.address is None
    if whole and wanted.is_contiguous and result.dtype == wanted.dtype:
        builder.let_lie(result.storage, wanted.storage)
    else:
        builder.elements(Element.COPY, wanted, result)
