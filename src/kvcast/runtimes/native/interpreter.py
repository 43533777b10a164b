"""Calls of programs: planned for their sizes, and run by a machine in memory of its own.

Knows programs by their names and no model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from kvcast.runtimes.exclusive import ForkSafeLock
from kvcast.runtimes.native.building import Matrix, Plan
from kvcast.runtimes.native.library import Machine, aligned
from kvcast.runtimes.native.planning import planned, sizes_of
from kvcast.runtimes.opening import naming
from kvcast.spec.program import Constant, Program

# The places of cosines and sines among self-attention's arguments.
_ANGLES = slice(9, 11)
# Plans that are kept for calls of the same sizes over other arrays.
_PLANS = 64


@dataclass
class Call:
    """A plan, and where the arena began when its addresses were last moved there."""

    plan: Plan
    base: int = 0


class Interpreter:
    """A machine, and the memory in which its programs' intermediate results lie."""

    def __init__(
        self,
        machine: Machine,
        programs: Mapping[str, Program],
        constants: Mapping[Constant, Any],
        place_of: Callable[[str], Path],
        *,
        exact: bool,
    ) -> None:
        """Take programs by name, and their packed constants.

        `place_of` names a program's file in messages. `exact`: attention of encoders is computed
        in fp32.
        """
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
        """Return for how many positions there are rotary angles; None where none are used."""
        tables = [
            self.constants[argument]
            for program in self.programs.values()
            for step in program.steps
            if step.operation == "self_attention"
            for argument in step.arguments[_ANGLES]
            if argument is not None
        ]
        return min(map(len, tables), default=None)

    @property
    def prompts_differ(self) -> bool:
        """Whether prompts are computed otherwise than steps; never in fp32."""
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
        """Plan a call that reads these arrays and fills those, which stay where they are.

        Planning takes longer than a step: calls of the same sizes share a plan. `prompt`: new
        positions are a prompt's.
        """
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
        """Take further programs over the same constants, which are in the file of another."""
        place_of, place = self._place_of, self._place_of(beside)
        self.programs = {**self.programs, **programs}
        self._place_of = lambda name: place if name in programs else place_of(name)

    def sizes(self, name: str, inputs: Mapping[str, NDArray[Any]]) -> Mapping[str, tuple[int, ...]]:
        """Return the sizes of a program's results, given arrays that it reads."""
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
        """Run another program, over the same constants."""
        plan = planned(program, self.constants, inputs, outputs, exact=self._exact)
        self.run(Call(plan))

    def run(self, call: Call) -> None:
        """Run a planned call."""
        plan = call.plan
        with self._lock:
            if len(self._arena) < plan.arena:
                self._arena = aligned(plan.arena)
            base = self._arena.ctypes.data
            if call.base != base:
                plan.words[plan.in_arena] += base - call.base
                call.base = base
            self.machine.run(plan.words)
