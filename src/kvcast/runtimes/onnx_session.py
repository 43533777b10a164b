"""Sessions of ONNX Runtime on the CPU, and arrays as it takes them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

_ERRORS_ONLY = 3  # ONNX Runtime's warnings are about optimisations of no interest to a user
# Idle threads spin, by default for tens of milliseconds, in which encode's take the cores from
# decode's and back: a third of the time on two cores. This is enough to last from step to step.
_SPIN_US = "500"


def onnx_session(path: Path, threads: int) -> Any:
    """Load a graph to run with so many threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    options.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN_US)
    # The plan for memory is made in the first run and asks for a second arena: 29 MB more at the
    # peak for a base-sized encoder, and no time saved.
    options.enable_mem_pattern = False
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def ort_value(array: np.ndarray[Any, Any]) -> Any:
    """Wrap without copying: ONNX Runtime reads and writes the array's own memory."""
    return ort.OrtValue.ortvalue_from_numpy(array)
