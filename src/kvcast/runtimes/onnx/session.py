"""ONNX Runtime sessions on the CPU, the graphs of bundles that they run, and bindings of arrays.

Rings use GroupQueryAttention's `sliding_window_cache`: the kernel keeps the window contiguous at
the start of the buffer and moves it when the buffer, 128 slots longer than the window, is full.
Over a filled cache the kernel takes several new positions for one row only, so prefill runs row by
row, on views of the batch's buffers.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.runtimes.opening import ProgramFile, TensorSpec, check_programs, naming

_ERRORS_ONLY = 3  # ONNX Runtime's warnings are about optimisations of no interest to a user
# Idle threads spin, by default for tens of milliseconds, in which encode's take the cores from
# decode's and back: a third of the time on two cores. This is enough to last from step to step.
_SPIN_US = "500"
# An ONNX model of one node, y = MatMulInteger(x, w), for uint8 x [1, 2] and int8 w [2, 1]; as
# onnx.helper writes it.
_PRODUCT = (
    b'\x08\x08:\\\n\x18\n\x01x\n\x01w\x12\x01y"\rMatMulInteger\x12\x01g'
    b"Z\x13\n\x01x\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08\x02"
    b"Z\x13\n\x01w\x12\x0e\n\x0c\x08\x03\x12\x08\n\x02\x08\x02\n\x02\x08\x01"
    b"b\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x01B\x04\n\x00\x10\n"
)


class OnnxGraph:
    """kvcast's part of `onnxruntime.InferenceSession`."""

    def __init__(self, path: Path, options: Any) -> None:
        self.path = path
        with naming(path):
            self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        with naming(self.path):
            results: list[Any] = self._session.run(outputs, feed)
        return results

    def run_with_ort_values(self, outputs: list[str], feed: Mapping[str, Any]) -> list[Any]:
        with naming(self.path):
            results: list[Any] = self._session.run_with_ort_values(outputs, feed)
        return results

    def run_with_iobinding(self, binding: Any) -> None:
        with naming(self.path):
            self._session.run_with_iobinding(binding)

    def end_profiling(self) -> Path:
        return Path(self._session.end_profiling())

    def inputs(self) -> dict[str, TensorSpec]:
        return dict(map(_argument, self._session.get_inputs()))

    def outputs(self) -> dict[str, TensorSpec]:
        return dict(map(_argument, self._session.get_outputs()))


def onnx_session(path: Path, threads: int, profile: Path | None = None) -> OnnxGraph:
    """Load a graph; `profile` is the beginning of a file name (see `OnnxGraph.end_profiling`)."""
    options = ort.SessionOptions()
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    # The plan for memory is made in the first run and asks for a second arena: 29 MB more at the
    # peak for a base-sized encoder, and no time saved.
    options.enable_mem_pattern = False
    if products_saturate():
        # Weights become uint8, whose products are exact there. Where they are exact anyway, this
        # would cost more than half the speed, so it is not for every processor.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return OnnxGraph(path, options)


@cache
def products_saturate() -> bool:
    """Return whether ONNX Runtime clips sums of two uint8 by int8 products to 16 bits here.

    It does on x86 without VNNI, where a small Mixtral's logits correlated 0.924 instead of 0.998
    with fp32. ONNX Runtime does not report its kernels, so a product of the largest such sums is
    computed.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    largest = {"x": np.full((1, 2), 255, np.uint8), "w": np.full((2, 1), 127, np.int8)}
    ((product,),) = session.run(None, largest)[0].tolist()
    return bool(product != 2 * 255 * 127)


def bind(
    session: Any,
    graph: Graph,
    values: Mapping[str, np.ndarray[Any, Any]],
    results: Mapping[str, np.ndarray[Any, Any]],
) -> Any:
    """Bind a decode graph: inputs by name, requested results, and caches as both.

    An output that the manifest calls an alias is bound to that input's memory. The caller keeps the
    arrays alive as long as the binding.
    """
    binding = session.io_binding()
    wrapped = {name: ort_value(values[name]) for name in graph.inputs}
    for name, value in wrapped.items():
        binding.bind_ortvalue_input(name, value)
    for name, array in results.items():
        binding.bind_ortvalue_output(name, ort_value(array))
    for output, buffer in graph.aliases.items():
        binding.bind_ortvalue_output(output, wrapped[buffer])
    return binding


def ort_value(array: np.ndarray[Any, Any]) -> Any:
    """Wrap without copying: ONNX Runtime reads and writes the array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)


_DTYPES = {
    "tensor(bool)": "bool",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
}


def check_graphs(manifest: Manifest, graphs: Mapping[str, OnnxGraph]) -> None:
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
