"""The compiled library's functions, and the `Machine` that calls them, with its threads and ISA."""

import ctypes
import os
from ctypes import c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcast.errors import KvcastError, UsageError
from kvcast.runtimes.native.build import check_compiler, find_library, open_library
from kvcast.spec.grids import GRIDS, grid
from kvcast.spec.stored_matrices import Encoding, FileRows

CHOICE = "KVCAST_INSTRUCTIONS"
"""The environment variable that names the instruction set to use."""

PLAIN = "plain"
"""The set without instructions of any one processor, which runs everywhere."""

DESCRIPTION = 8
"""Words that describe a packed matrix to callers of kvcast's operators; see operators.hpp."""

_MESSAGE = 256
_ALIGNMENT = 64
_ROOM = 1 << 26  # bytes that packed matrices share; free pages take no memory


TILE = 64
"""Outputs of a packed matrix that lie together; kernels.hpp's BLOCK."""


class Format(IntEnum):
    """Storage formats of a matrix [outputs, inputs]; instructions.def explains them."""

    F32 = 0
    INT8 = 1
    INT8_BLOCK = 2
    INT4_MIN = 3
    INT4_TABLE = 4
    INT4_LARGE = 5
    INT4_TABLE_LARGE = 6
    INT8_LARGE_MIN = 7
    INT6_BLOCK = 8
    INT6_LARGE = 9
    INT6_LARGE_MIN = 10
    INT4_TABLE_FINE = 11
    INT4_ZERO_POINT = 12


