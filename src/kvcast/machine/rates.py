"""How fast this machine reads memory and multiplies, measured with plain loops of nothing else.

For a process of its own, see `kvcast.machine.remote`. Knows nothing of models.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE = 256 * 2**20
"""Bytes that no processor cache holds."""

_READ_AT_ONCE = 2**29
_TRIES = 5
_PRODUCTS = 20
# The operator, the left operand's type here and in the graph, the product's, and the matrix's.
_PRODUCT: Mapping[str, tuple[str, Any, str, str, Any]] = {
    "int8": ("MatMulInteger", np.uint8, "uint8", "int32", np.int8),
    "fp32": ("MatMul", np.float32, "float", "float", np.float32),
}


class Rates:
    """Rates with a number of threads; the best of several tries, as a floor asks for."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def measure(self, working_set: int, tokens: int, width: int) -> dict[str, float]:
        """Return bytes or operations a second.

        `read`: memory. `read_again`: `working_set` bytes, over and over, which a large processor
        cache may hold. `int8`, `fp32`: products of [tokens, width] with [width, 4 * width] in ONNX
        Runtime; a multiplication and an addition are two operations.
        """
        return {
            "read": self._read(LARGE),
            "read_again": self._read(working_set),
            "int8": self._multiply(tokens, width, "int8"),
            "fp32": self._multiply(tokens, width, "fp32"),
        }

    def _read(self, size: int) -> float:
        # The maximum takes one vector instruction a vector: reading is what takes the time. NumPy
        # releases the GIL for it.
        parts = np.array_split(np.ones(size // 4, np.float32), self._threads)
        passes = max(1, _READ_AT_ONCE // size)

        def read(part: NDArray[np.float32]) -> None:
            for _ in range(passes):
                part.max()

        with ThreadPoolExecutor(self._threads) as pool:
            seconds = _best(lambda: list(pool.map(read, parts)), _TRIES)
        return size * passes / seconds

    def _multiply(self, tokens: int, width: int, precision: str) -> float:
        session = _product(tokens, width, precision, self._threads)
        feed = {"x": np.ones((tokens, width), _PRODUCT[precision][1])}
        seconds = _best(lambda: session.run(None, feed), _PRODUCTS)
        return 2 * tokens * width * 4 * width / seconds


def _best(act: Callable[[], object], tries: int) -> float:
    """Return the least seconds of some tries after one that does not count."""
    act()
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


def _product(tokens: int, width: int, precision: str, threads: int) -> Any:
    """Return a session of one product with a constant matrix."""
    import onnxruntime as ort
    from onnx import numpy_helper, parser

    operator, _, left, product, right = _PRODUCT[precision]
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        product ({left}[{tokens}, {width}] x) => ({product}[{tokens}, {4 * width}] y)
        {{ y = {operator} (x, w) }}"""
    )
    weight = np.ones((width, 4 * width), right)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
