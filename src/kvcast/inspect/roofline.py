"""The roofline: the least time that a machine with given rates could take for counted work.

Counts become bytes by the formats of ONNX Runtime's bundles, and seconds at rates that are given or
measured here, by plain loops of reading and multiplying in a process of their own. Norms,
activations, rotation and softmax count as nothing.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kvcast.inspect.units import plural
from kvcast.inspect.work import Work
from kvcast.machine.child import Remote
from kvcast.runtimes.native.library import Machine, chosen_isa

_TABLE_BLOCKS = (128, 64, 32, 16)
_INT4_BLOCK = 32
_SCALE = 4  # bytes


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Operations by arithmetic (a multiplication and an addition are two), and bytes read."""

    int8: float = 0.0
    fp32: float = 0.0
    bytes: float = 0.0

    def seconds(self, rates: Mapping[str, float]) -> float:
        """Return the least time; reading and multiplying overlap, the two products do not."""
        products = (("int8", self.int8), ("fp32", self.fp32))
        multiplying = sum(count / rates[name] for name, count in products if count)
        return max(multiplying, self.bytes / fastest_read(rates))


@dataclass(frozen=True, kw_only=True)
class Stored:
    int4_table: bool = False  # whether the head's table has 4 bits in an int4 bundle; else 8
    int8_cross: bool = False  # int8 cross caches if matrices are quantized; else fp32
    column_scales: bool = False  # whether scales of int8 columns are charged; they are few


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    precision: str  # fp32, bf16, int8 or int4
    # whether what is not quantized is multiplied in bf16. Nobody measures its rate: int8's is no
    # lower, and a floor must not be too high
    bf16_products: bool = False

    def cost(self, work: Work, stored: Stored, width: int) -> Cost:
        """Charge work on a model whose embedding is `width` wide.

        GEMMs with weights are int8 if weights are quantized; attention and convolutions are fp32.
        bf16 values take half the bytes of fp32.
        """
        products = (
            work.encoder + work.cross_keys_values + work.keys_values + work.linear + work.head
        )
        others = work.encoder_attention + work.attention
        is_quantized = self.precision in ("int8", "int4")
        cross = work.cross * (1 if is_quantized and stored.int8_cross else 4)
        read = self._weights(work, stored, width) + cross + 4 * (work.held + work.written)
        cost = Cost(int8=products, fp32=others, bytes=read)
        if not is_quantized:
            cost = replace(cost, int8=0.0, fp32=products + others)
        if self.precision == "bf16":
            cost = replace(cost, bytes=cost.bytes / 2)
        if self.bf16_products:
            cost = replace(cost, int8=cost.int8 + cost.fp32, fp32=0.0)
        return cost

    def _weights(self, work: Work, stored: Stored, width: int) -> float:
        if self.precision not in ("int8", "int4"):
            return 4 * (work.encoder_matrices + work.matrices + work.table)
        block = next((size for size in _TABLE_BLOCKS if width % size == 0), 1)
        table = work.table + _SCALE * work.table / block
        # The encoder's products are int8 in an int4 bundle too.
        if self.precision == "int8":
            columns = _SCALE * work.columns if stored.column_scales else 0
            return work.encoder_matrices + work.matrices + columns + table
        if stored.int4_table:
            table -= work.table / 2
        packed = work.matrices / 2 + _SCALE * work.matrices / _INT4_BLOCK
        return work.encoder_matrices + packed + table


def fastest_read(rates: Mapping[str, float]) -> float:
    """Return the best rate, perhaps from the processor's cache: a lower bound on time."""
    return max(rates[name] for name in ("read", "read_again") if name in rates)


def best_of(measurements: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: max(measured[name] for measured in measurements) for name in measurements[0]}


LARGE = 256 * 2**20
"""Bytes that no processor cache holds."""

_READ_AT_ONCE = 2**29
_TRIES = 5
_TURNS = 20_000  # of multiplying: below a millisecond where units are widest
_MULTIPLYING = 20  # tries, for they are short


class Rates:
    """Rates with a number of threads; the best of several tries, as a lower bound asks for."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def measure(self, working_set: int) -> dict[str, float]:
        """Bytes or operations per second; KvcastError without a native runtime.

        `read`: memory. `read_again`: `working_set` bytes repeatedly, which a cache may hold. `int8`
        and `fp32`: multiply-adds (two operations) in registers with the native runtime's ISA.
        """
        machine = Machine(self._threads)
        return {
            "read": self._read(LARGE),
            "read_again": self._read(working_set),
            "int8": _multiply(machine, int8=True),
            "fp32": _multiply(machine, int8=False),
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


def _multiply(machine: Machine, *, int8: bool) -> float:
    operations = machine.multiply(int8=int8, turns=_TURNS)
    return operations / _best(lambda: machine.multiply(int8=int8, turns=_TURNS), _MULTIPLYING)


def _best(act: Callable[[], object], tries: int) -> float:
    act()
    best = float("inf")
    for _ in range(tries):
        start = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - start)
    return best


_LEAST_BYTES = 2**20

GIVEN = "given"

FLOAT32 = 4.0
"""Weights of at least this many bytes are multiplied in float32."""


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    bandwidth: float
    rate: float
    bandwidth_from: str = GIVEN
    rate_from: str = GIVEN

    @classmethod
    def measure(
        cls,
        *,
        bandwidth: float | None,
        rate: float | None,
        threads: int,
        step_bytes: float,
        bytes_per_weight: float,
    ) -> Self:
        """Use the given figures, and measure the rest with `threads`.

        `step_bytes`: bytes that one step reads. The best figure counts, for a lower bound on the
        time: the fastest reading, and the better of int8 and fp32 products, unless weights are
        fp32. KvcastError if there is no native runtime to measure with.
        """
        if bandwidth is not None and rate is not None:
            return cls(bandwidth=bandwidth, rate=rate)
        rates = _measure(threads, step_bytes)
        products = ("fp32",) if bytes_per_weight >= FLOAT32 else ("int8", "fp32")
        fastest = max(products, key=rates.__getitem__)
        measured = f"measured with {plural(threads, 'thread')}"
        return cls(
            bandwidth=bandwidth or fastest_read(rates),
            rate=rate or rates[fastest],
            bandwidth_from=GIVEN if bandwidth else measured,
            rate_from=GIVEN if rate else f"{fastest}, {measured}",
        )

    def seconds(self, operations: float, read: float) -> float:
        cost = Cost(fp32=operations, bytes=read)
        return cost.seconds({"fp32": self.rate, "read": self.bandwidth})


def _measure(threads: int, step_bytes: float) -> Mapping[str, float]:
    # The native runtime's one line, in this process.
    chosen_isa()
    with Remote(Rates(threads), {}) as remote:
        rates: Mapping[str, float] = remote.call(
            "measure", working_set=max(_LEAST_BYTES, min(round(step_bytes), LARGE))
        )
    return rates
