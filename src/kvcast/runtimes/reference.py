"""Models in fp32, as references of exports, by kvcast's own kernels or else PyTorch."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kvcast.checkpoints.base import Checkpoint
from kvcast.errors import KvcastError, LibraryMissingError
from kvcast.families.table import family_with
from kvcast.machine.resources import available_cores
from kvcast.runtimes.native.build import check_compiler, find_library, is_there
from kvcast.runtimes.native.interpreter import sizes_of
from kvcast.spec.program import Program
from kvcast.spec.runtimes import BundlePrecision, OnPhase


class Reference(Protocol):
    name: str  # names its executor in a proof's record
    dimensions: Any
    runtime: Any

    @abstractmethod
    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Run a program over the model's constants, writing to caches.

        It fills `outputs`, which may be results of ops by their names.
        """

    @abstractmethod
    def results(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[np.float32]]:
        """Run a program, which writes to caches; return results of it, or of steps, by name."""


def reference_of(
    checkpoint: Checkpoint,
    programs: Callable[[], Any],
    on_phase: OnPhase,
    instructions: str | None = None,
) -> Reference:
    """Return a checkpoint's model in fp32.

    `programs` returns its programs for PyTorch; `on_phase` is called before kernels are compiled.
    Raises LibraryMissingError if there is neither a library nor PyTorch.
    """
    if is_there(lambda: on_phase("compiling kernels")) or not has_torch():
        return NativeReference(checkpoint, instructions)
    return EagerReference(programs())


def check_reference() -> None:
    """Raise KvcastError without PyTorch, a library and a compiler for it."""
    try:
        if not has_torch() and find_library() is None:
            check_compiler()
    except LibraryMissingError:
        raise KvcastError(
            "a bundle is compared with kvcast's own kernels or with PyTorch: install g++ or "
            "clang++, or pip install 'kvcast[export]'"
        ) from None


def has_torch() -> bool:
    return find_spec("torch") is not None


class NativeReference(Reference):
    def __init__(self, checkpoint: Checkpoint, instructions: str | None) -> None:
        from kvcast.runtimes.native.bundles import open_checkpoint
        from kvcast.runtimes.native.library import chosen_isa
        from kvcast.runtimes.native.target import NativeTarget

        chosen, exact = instructions or chosen_isa(), BundlePrecision(quantize="none")
        manifest, self._interpreter = open_checkpoint(checkpoint, exact, available_cores(), chosen)
        self.name = f"native fp32, {chosen} kernels"
        self.dimensions = checkpoint.dimensions
        interface = family_with(self.dimensions).interface
        self.runtime = NativeTarget().runtimes()[interface](manifest, self._interpreter)

    @override
    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self._interpreter.run_once(program, inputs, outputs)

    @override
    def results(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[np.float32]]:
        asked = replace(program, outputs={name: program.outputs.get(name, name) for name in names})
        sizes = sizes_of(asked, self._interpreter.constants, inputs)
        outputs = {name: np.empty(sizes[name], np.float32) for name in names}
        self.run(asked, inputs, outputs)
        return outputs


class EagerReference(Reference):
    """Executed by PyTorch: a `kvcast.models.executor.TorchModel`."""

    name = "eager fp32"

    def __init__(self, model: Any) -> None:
        from kvcast.runtimes.eager.runtime import eager_runtime

        self._model = model
        self.dimensions = model.dimensions
        self.runtime = eager_runtime(model)

    @override
    def run(
        self,
        program: Program,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Mapping[str, NDArray[np.float32]],
    ) -> None:
        self._model.run(program, inputs, outputs)

    @override
    def results(
        self, program: Program, inputs: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> dict[str, NDArray[np.float32]]:
        results: dict[str, NDArray[np.float32]] = self._model.results(program, inputs, names)
        return results
