"""Calls of programs: planned for their sizes, and run by an interpreter in its own memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.runtimes.base import ForkSafeLock
from kvcast.runtimes.native.attention import store_value
from kvcast.runtimes.native.gemm import factors
from kvcast.runtimes.native.library import Machine, aligned
from kvcast.runtimes.native.opcodes import Dtype, Element, Operation
from kvcast.runtimes.native.operations import OPERATIONS
from kvcast.runtimes.native.plan_builder import Builder, Matrix, Plan
from kvcast.runtimes.native.values import Value, flat
from kvcast.runtimes.opening import naming
from kvcast.spec.program import Constant, Node, Program

# The places of cosines and sines among self-attention's arguments.
_ANGLES = slice(9, 11)
# Plans that are kept for calls of the same sizes over other arrays.
_PLANS = 64


@dataclass
class Call:
    """A plan, and the arena's address at its last relocation."""

    plan: Plan
    base: int = 0


class Interpreter:
    def __init__(
        self,
        machine: Machine,
        programs: Mapping[str, Program],
        constants: Mapping[Constant, Any],
        place_of: Callable[[str], Path],
        *,
        exact: bool,
    ) -> None:
        """`place_of` names a program's file in messages; with `exact` encoders attend in fp32."""
        self.machine = machine
        self.programs = programs
        self.constants = constants
        self._place_of = place_of
        self._exact = exact
        self._lock = ForkSafeLock()  # of the arena and the machine
        self._arena = aligned(0)
        self._planning = ForkSafeLock()
        self._plans: dict[tuple[Any, ...], Plan] = {}  # the latest last
        self._sizes: dict[tuple[Any, ...], Mapping[str, tuple[int, ...]]] = {}

    def angles(self) -> int | None:
        """Return the number of positions with rotary angles; None without RoPE."""
        tables = [
            self.constants[argument]
            for program in self.programs.values()
            for step in program.steps
            if step.operation in ("self_attention", "latent_attention")
            for argument in (*step.arguments[_ANGLES], step.keywords.get("cosines"))
            if argument is not None
        ]
        return min(map(len, tables), default=None)

    @property
    def prompts_differ(self) -> bool:
        return self.machine.prompts_differ and not self._exact

    def last_product(self, name: str, output: str) -> tuple[str, Matrix]:
        """Return the input of a program's last product, by its name, and its matrix."""
        rows, matrix = self.programs[name].last_product(output).arguments
        table: Matrix = self.constants[matrix]
        return rows.name, table

    def call(
        self,
        name: str,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
        *,
        prompt: bool = False,
    ) -> Call:
        """Plan a call between arrays at fixed addresses; calls of the same sizes share a plan."""
        arrays = {**inputs, **outputs}
        layout = [(key, part.dtype, part.shape, part.strides) for key, part in arrays.items()]
        key = (name, prompt, len(inputs), *layout)
        with self._planning:
            plan = self._plans.pop(key, None)
            if plan is None:
                with naming(self._place_of(name)):
                    plan = planned(
                        self.programs[name],
                        self.constants,
                        inputs,
                        outputs,
                        exact=self._exact,
                        prompt=prompt,
                    )
            self._plans[key] = plan
            if len(self._plans) > _PLANS:
                del self._plans[next(iter(self._plans))]
        return Call(plan.of(list(arrays.values())))

    def add(self, programs: Mapping[str, Program], beside: str) -> None:
        """Add programs over the same constants; `beside` names the file for messages."""
        place_of, place = self._place_of, self._place_of(beside)
        self.programs = {**self.programs, **programs}
        self._place_of = lambda name: place if name in programs else place_of(name)

    def sizes(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, tuple[int, ...]]:
        key = (name, *((part.dtype, part.shape) for part in inputs.values()))
        with self._planning:
            sizes = self._sizes.get(key)
            if sizes is None:
                with naming(self._place_of(name)):
                    sizes = sizes_of(self.programs[name], self.constants, inputs)
                if len(self._sizes) >= _PLANS:
                    self._sizes.clear()
                self._sizes[key] = sizes
        return sizes

    def run_once(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[Any]],
    ) -> None:
        plan = planned(program, self.constants, inputs, outputs, exact=self._exact)
        self.run(Call(plan))

    def run(self, call: Call) -> None:
        plan = call.plan
        with self._lock:
            if len(self._arena) < plan.arena:
                self._arena = aligned(plan.arena)
            base = self._arena.ctypes.data
            if call.base != base:
                plan.words[plan.in_arena] += base - call.base
                call.base = base
            self.machine.run(plan.words)


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
    """Return the plan of a call from input to output arrays.

    Outputs are the program's, or results of its ops by name. The caller keeps the arrays alive;
    they are the plan's arguments, in order. `exact`: encoder attention is computed in fp32.
    """
    builder = Builder(exact=exact, prompt=prompt)
    known = _compiled(builder, program, constants, inputs, list(outputs))
    for name, array in outputs.items():
        _put(builder, known[program.outputs.get(name, name)], builder.argument(array))
    return builder.plan()