@cache
def _library() -> Any:
    library = open_library()
    rows = [c_void_p, c_void_p, c_size_t, c_int, c_int]  # a machine, and rows of logits
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "kvcast_instructions": (c_char_p, [c_int]),
        "kvcast_kernels": (c_char_p, [c_char_p]),
        "kvcast_open": (c_void_p, [c_char_p, c_int]),
        "kvcast_close": (None, [c_void_p]),
        "kvcast_set_grid": (None, [c_int, c_void_p]),
        "kvcast_packed_bytes": (c_size_t, [c_void_p, c_int, c_int, c_int]),
        "kvcast_pack": (
            c_int,
            [c_void_p, c_int, c_int, c_int, *[c_void_p] * 4, c_char_p, c_size_t],
        ),
        "kvcast_pack_rows": (
            c_int,
            [c_void_p, c_int, c_int, c_int, c_int, *[c_void_p] * 5, c_char_p, c_size_t],
        ),
        "kvcast_describe": (
            None,
            [c_void_p, c_int, c_int, c_int, c_int, c_void_p, c_void_p],
        ),
        "kvcast_multiply": (c_double, [c_void_p, c_int, c_int64]),
        "kvcast_prompts_differ": (c_int, [c_void_p]),
        "kvcast_rounded_bytes": (c_size_t, [c_int, c_int]),
        "kvcast_run": (c_int, [c_void_p, c_void_p, c_size_t, c_char_p, c_size_t]),
        "kvcast_likeliest": (c_int, [*rows, c_int, c_int, c_void_p]),
        "kvcast_draw": (
            c_int,
            [c_void_p, c_void_p, c_int, c_float, c_int, *[c_double] * 3, c_void_p],
        ),
        "kvcast_penalise": (
            c_int,
            [*rows, c_void_p, c_size_t, c_int, c_float, c_double, c_double],
        ),
        "kvcast_apply_timestamp_rules": (c_int, [*rows, c_void_p, c_size_t, *[c_int] * 5]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    for kind in GRIDS:
        library.kvcast_set_grid(Encoding[kind], grid(kind).ctypes.data)
    return library


def instruction_sets() -> list[str]:
    """Return the ISAs that run here, fastest first; the last is plain."""
    names: list[str] = []
    while (name := _library().kvcast_instructions(len(names))) is not None:
        names.append(name.decode())
    return names


def kernels(instructions: str) -> str:
    text: bytes = _library().kvcast_kernels(instructions.encode())
    return text.decode()


def chosen_isa() -> str:
    """Return $KVCAST_INSTRUCTIONS (UsageError if it does not run here), else the fastest ISA."""
    sets = instruction_sets()
    choice = os.environ.get(CHOICE)
    if not choice:
        return sets[0]
    if choice not in sets:
        raise UsageError(f"{CHOICE} is {choice!r}: this processor runs {', '.join(sets)}")
    return choice


def describe_library() -> dict[str, Any]:
    """Return the library's origin, path, ISAs (that in use first) and kernels; compiles none.

    Raises LibraryMissingError where there is neither a library nor a compiler.
    """
    library = find_library()
    if library is None:
        check_compiler()
        return {"origin": "none"}
    sets, problem = instruction_sets(), ""
    try:
        chosen = chosen_isa()
        sets = [chosen, *(name for name in sets if name != chosen)]
    except UsageError as error:
        problem = str(error)
    return {
        "origin": "shipped" if library.shipped else "compiled",
        "path": str(library.path),
        "instructions": sets,
        "kernels": kernels(sets[0]),
        "problem": problem,
    }


class Machine:
    """Threads that run programs with one ISA, one program at a time."""

    def __init__(self, threads: int, instructions: str | None = None) -> None:
        self._library = _library()
        chosen = instructions or chosen_isa()
        self._handle = self._library.kvcast_open(chosen.encode(), threads)
        self._room = aligned(0)  # for matrices to come
        if not self._handle:
            raise KvcastError(f"no machine with {threads} threads and {chosen} instructions")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.kvcast_close(self._handle)

    def pack(
        self,
        format_: Format,
        codes: NDArray[Any],
        scales: NDArray[np.float32] | None = None,
        bias: NDArray[np.float32] | None = None,
        inputs: int | None = None,
    ) -> NDArray[np.uint8]:
        """Return a matrix's tiles, for codes [outputs, inputs] as a bundle stores them.

        `scales` are float32, none for F32; `inputs` is for INT4_MIN, whose codes are two in a byte.
        Raises KvcastError where the system has no threads left, as it may have for a forked
        process.
        """
        outputs, inputs = len(codes), inputs or codes.shape[1]
        size = self._library.kvcast_packed_bytes(self._handle, format_, outputs, inputs)
        packed = self._take(size)
        given = [np.ascontiguousarray(codes)]
        addresses: list[int | None] = [given[0].ctypes.data]
        for part in (scales, bias):
            if part is None:
                addresses.append(None)
                continue
            given.append(np.ascontiguousarray(part, np.float32))
            addresses.append(given[-1].ctypes.data)
        addresses.append(packed.ctypes.data)
        self._checked_call(self._library.kvcast_pack, format_, outputs, inputs, *addresses)
        return packed

    def pack_rows(
        self,
        format_: Format,
        rows: FileRows,
        bias: NDArray[np.float32] | None = None,
        *,
        own: bool = False,
    ) -> NDArray[np.uint8]:
        """Return the tiles of a matrix whose rows are in a mapped file; see packing.hpp.

        Widths are multiples of 32 in block formats, of 256 in large-block formats. `own`: the rows'
        codes are kept if the format can hold them.
        """
        sizes = len(rows), rows.width
        packed = self._take(self._library.kvcast_packed_bytes(self._handle, format_, *sizes))
        given = None if bias is None else np.ascontiguousarray(bias, np.float32)
        arrays = rows.addresses, rows.encodings, rows.factors, given, packed
        addresses = [None if array is None else array.ctypes.data for array in arrays]
        self._checked_call(self._library.kvcast_pack_rows, format_, own, *sizes, *addresses)
        return packed

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that takes a machine; it fails only if memory is exhausted."""
        if getattr(self._library, name)(self._handle, *arguments):
            raise MemoryError

    def _checked_call(self, function: Any, *arguments: Any) -> None:
        message = ctypes.create_string_buffer(_MESSAGE)
        if function(self._handle, *arguments, message, _MESSAGE):
            raise KvcastError(message.value.decode())

    @property
    def prompts_differ(self) -> bool:
        return bool(self._library.kvcast_prompts_differ(self._handle))

    def multiply(self, *, int8: bool, turns: int) -> float:
        """Multiply int8 or fp32 in registers, `turns` times on each thread; return the operations.

        The upper bound of any GEMM; a multiply-add counts as two.
        """
        operations: float = self._library.kvcast_multiply(self._handle, int8, turns)
        return operations

    def describe(
        self, format_: Format, outputs: int, inputs: int, tiles: NDArray[Any], count: int = 1
    ) -> NDArray[np.int64]:
        """Return the words (addresses) by which compiled programs know `count` tiles."""
        words = np.zeros(DESCRIPTION, np.int64)
        address = tiles.ctypes.data
        self._library.kvcast_describe(
            self._handle, format_, outputs, inputs, count, address, words.ctypes.data
        )
        return words

    def _take(self, size: int) -> NDArray[np.uint8]:
        """Allocate bytes adjacent to earlier matrices: two threads read huge pages 25% faster."""
        if size > len(self._room):
            self._room = aligned(max(size, _ROOM))
        taken, self._room = np.split(self._room, [-(-size // _ALIGNMENT) * _ALIGNMENT])
        return taken[:size]

    def run(self, words: NDArray[np.int64]) -> None:
        # Not by `_checked_call`: each token comes by here.
        message = ctypes.create_string_buffer(_MESSAGE)
        run = self._library.kvcast_run
        if run(self._handle, words.ctypes.data, len(words), message, _MESSAGE):
            raise KvcastError(message.value.decode())


def rounded_bytes(rows: int, inputs: int) -> int:
    size: int = _library().kvcast_rounded_bytes(rows, inputs)
    return size


def aligned(size: int) -> NDArray[np.uint8]:
    whole = np.empty(size + _ALIGNMENT, np.uint8)
    first = -whole.ctypes.data % _ALIGNMENT
    return whole[first : first + size]
