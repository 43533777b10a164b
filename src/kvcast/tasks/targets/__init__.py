"""Export targets: for each runtime, how a family's programs are lowered and how bundles are opened.

Each runtime has one class, so exporting and loading need no special cases.
"""

from collections.abc import Mapping

from kvcast.tasks.targets.aoti import AotiTarget
from kvcast.tasks.targets.base import Target
from kvcast.tasks.targets.executorch import ExecutorchTarget
from kvcast.tasks.targets.native import NativeTarget
from kvcast.tasks.targets.onnx import OnnxTarget

TARGETS: Mapping[str, Target] = {
    "onnx": OnnxTarget(),
    "aoti": AotiTarget(),
    "executorch": ExecutorchTarget(),
    "native": NativeTarget(),
}
