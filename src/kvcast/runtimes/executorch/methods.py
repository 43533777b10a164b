"""The methods of an ExecuTorch file, over caches in the caller's memory.

A method takes one row. It reads its arguments and writes its caches in place; results are copied.
"""

import ctypes
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kvcast.bundle.manifest import Graph, Manifest
from kvcast.errors import KvcastError
from kvcast.runtimes.base import Float32, ForkSafeLock, Int64
from kvcast.runtimes.opening import ProgramFile, TensorSpec, check_programs, naming

_TOKENS, _LENGTHS, _OFFSETS = range(3)
_FIRST_CACHE = 3
# Ids from executorch's core/portable_type/scalar_type.h.
_DTYPES = {1: "int8", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 15: "bfloat16"}


@contextmanager
def quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


class Methods:
    def __init__(self, path: Path, threads: int) -> None:
        runtime = open_runtime()
        # Threads are the process's.
        if runtime._legacy_module._threadpool_get_thread_count() != threads:
            runtime._legacy_module._unsafe_reset_threadpool(threads)
        # Kernels' matrix products are torch's, whose own threads would come on top of these.
        torch.set_num_threads(1)
        self._path = path
        # The methods of a program compute in the same memory, whichever thread calls them.
        self._running = ForkSafeLock()
        try:
            self._program = runtime.load_program(path)
        except RuntimeError:
            raise KvcastError(f"{path} is no ExecuTorch program; export it again") from None

    def check(self, manifest: Manifest) -> None:
        with naming(self._path):
            check_programs(
                manifest,
                {name: self._described(name, graph) for name, graph in manifest.graphs.items()},
                rows=1,
                cache=lambda heads, positions, size: (heads, positions, 1, size),
            )

    def run(self, name: str, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Run a method; raises KvcastError, which names the file, for every failure."""
        with naming(self._path), self._running:
            results: list[Tensor] = self._program.load_method(name).execute(arguments)
        return results

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._program.method_names)

    def shapes(self, name: str) -> list[tuple[int, ...]]:
        metadata = self._program.metadata(name)
        return [tuple(metadata.input_tensor_meta(i).sizes()) for i in range(metadata.num_inputs())]

    def _described(self, name: str, graph: Graph) -> ProgramFile:
        if name not in self._program.method_names:
            raise KvcastError(
                f"{self._path} has no method {name}, as bundle.json says; export it again"
            )
        metadata = self._program.metadata(name)

        def named(
            names: tuple[str, ...], count: int, meta: Callable[[int], Any]
        ) -> dict[str, TensorSpec]:
            if len(names) != count:
                raise KvcastError(
                    f"{self._path} does not fit bundle.json: {name} has {count} inputs or "
                    f"outputs, not {len(names)}; export again"
                )
            return {n: _argument(meta(i)) for i, n in enumerate(names)}

        return ProgramFile(
            self._path,
            named(graph.inputs, metadata.num_inputs(), metadata.input_tensor_meta),
            named(graph.outputs, metadata.num_outputs(), metadata.output_tensor_meta),
        )


def _argument(meta: Any) -> TensorSpec:
    code = int(meta.dtype())
    return TensorSpec(_DTYPES.get(code, f"type {code}"), tuple(meta.sizes()))


class DecodeMethod:
    def __init__(self, methods: Methods, vocab: int) -> None:
        shapes = methods.shapes("decode")
        self._methods = methods
        self._vocab = vocab
        self._chunk = shapes[_TOKENS][1]
        self._most_offsets = shapes[_OFFSETS][0]
        # Each has positions on axis 1.
        self.cache_shapes = shapes[_FIRST_CACHE:]

    def logits(self, rows: int, positions: int) -> Float32:
        return np.empty((rows, positions, self._vocab), np.float32)

    def run(
        self,
        tokens_s: Int64,
        length: int,
        caches: Sequence[Tensor],
        positions: Sequence[int],
        logits_pv: Float32,
        queries_sx: Float32 | None = None,
    ) -> None:
        """Append to a row that holds `length` positions; `caches` have any capacity.

        `positions` are offsets into the new tokens; negative ones count from the end. Fills
        `logits_pv` fp32 [len(positions), vocab] and `queries_sx` fp32 [s, heads * d] of the
        alignment heads.
        """
        places = np.asarray(positions, np.int64) % len(tokens_s)
        first = 0
        while first < len(tokens_s):
            stop = min(first + self._chunk, len(tokens_s))
            here = np.flatnonzero((places >= first) & (places < stop))
            if len(here) > self._most_offsets:
                here = here[np.argsort(places[here], kind="stable")[: self._most_offsets]]
                stop = int(places[here[-1]]) + 1
            offsets = places[here] - first if len(here) else np.zeros(1, np.int64)
            results = self.call(tokens_s[first:stop], length + first, offsets, caches)
            logits_pv[here] = results[0][0, : len(here)].numpy()
            if queries_sx is not None:
                queries_sx[first:stop] = results[1][0].numpy()
            first = stop

    def call(
        self, tokens_s: Int64, length: int, offsets: Int64, caches: Sequence[Tensor]
    ) -> list[Tensor]:
        """Run the method once, with as many tokens and offsets as a call takes; see `run`."""
        given = [
            torch.from_numpy(np.ascontiguousarray(tokens_s, np.int64)[None]),
            torch.tensor([length], dtype=torch.int32),
            torch.from_numpy(offsets),
        ]
        return self._methods.run("decode", [*given, *caches])


@cache
def open_runtime() -> Any:
    try:
        with quiet():
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime
    except ModuleNotFoundError:
        raise KvcastError(
            "this bundle runs on ExecuTorch, which is not installed: pip install executorch==1.5.1"
        ) from None
    package = Path(portable_lib.__file__).parents[2]
    ctypes.CDLL(str(package / "extension/llm/custom_ops/libcustom_ops_aot_lib.so"))
    _silence(ctypes.CDLL(str(package / "lib/libexecutorch.so")))
    return Runtime.get()


class _Platform(ctypes.Structure):
    """`executorch::runtime::PalImpl`: functions that the runtime calls, or null for its own."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            *("init", "abort", "current_ticks", "ticks_to_ns_multiplier"),
            *("emit_log_message", "allocate", "free", "source_filename"),
        )
    )


def _silence(library: ctypes.CDLL) -> None:
    """Silence the runtime's several log lines a step; errors are raised anyway."""
    platform = library["_ZN10executorch7runtime12get_pal_implEv"]
    platform.restype = ctypes.POINTER(_Platform)
    # Any function will do that is harmless whatever it is called with, from whatever thread.
    nothing = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p)
    platform().contents.emit_log_message = nothing
