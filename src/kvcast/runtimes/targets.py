"""Export targets: for each runtime, how a family's programs are lowered and how bundles are opened.

Each runtime has one class, so exporting and loading need no special cases.
"""

from collections.abc import Mapping

from kvcast.runtimes.aoti.target import AotiTarget
from kvcast.runtimes.executorch.target import ExecutorchTarget
from kvcast.runtimes.native.target import NativeTarget
from kvcast.runtimes.onnx.target import OnnxTarget
from kvcast.runtimes.target import Target
from kvcast.spec.phases import OnPhase, ignore_phase
from kvcast.spec.runtimes import DEFAULT_RUNTIMES, RUNTIMES, PrecisionRequest

TARGETS: Mapping[str, Target] = {
    "onnx": OnnxTarget(),
    "aoti": AotiTarget(),
    "executorch": ExecutorchTarget(),
    "native": NativeTarget(),
}


def default_runtime(request: PrecisionRequest, on_phase: OnPhase = ignore_phase) -> str:
    """Return the runtime for a model that is no bundle, if a user names none.

    Args:
        request: the precision that the user asks for.
        on_phase: called before a library is compiled for it, which takes seconds.

    """
    suited = [name for name in DEFAULT_RUNTIMES if TARGETS[name].suits_machine(on_phase)]
    return next((name for name in suited if RUNTIMES[name].offers(request)), suited[0])