def sizes_of(
    program: Program, constants: Mapping[Constant, Any], inputs: Mapping[str, NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    known = _compiled(Builder(), program, constants, inputs, list(program.outputs))
    return {name: known[node].sizes for name, node in program.outputs.items()}


def _compiled(
    builder: Builder,
    program: Program,
    constants: Mapping[Constant, Any],
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
) -> dict[str, Any]:
    """Compile the ops that some results need; return all results by name."""
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
    """Read a program; raises ValueError for another file, or unknown operations."""
    program = Program.read(path)
    unknown = {step.operation for step in program.steps} - set(OPERATIONS)
    if unknown:
        raise ValueError(f"it has unknown operations: {', '.join(sorted(unknown))}")
    return program


def _put(builder: Builder, result: Value, wanted: Value) -> None:
    if wanted.dtype == Dtype.INT8:
        store_value(builder, result, wanted)
        return
    if result.sizes != wanted.sizes:
        raise ValueError(f"a result is {list(result.sizes)} and not {list(wanted.sizes)}")
    whole = result.fills_storage and result.storage.address is None
    if whole and wanted.is_contiguous and result.dtype == wanted.dtype:
        builder.place_in(result.storage, wanted.storage)
    else:
        builder.elements(Element.COPY, wanted, result)


Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


def scores_plan(queries_sx: Float32, keys: Sequence[NDArray[Any]], scores_hst: Float32) -> Plan:
    """Return the call that fills `scores_hst` with scaled products of queries and keys.

    `keys` has each head's contiguous [t, d] of its cache; int8 codes are followed by their scales.
    """
    heads, tokens, positions = scores_hst.shape
    head_dim = queries_sx.shape[1] // heads
    number = Value.of(keys[0]).dtype
    builder = Builder()
    addresses = np.array([lines.ctypes.data for lines in keys], np.int64)
    builder.kept += keys
    builder.emit(
        Operation.ALIGNMENT_SCORES,
        heads=heads,
        tokens=tokens,
        positions=positions,
        head_dim=head_dim,
        query=flat(builder.lines(builder.outer(queries_sx))),
        scale=head_dim**-0.5,
        number=int(number),
        keys=builder.outer(addresses).address,
        out=builder.outer(scores_hst).address,
    )
    return builder.plan()


def attention_by_token_plan(scores_hst: Float32, attention_st: Float32) -> Plan:
    """Return the call that fills `attention_st` [s, frames] from scores [heads, s, t]."""
    builder = Builder()
    heads, tokens, positions = scores_hst.shape
    builder.emit(
        Operation.ATTENTION_BY_TOKEN,
        heads=heads,
        tokens=tokens,
        positions=positions,
        frames=attention_st.shape[1],
        scores=builder.outer(scores_hst).address,
        out=builder.outer(attention_st).address,
    )
    return builder.plan()


def dtw_plan(weights_nt: Float32, begins_n: Int64) -> Plan:
    """Return the call that fills `begins_n` with the first frames of rows of `weights_nt`."""
    builder = Builder()
    rows, frames = weights_nt.shape
    weights, out = builder.outer(weights_nt).address, builder.outer(begins_n).address
    builder.emit(Operation.DTW, rows=rows, frames=frames, weights=weights, out=out)
    return builder.plan()


def probabilities_plan(
    hidden_pd: Float32,
    matrix: Matrix,
    tokens_p: Int64,
    among_v: Float32,
    probabilities_p: Float32,
) -> Plan:
    """Return the call that fills `probabilities_p` with the softmax of tokens among some.

    `hidden_pd` is the contiguous input of the output head `matrix`; `among_v` is 0 or -inf.
    """
    builder = Builder()
    builder.emit(
        Operation.TOKEN_PROBABILITIES,
        matrix=matrix.words,
        rows=len(tokens_p),
        **factors(builder, builder.lines(builder.outer(hidden_pd)), matrix),
        tokens=builder.outer(tokens_p).address,
        among=builder.outer(among_v).address,
        out=builder.outer(probabilities_p).address,
    )
    return builder.plan()
