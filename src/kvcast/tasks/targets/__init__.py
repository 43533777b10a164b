"""What bundles are exported to: for each runtime how a family's programs are lowered and opened.

One class a runtime, so that neither exporting nor loading has cases.
"""

from collections.abc import Mapping

from kvcast.tasks.targets.aoti import AotiTarget
from kvcast.tasks.targets.base import Target
from kvcast.tasks.targets.executorch import ExecutorchTarget
from kvcast.tasks.targets.onnx import OnnxTarget

TARGETS: Mapping[str, Target] = {
    "onnx": OnnxTarget(),
    "aoti": AotiTarget(),
    "executorch": ExecutorchTarget(),
}
