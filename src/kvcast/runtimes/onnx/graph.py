"""A graph of a bundle on ONNX Runtime; every failure becomes one line that names its file.

Knows nothing of its mathematics.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort

from kvcast.bundle.manifest import Manifest
from kvcast.runtimes.opening import ProgramFile, TensorSpec, check_programs, naming

_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


class OnnxGraph:
    """kvcast's part of `onnxruntime.InferenceSession`."""

    def __init__(self, path: Path, options: Any) -> None:
        self.path = path
        with naming(path):
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def io_binding(self) -> Any:
        """Return an empty binding."""
        return self._session.io_binding()

    def run(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run over arrays."""
        with naming(self.path):
            results: list[Any] = self._session.run(outputs, feed)
        return results

    def run_with_ort_values(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        """Run over ONNX Runtime's own values."""
        with naming(self.path):
            results: list[Any] = self._session.run_with_ort_values(outputs, feed)
        return results

    def run_with_iobinding(self, binding: Any) -> None:
        """Run over the bound arrays."""
        with naming(self.path):
            self._session.run_with_iobinding(binding)

    def end_profiling(self) -> Path:
        """Write the profile that the session was opened with; return its file."""
        return Path(self._session.end_profiling())

    def inputs(self) -> dict[str, TensorSpec]:
        """Return the graph's declared inputs."""
        return dict(map(_argument, self._session.get_inputs()))

    def outputs(self) -> dict[str, TensorSpec]:
        """Return the graph's declared outputs."""
        return dict(map(_argument, self._session.get_outputs()))


def check_graphs(manifest: Manifest, graphs: Mapping[str, OnnxGraph]) -> None:
    """Raise KvcastError unless graphs, by their names in the manifest, are as it describes them."""
    check_programs(
        manifest,
        {
            name: ProgramFile(graph.path, graph.inputs(), graph.outputs())
            for name, graph in graphs.items()
        },
        rows=None,
        cache=lambda *sizes: (None, *sizes),
    )


def _argument(described: Any) -> tuple[str, TensorSpec]:
    sizes = (size if isinstance(size, int) else None for size in described.shape)
    return described.name, TensorSpec(_DTYPES.get(described.type, described.type), tuple(sizes))
